package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

const diskBytes = 1536 << 20

// startOnDisks makes a cluster whose nodes have a small disk each: a sparse image, mounted by loop.
func startOnDisks(t *testing.T, nodes int, rate string) *cluster.Cluster {
	t.Helper()
	c := start(t, cluster.Options{Nodes: nodes, Rate: rate, Manual: true})
	for i, n := range c.Nodes {
		ownDisk(t, n, diskBytes)
		if i == 0 {
			n.Init()
		} else {
			n.Join()
		}
		n.Start()
	}
	c.AwaitUp(c.Nodes...)
	return c
}

// ownDisk mounts a new file system at the node's data directory until the test's end.
func ownDisk(t *testing.T, n *cluster.Node, bytes int64) {
	t.Helper()
	image := n.Data + ".img"
	run(t, "truncate", "-s", fmt.Sprint(bytes), image)
	run(t, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", image)
	run(t, "mkdir", n.Data)
	run(t, "mount", "-o", "loop", image, n.Data)
	t.Cleanup(func() {
		n.Signal(syscall.SIGTERM) // a mount that is left by a kill keeps files of the disk open
		select {
		case <-n.Exited():
		case <-time.After(15 * time.Second):
			n.Kill()
		}
		if out, err := exec.Command("umount", n.Data).CombinedOutput(); err != nil {
			t.Errorf("umount %s: %v: %s", n.Data, err, out)
			exec.Command("umount", "-l", n.Data).Run()
		}
	})
}

func fillerOf(n *cluster.Node) string { return filepath.Join(n.Data, "another-programs-file") }

// fillDisk takes all space of a node's disk but leave bytes, as another program would.
func fillDisk(t *testing.T, n *cluster.Node, leave int64) {
	t.Helper()
	f, err := os.OpenFile(fillerOf(n), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	at := st.Size()
	for step := int64(64 << 20); step >= 4096; {
		var s unix.Statfs_t
		if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
			t.Fatal(err)
		}
		free := int64(s.Bavail)*s.Bsize - leave
		if step > free {
			step /= 2
			continue
		}
		if err := unix.Fallocate(int(f.Fd()), 0, at, step); errors.Is(err, unix.ENOSPC) {
			step /= 2
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		at += step
	}
}

func freeDisk(t *testing.T, n *cluster.Node) {
	t.Helper()
	if err := os.Remove(fillerOf(n)); err != nil {
		t.Fatal(err)
	}
}

// allRun fails the test if a daemon has died.
func allRun(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, n := range c.Nodes {
		if !n.Running() {
			t.Fatalf("%s died: %v\n%s", n.Name(), n.ExitErr(), n.Log())
		}
	}
}

// A disk filled by another program on one member, idle and in mid-transfer. The others go on, the
// member is owed and says why, and catches up when there is space.
func TestOneFullDisk(t *testing.T) {
	t.Parallel()
	c := startOnDisks(t, 3, "200mbit")
	writer, victim := c.Nodes[0], c.Nodes[2]
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, 24<<20, 1)
	run(t, "cp", src, writer.Path("before"))

	fillDisk(t, victim, 0) // idle
	run(t, "cp", src, writer.Path("idle"))
	for i := range 50 {
		if err := os.WriteFile(writer.Path(fmt.Sprintf("small%d", i)), []byte("bytes"), 0o644); err != nil {
			t.Errorf("write while a member's disk is full: %v", err)
		}
	}
	owed := nodeOf(t, writer.Status(), victim)
	if owed.OwedCount == 0 || !strings.Contains(owed.OwedReason, "full") {
		t.Errorf("status does not say that %s is full: %+v", victim.Name(), owed)
	}
	if w := strings.Join(victim.Status().Warnings, "\n"); !strings.Contains(w, "disk") ||
		!strings.Contains(w, "free some space") {
		t.Errorf("the full node does not warn: %q", w)
	}
	sum, _ := cluster.Digest(src)
	for _, name := range []string{"before", "idle"} { // its own, and what the others hold
		if got, err := cluster.Digest(victim.Path(name)); err != nil || got != sum {
			t.Errorf("the full node reads %s as %s, %v", name, got, err)
		}
	}
	refusedWrite(t, victim, "by-the-full-one")
	allRun(t, c)
	freeDisk(t, victim)
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)

	cp := startCopy(t, src, writer.Path("mid")) // in mid-transfer
	awaitMoving(t, c, writer, 0.1)
	fillDisk(t, victim, 0)
	if _, err := cp.wait(t, 60*time.Second); err != nil {
		t.Errorf("cp: %v: %s", err, cp.stderr.String())
	}
	allRun(t, c)
	freeDisk(t, victim)
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
	for _, name := range []string{"before", "idle", "mid"} {
		sameEverywhere(t, c, src, name)
	}
	worksEverywhere(t, c, "after")
}

