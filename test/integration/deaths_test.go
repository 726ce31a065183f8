package integration

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// copying is a cp that runs.
type copying struct {
	cmd    *exec.Cmd
	start  time.Time
	stderr bytes.Buffer
	done   chan error
}

func startCopy(t *testing.T, src, dst string) *copying {
	t.Helper()
	cp := &copying{cmd: exec.Command("cp", src, dst), start: time.Now(), done: make(chan error, 1)}
	cp.cmd.Stderr = &cp.stderr
	if err := cp.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { cp.done <- cp.cmd.Wait() }()
	t.Cleanup(func() { cp.cmd.Process.Kill() })
	return cp
}

func (cp *copying) wait(t *testing.T, limit time.Duration) (time.Duration, error) {
	t.Helper()
	select {
	case err := <-cp.done:
		return time.Since(cp.start), err
	case <-time.After(limit):
		t.Fatalf("cp still runs after %v", limit)
		return 0, nil
	}
}

// awaitMoving waits until a transfer has moved at least part of its bytes to every member.
func awaitMoving(t *testing.T, c *cluster.Cluster, writer *cluster.Node, part float64) {
	t.Helper()
	c.Await(60*time.Second, "transfer under way", func() (bool, string) {
		for _, tr := range writer.Status().Transfers {
			if movedPart(tr) >= part {
				return true, ""
			}
		}
		return false, "no transfer yet"
	})
}

// movedPart is how much of its bytes the last of a transfer's members has.
func movedPart(tr admin.Transfer) float64 {
	least := 1.0
	for _, m := range tr.Members {
		if m.Node != tr.Writer {
			least = min(least, float64(m.Bytes)/float64(max(1, tr.SizeBytes)))
		}
	}
	if len(tr.Members) == 0 {
		return 0
	}
	return least
}

// A receiver dies in mid-transfer; the others get the file, it is owed, and it gets it when it is back.
func TestReceiverDiesInMidTransfer(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 5, Rate: "200mbit"})
	src := filepath.Join(c.Dir, "image")
	cluster.Random(t, src, size[int64](64<<20, 256<<20), 1)
	watch := startWatch()
	if _, err := startCopy(t, src, c.Nodes[0].Path("undisturbed")).wait(t, 2*time.Minute); err != nil {
		t.Fatal(err)
	}
	undisturbed := watch.took()
	watch = startWatch()
	cp := startCopy(t, src, c.Nodes[0].Path("image"))
	awaitMoving(t, c, c.Nodes[0], 0.2)
	victim := c.Nodes[3]
	victim.Kill()
	_, err := cp.wait(t, 2*time.Minute)
	took := watch.took()
	if err != nil {
		t.Fatalf("cp: %v: %s", err, cp.stderr.String())
	}
	t.Logf("undisturbed %v, with a death %v", undisturbed, took)
	if took > undisturbed+5*time.Second {
		t.Errorf("the survivors took %v, undisturbed %v", took, undisturbed)
	}
	sameEverywhere(t, c, src, "image")
	owed := nodeOf(t, c.Nodes[0].Status(), victim)
	if owed.OwedCount == 0 || owed.OwedReason == "" {
		t.Errorf("status does not say what %s is owed: %+v", victim.Name(), owed)
	}
	victim.Start()
	c.AwaitNothingOwed(60 * time.Second)
	sameEverywhere(t, c, src, "image")
}

func nodeOf(t *testing.T, st admin.Status, n *cluster.Node) admin.Node {
	t.Helper()
	for _, have := range st.Nodes {
		if have.Name == n.Name() {
			return have
		}
	}
	t.Fatalf("status does not list %s", n.Name())
	return admin.Node{}
}

// A killed cp publishes nothing; what it staged is listed.
func TestWriterProgramKilledWhileWriting(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	w, r := c.Nodes[0], c.Nodes[1]
	cmd := exec.Command("cp", "/dev/zero", w.Path("partial"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.Await(60*time.Second, "bytes staged", func() (bool, string) {
		st, err := os.Stat(w.Path("partial"))
		return err == nil && st.Size() > 8<<20, "file is small"
	})
	cmd.Process.Kill()
	cmd.Wait()
	for _, n := range []*cluster.Node{w, r} {
		if st, err := os.Stat(n.Path("partial")); err == nil && n == r {
			t.Errorf("%s shows a partial file of %d bytes", n.Name(), st.Size())
		}
	}
	c.Await(60*time.Second, "staged bytes listed", func() (bool, string) {
		for _, u := range w.Status().Unpublished {
			if strings.HasSuffix(u.Path, "partial") {
				return true, ""
			}
		}
		return false, "not in status"
	})
}

// A cp is killed inside close; either the file is whole everywhere, or nowhere.
func TestWriterProgramKilledInsideClose(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3, Rate: "100mbit"})
	src := filepath.Join(c.Dir, "image")
	cluster.Random(t, src, 32<<20, 2)
	cp := startCopy(t, src, c.Nodes[0].Path("image"))
	awaitMoving(t, c, c.Nodes[0], 0.1)
	cp.cmd.Process.Kill()
	if _, err := cp.wait(t, 60*time.Second); err == nil {
		t.Error("a killed cp reports success")
	}
	c.Await(60*time.Second, "session over", func() (bool, string) {
		return len(c.Nodes[0].Status().Transfers) == 0, "transfer still runs"
	})
	wholeOrAbsent(t, c, src, "image")
}

