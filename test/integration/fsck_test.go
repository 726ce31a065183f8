package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// fsckNode runs fsck --json on a node, which must end with a code.
func fsckNode(t *testing.T, n *cluster.Node, code int, args ...string) (list []admin.FsckFinding, r admin.FsckResult) {
	t.Helper()
	out, stderr, err := n.CLI(append([]string{"fsck", "--json"}, args...)...)
	got := 0
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		got = ended.ExitCode()
	}
	if got != code {
		t.Fatalf("fsck %v: code %d, want %d (%v)\n%s%s", args, got, code, err, out, stderr)
	}
	return fsckLines(t, out)
}

// fsckLines reads what fsck --json prints.
func fsckLines(t *testing.T, out string) (list []admin.FsckFinding, r admin.FsckResult) {
	t.Helper()
	for text := range strings.Lines(out) {
		var line struct {
			Finding *admin.FsckFinding
			Result  *admin.FsckResult
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("fsck printed %q: %v", text, err)
		}
		if line.Finding != nil {
			list = append(list, *line.Finding)
		} else {
			r = *line.Result
		}
	}
	return list, r
}

// found is the one finding of a kind, at a node and a path; none of the others may be of that kind.
func found(t *testing.T, list []admin.FsckFinding, kind, node, path string) (f admin.FsckFinding) {
	t.Helper()
	n := 0
	for _, x := range list {
		if x.Kind == kind {
			f = x
			n++
		}
	}
	if n != 1 || f.Name != node || f.Path != path {
		t.Errorf("%d findings of kind %s, want one at %q on %q: %+v", n, kind, path, node, list)
	}
	return f
}

// A fsck of a running cluster names a content that was removed from one node's disk, a bit that flipped on another's,
// bytes that a killed program left, and a node that is down. It finds nothing wrong with what is well.
func TestFsck(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	seer, cut, rotten := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	run(t, "mkdir", seer.Path("d"), seer.Path("e"))
	for _, name := range []string{"d/cut", "e/rotten", "e/well"} {
		src := filepath.Join(c.Dir, filepath.Base(name))
		cluster.Random(t, src, 3<<20+int64(len(name)), uint64(len(name)))
		run(t, "cp", src, seer.Path(name))
	}
	run(t, "ln", seer.Path("e", "well"), seer.Path("d", "linked"))
	run(t, "ln", "-s", "well", seer.Path("e", "link"))
	c.AwaitNothingOwed(60 * time.Second)
	for _, args := range [][]string{nil, {"--contents"}, {"--contents", seer.Path("e")}} {
		list, r := fsckNode(t, seer, exitcode.OK, args...)
		want := uint64(3)
		if len(args) == 2 {
			want = 2
		}
		if len(list) != 0 || len(r.Nodes) != 3 || r.Contents != want || r.Inodes != 7 {
			t.Fatalf("fsck %v of what is well: %+v, %+v", args, list, r)
		}
		for _, n := range r.Nodes {
			if !n.Checked || n.Digest != "same" || n.Contents != int(want) || n.SizeBytes < 3<<20*int64(want) {
				t.Errorf("fsck %v: %+v", args, n)
			}
		}
	}
	if err := os.Remove(dataOf(t, cut, 3<<20+int64(len("d/cut")))); err != nil {
		t.Fatal(err)
	}
	flip(t, dataOf(t, rotten, 3<<20+int64(len("e/rotten"))), 1)
	list, r := fsckNode(t, seer, exitcode.OK)
	if f := found(t, list, admin.FsckDamaged, cut.Name(), "/d/cut"); !f.Heals || r.Findings != 1 || r.Left != 0 {
		t.Errorf("a removed content: %+v, %+v", f, r)
	}
	c.AwaitNothingOwed(60 * time.Second)
	list, r = fsckNode(t, seer, exitcode.OK, "--contents", seer.Path("e"))
	if f := found(t, list, admin.FsckDamaged, rotten.Name(), "/e/rotten"); !f.Heals || r.Findings != 1 {
		t.Errorf("a bit that flipped: %+v, %+v", f, r)
	}
	c.Await(60*time.Second, "all is mended", func() (bool, string) {
		out, _, err := seer.CLI("fsck", "--contents")
		return err == nil && strings.HasSuffix(out, "nothing is wrong.\n"), out
	})
	fsckOfADownNode(t, c)
}

// dataOf is the file of the content of a size on a node's disk.
func dataOf(t *testing.T, n *cluster.Node, size int64) string {
	t.Helper()
	for _, path := range filesUnder(t, filepath.Join(n.Data, "content", "held"), ".data") {
		if st, err := os.Stat(path); err == nil && st.Size() == size {
			return path
		}
	}
	t.Fatalf("%s has no content of %d bytes", n.Name(), size)
	return ""
}

// fsckOfADownNode stops a node. What it misses is owed to it, and it is not checked.
func fsckOfADownNode(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	seer, down := c.Nodes[0], c.Nodes[2]
	down.Stop()
	c.AwaitState(60*time.Second, seer, down, "down")
	src := filepath.Join(c.Dir, "missed")
	cluster.Random(t, src, 2<<20, 9)
	run(t, "cp", src, seer.Path("missed"))
	list, r := fsckNode(t, seer, exitcode.Faulty)
	found(t, list, admin.FsckUnchecked, down.Name(), "")
	owed := found(t, list, admin.FsckOwed, down.Name(), "")
	if owed.Heals || owed.Count != 1 || fmt.Sprint(owed.Paths) != "[/missed]" || !strings.Contains(owed.Text, "down") ||
		r.Left != 2 || r.Findings != 2 {
		t.Errorf("of a node that is down: %+v, %+v", owed, r)
	}
	if _, stderr, err := seer.CLI("fsck", seer.Path("nothing")); err == nil || !strings.Contains(stderr, "no such file") {
		t.Errorf("fsck of nothing: %q, %v", stderr, err)
	}
	fsckNode(t, seer, exitcode.Usage, seer.Path("e", "link"))
}
