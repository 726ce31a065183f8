package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// scrubNode runs scrub --json on a node, which must end with a code.
func scrubNode(t *testing.T, n *cluster.Node, code int, args ...string) (r admin.ScrubResult) {
	t.Helper()
	out, stderr, err := n.CLI(append([]string{"scrub", "--json"}, args...)...)
	got := 0
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		got = ended.ExitCode()
	}
	if got != code {
		t.Fatalf("scrub %v: code %d, want %d (%v)\n%s%s", args, got, code, err, out, stderr)
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil && code != exitcode.Usage {
		t.Fatalf("scrub %v printed %q: %v", args, out, err)
	}
	return r
}

// versionBytes is what the test writes as a version of a file.
func versionBytes(t *testing.T, c *cluster.Cluster, name string, bytes int64, version uint64) string {
	t.Helper()
	src := filepath.Join(c.Dir, fmt.Sprintf("%s-%d", name, version))
	cluster.Random(t, src, bytes, version*100+uint64(bytes%97))
	run(t, "cp", src, c.Nodes[0].Path("d", name))
	return src
}

// A scrub of a running node finds what was damaged on its disk, kept versions included, mends it, and says so. A node
// that is alone says that the damage stays.
func TestScrub(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	victim := c.Nodes[1]
	held := filepath.Join(victim.Data, "content", "held")
	run(t, "mkdir", c.Nodes[0].Path("d"))
	c.Nodes[0].MustCLI("policy", c.Nodes[0].Path("d"), "--retain", "2")
	sources := map[string]string{}
	for name, bytes := range map[string]int64{"small": 70_000, "mib": 1 << 20, "large": 5<<20 + 17} {
		for version := range uint64(2) {
			sources[name] = versionBytes(t, c, name, bytes, version+1)
		}
	}
	run(t, "ln", "-s", "large", c.Nodes[0].Path("d", "link"))
	c.AwaitNothingOwed(60 * time.Second)
	if r := scrubNode(t, victim, exitcode.OK); r.Contents != 6 || r.Damaged != 0 {
		t.Fatalf("of sound contents: %+v", r)
	}
	data, sidecars := filesUnder(t, held, ".data"), filesUnder(t, held, ".meta")
	if len(data) != 6 || len(sidecars) != 6 {
		t.Fatalf("%d data files and %d sidecars of 6 contents", len(data), len(sidecars))
	}
	for _, path := range data {
		flip(t, path, 5000)
	}
	if r := scrubNode(t, victim, exitcode.OK, victim.Path("d", "mib")); r.Contents != 2 || r.Damaged != 2 ||
		r.Mended != 2 {
		t.Errorf("of one file: %+v", r)
	}
	r := scrubNode(t, victim, exitcode.OK, "--rate", "200MiB", victim.Path("d"))
	kept := 0
	for _, d := range r.List {
		if !d.Mended || d.Blocks == 0 || !strings.HasPrefix(d.Path, "/d/") {
			t.Errorf("%+v", d)
		}
		if d.State == "retained" {
			kept++
		}
	}
	if r.Contents != 6 || r.Damaged != 4 || r.Mended != 4 || len(r.List) != 4 || kept != 2 {
		t.Errorf("of a directory: %+v", r)
	}
	if err := errors.Join(os.Truncate(sidecars[0], 100), os.Remove(data[1]), os.Truncate(data[2], 9)); err != nil {
		t.Fatal(err)
	}
	if r := scrubNode(t, victim, exitcode.OK); r.Damaged != 3 || r.Mended != 3 {
		t.Errorf("of what was cut and removed: %+v", r)
	}
	if r := scrubNode(t, victim, exitcode.OK); r.Contents != 6 || r.Damaged != 0 {
		t.Errorf("afterwards: %+v", r)
	}
	for name, src := range sources {
		sameEverywhere(t, c, src, "d/"+name)
	}
	scrubRefusals(t, victim)
	damageOfARemovedFile(t, c, victim)
	aloneWithDamage(t, c, victim)
}

// scrubRefusals asks for what a scrub refuses, and interrupts one.
func scrubRefusals(t *testing.T, n *cluster.Node) {
	t.Helper()
	scrubNode(t, n, exitcode.Usage, n.Path("d", "link"))
	scrubNode(t, n, exitcode.Usage, "--rate", "fast")
	if _, stderr, err := n.CLI("scrub", n.Path("nothing")); err == nil || !strings.Contains(stderr, "no such file") {
		t.Errorf("scrub of nothing: %q, %v", stderr, err)
	}
	slow := n.Command(cluster.Binary(t), "scrub", "--data", n.Data, "--rate", "100KiB")
	progress := filepath.Join(n.Data+".scrub", "out")
	if err := os.MkdirAll(filepath.Dir(progress), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(progress)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	slow.Stdout, slow.Stderr = out, out
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- slow.Wait() }()
	deadline := time.After(60 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if text, _ := os.ReadFile(progress); strings.Count(string(text), "scrub: ") > 1 {
			break
		}
		select {
		case <-tick.C:
		case err := <-ended:
			t.Fatalf("a slow scrub ended: %v", err)
		case <-deadline:
			_ = slow.Process.Kill()
			t.Fatal("a slow scrub shows no progress")
		}
	}
	if err := slow.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a scrub that was interrupted ended with 0")
		}
	case <-deadline:
		t.Fatal("a scrub did not end with its interruption")
	}
}

// damageOfARemovedFile damages contents that no file needs any more: they are deleted soon, and no damage.
func damageOfARemovedFile(t *testing.T, c *cluster.Cluster, n *cluster.Node) {
	t.Helper()
	run(t, "rm", c.Nodes[0].Path("d", "small"))
	c.Await(60*time.Second, "the file is gone", func() (bool, string) {
		_, err := os.Stat(n.Path("d", "small"))
		return errors.Is(err, os.ErrNotExist), fmt.Sprint(err)
	})
	flipped := 0
	for _, path := range filesUnder(t, filepath.Join(n.Data, "content", "held"), ".data") {
		if st, err := os.Stat(path); err == nil && st.Size() == 70_000 {
			flip(t, path, 100)
			flipped++
		}
	}
	if r := scrubNode(t, n, exitcode.OK); flipped != 2 || r.Contents != 4 || r.Damaged != 0 {
		t.Errorf("%d contents of a removed file are damaged: %+v", flipped, r)
	}
}

// aloneWithDamage ends the other nodes: nobody can mend what is damaged at n.
func aloneWithDamage(t *testing.T, c *cluster.Cluster, n *cluster.Node) {
	t.Helper()
	for _, path := range filesUnder(t, filepath.Join(n.Data, "content", "held"), ".data") {
		flip(t, path, 200)
	}
	for _, other := range c.Nodes {
		if other != n {
			other.Stop()
		}
	}
	c.AwaitState(60*time.Second, n, c.Nodes[0], "down")
	r := scrubNode(t, n, exitcode.Damaged)
	if r.Contents != 4 || r.Damaged != 4 || r.Mended != 0 || len(r.List) != 4 || r.List[0].Reason == "" {
		t.Errorf("alone: %+v", r)
	}
}