// refusedWrite fails the test unless a node refuses new bytes with an error that says so.
func refusedWrite(t *testing.T, n *cluster.Node, name string) {
	t.Helper()
	err := os.WriteFile(n.Path(name), make([]byte, 1<<20), 0o644)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%s: write on a full disk: %v, want ENOSPC", n.Name(), err)
	}
}

// All disks full. Reads go on, changes are refused; with space again all works, and nothing is lost.
func TestAllDisksFull(t *testing.T) {
	t.Parallel()
	c := startOnDisks(t, 3, "")
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, 8<<20, 1)
	run(t, "cp", src, c.Nodes[0].Path("before"))
	for _, n := range c.Nodes {
		fillDisk(t, n, 0)
	}
	for _, n := range c.Nodes {
		refusedWrite(t, n, "refused-"+n.Name())
		if err := os.Mkdir(n.Path("dir-"+n.Name()), 0o755); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: mkdir: %v, want ENOSPC", n.Name(), err)
		}
	}
	sameEverywhere(t, c, src, "before")
	allRun(t, c)
	for _, n := range c.Nodes {
		freeDisk(t, n)
	}
	c.Await(60*time.Second, "writes work again", func() (bool, string) {
		for _, n := range c.Nodes {
			if err := os.WriteFile(n.Path("again"), []byte("bytes"), 0o644); err != nil {
				return false, err.Error()
			}
		}
		return true, ""
	})
	worksEverywhere(t, c, "after")
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
	sameEverywhere(t, c, src, "before")
}

// Removing works while all disks are full, on each node, as on ext4; it is how space is made.
func TestRemoveOnFullDisks(t *testing.T) {
	t.Parallel()
	const files = 200
	c := startOnDisks(t, 3, "")
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, 8<<20, 1)
	for _, n := range c.Nodes {
		dir := n.Path("dir-" + n.Name())
		must(t, os.MkdirAll(filepath.Join(dir, "below"), 0o755))
		run(t, "cp", src, filepath.Join(dir, "large"))
		for i := range files {
			must(t, os.WriteFile(filepath.Join(dir, "below", fmt.Sprint(i)), []byte("bytes"), 0o644))
		}
	}
	for _, n := range c.Nodes {
		fillDisk(t, n, 0)
	}
	for _, n := range c.Nodes {
		if err := os.Mkdir(n.Path("refused"), 0o755); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: mkdir: %v, want ENOSPC", n.Name(), err)
		}
		if err := os.RemoveAll(n.Path("dir-" + n.Name())); err != nil {
			t.Errorf("%s: remove on a full disk: %v", n.Name(), err)
		}
	}
	allRun(t, c)
	for _, n := range c.Nodes {
		if left, err := os.ReadDir(n.Path("")); err != nil || len(left) > 0 {
			t.Errorf("%s: %v are left, %v", n.Name(), left, err)
		}
	}
	for _, n := range c.Nodes {
		freeDisk(t, n)
	}
	c.Await(60*time.Second, "changes work again", func() (bool, string) {
		err := os.WriteFile(c.Nodes[0].Path("again"), []byte("bytes"), 0o644)
		return err == nil, fmt.Sprint(err)
	})
	worksEverywhere(t, c, "after")
	c.AwaitAgreement(60 * time.Second)
}