// wholeOrAbsent fails the test when a node shows other bytes than source's under name, or nodes disagree.
func wholeOrAbsent(t *testing.T, c *cluster.Cluster, source, name string) {
	t.Helper()
	want, err := cluster.Digest(source)
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		got, err := cluster.Digest(n.Path(name))
		switch {
		case errors.Is(err, os.ErrNotExist):
			got = "absent"
		case err != nil:
			t.Errorf("%s: %v", n.Name(), err)
		case got != want:
			t.Errorf("%s shows partial content", n.Name())
		}
		shown[got] = n.Name()
	}
	if len(shown) != 1 {
		t.Errorf("nodes disagree about %s: %v", name, shown)
	}
}

// The writer's daemon dies; cp fails, mounting works again, the staged bytes are listed.
func TestWriterDaemonDies(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 4, Rate: "100mbit"})
	src := filepath.Join(c.Dir, "image")
	cluster.Random(t, src, 64<<20, 3)
	w := c.Nodes[3] // no voter needed for the test; the others go on
	cp := startCopy(t, src, w.Path("image"))
	awaitMoving(t, c, w, 0.1)
	w.Kill()
	if _, err := cp.wait(t, 60*time.Second); err == nil {
		t.Error("cp reports success although its daemon died")
	}
	wholeOrAbsent(t, c, src, "image")
	w.Start() // on the same mount point, without a manual unmount
	c.AwaitUp(c.Nodes...)
	wholeOrAbsent(t, c, src, "image")
	if _, err := os.Stat(w.Path("image")); errors.Is(err, os.ErrNotExist) {
		found := false
		for _, u := range w.Status().Unpublished {
			found = found || strings.HasSuffix(u.Path, "image") && u.SizeBytes == 64<<20
		}
		if !found {
			t.Errorf("the staged bytes are not listed: %+v", w.Status().Unpublished)
		}
	}
	run(t, "cp", src, w.Path("again"))
	sameEverywhere(t, c, src, "again")
}

// The leader's death stops nobody for more than 5 s.
func TestLeaderDies(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 4})
	leader := leaderOf(t, c)
	writer := c.Nodes[3]
	if writer == leader {
		writer = c.Nodes[2]
	}
	write := func(name string) time.Duration {
		watch := startWatch()
		if err := os.WriteFile(writer.Path(name), []byte(name), 0o644); err != nil {
			t.Errorf("write %s: %v", name, err)
		}
		return watch.took()
	}
	write("before")
	leader.Kill()
	took := write("after")
	t.Logf("the leader's death stopped a write for %v", took)
	if took > 5*time.Second {
		t.Error("that is too long")
	}
	leader.Start()
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
}

func leaderOf(t *testing.T, c *cluster.Cluster) *cluster.Node {
	t.Helper()
	var leader *cluster.Node
	c.Await(60*time.Second, "a leader", func() (bool, string) {
		id := c.Nodes[0].Status().Leader
		if id >= 1 && int(id) <= len(c.Nodes) {
			leader = c.Nodes[id-1]
		}
		return leader != nil, "none known"
	})
	return leader
}

// With two of three voters dead reads go on and changes fail fast; afterwards all agree.
func TestQuorumLost(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3})
	survivor := c.Nodes[1]
	if err := os.WriteFile(survivor.Path("file"), []byte("bytes"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.Nodes[0].Kill()
	c.Nodes[2].Kill()
	fails := func(limit time.Duration) {
		t.Helper()
		watch := startWatch()
		err := os.Mkdir(survivor.Path("dir"), 0o755)
		if took := watch.took(); err == nil || took > limit {
			t.Errorf("mkdir without a quorum: %v after %v, want an error within %v", err, took, limit)
		}
	}
	fails(5 * time.Second)
	fails(time.Second)
	watch := startWatch()
	if got, err := os.ReadFile(survivor.Path("file")); err != nil || string(got) != "bytes" {
		t.Errorf("read without a quorum: %q, %v", got, err)
	}
	if _, err := os.ReadDir(survivor.Mount); err != nil {
		t.Errorf("ls without a quorum: %v", err)
	}
	if took := watch.took(); took > time.Second {
		t.Errorf("reads took %v without a quorum", took)
	}
	if err := os.WriteFile(survivor.Path("new"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("create without a quorum: %v, want EROFS", err)
	}
	c.Nodes[0].Start()
	c.Nodes[2].Start()
	c.AwaitUp(c.Nodes...)
	if err := os.WriteFile(survivor.Path("new"), []byte("again"), 0o644); err != nil {
		t.Errorf("write with the quorum back: %v", err)
	}
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
	for _, n := range c.Nodes {
		if got, err := os.ReadFile(n.Path("new")); err != nil || string(got) != "again" {
			t.Errorf("%s: %q, %v", n.Name(), got, err)
		}
	}
}

// An open descriptor goes on reading its version when another node publishes a newer one.
func TestOpenFilesKeepTheirVersion(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	old, recent := bytes.Repeat([]byte("old "), 50_000), bytes.Repeat([]byte("new!"), 70_000)
	if err := os.WriteFile(c.Nodes[0].Path("f"), old, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(c.Nodes[1].Path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.WriteFile(c.Nodes[0].Path("f"), recent, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, old) {
		t.Errorf("the open descriptor reads %d bytes (%v), not its version", len(got), err)
	}
	if got, err := os.ReadFile(c.Nodes[1].Path("f")); err != nil || !bytes.Equal(got, recent) {
		t.Errorf("a new open reads %d bytes (%v), not the new version", len(got), err)
	}
}