// A daemon starts on a full disk. It serves, or ends with the code of a full disk; with space it starts.
func TestStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	c := startOnDisks(t, 3, "")
	victim := c.Nodes[2]
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, 8<<20, 1)
	run(t, "cp", src, c.Nodes[0].Path("before"))
	for _, end := range []func(){victim.Stop, victim.Kill} {
		end()
		fillDisk(t, victim, 0)
		run(t, "cp", src, c.Nodes[0].Path("meanwhile"))
		victim.Launch()
		startedOrFull(t, c, victim)
		freeDisk(t, victim)
		if !victim.Running() {
			victim.Start()
		}
		c.AwaitUp(c.Nodes...)
		c.AwaitNothingOwed(60 * time.Second)
		c.AwaitAgreement(60 * time.Second)
		sameEverywhere(t, c, src, "before")
		sameEverywhere(t, c, src, "meanwhile")
	}
	worksEverywhere(t, c, "after")
}

// startedOrFull waits until a daemon is mounted, or has ended because of the disk.
func startedOrFull(t *testing.T, c *cluster.Cluster, n *cluster.Node) {
	t.Helper()
	ended := n.Exited()
	c.Await(60*time.Second, n.Name()+" starts or ends", func() (bool, string) {
		select {
		case <-ended:
			checkRefusal(t, "start on a full disk", n.Log(), n.ExitErr(), exitcode.Full, "free")
			return true, ""
		default:
		}
		return shows(n.Path("before")), "neither"
	})
}

func shows(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Files of one copy go past a full disk, and a node drains towards full disks: the command, status and the logs name
// them. With room again the drain ends.
func TestFullDisksAreNamed(t *testing.T) {
	t.Parallel()
	c := startOnDisks(t, 3, "")
	writer, second, third := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	must(t, os.Mkdir(writer.Path("one"), 0o755))
	writer.MustCLI("policy", writer.Path("one"), "--copies", "1")
	fillDisk(t, second, 0)
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, 3<<20, 1)
	for i := range 12 {
		run(t, "cp", src, writer.Path(fmt.Sprint("one/f", i)))
	}
	owed := nodeOf(t, writer.Status(), second)
	if owed.OwedCount == 0 || !strings.Contains(owed.OwedReason, "disk full: it refused a content of 3") {
		t.Errorf("%s is owed %d contents: %s", second.Name(), owed.OwedCount, owed.OwedReason)
	}
	fillDisk(t, third, 0)
	named := func(text string) bool {
		return strings.Contains(text, second.Name()+" has no room: it refused ") &&
			strings.Contains(text, third.Name()+" has no room: it refused ")
	}
	drain := second.Command(cluster.Binary(t), "drain", writer.Name(), "--data", second.Data)
	says, err := os.Create(filepath.Join(c.Dir, "drain"))
	must(t, err)
	defer says.Close()
	drain.Stderr = says
	must(t, drain.Start())
	said := func() string {
		b, err := os.ReadFile(says.Name())
		must(t, err)
		return string(b)
	}
	c.Await(60*time.Second, "the full nodes are named", func() (bool, string) {
		return named(said()) && named(second.MustCLI("status")), said()
	})
	for _, n := range c.Nodes {
		if !strings.Contains(n.Log(), "a node has no room for a content") {
			t.Errorf("the log of %s does not name them", n.Name())
		}
	}
	freeDisk(t, second)
	freeDisk(t, third)
	if err := drain.Wait(); err != nil {
		t.Errorf("the drain ends with %v: %s", err, said())
	}
	for i := range 12 {
		sameEverywhere(t, c, src, fmt.Sprint("one/f", i))
	}
}
