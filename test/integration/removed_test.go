package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G4: files that were removed under a policy that keeps them come back with their bytes on all nodes: one that was
// removed while a node was down, one that a node never had, and one that is open elsewhere while it is removed.
func TestRemovedFilesComeBack(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3, Patience: 3})
	one, two, three := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	must(t, os.Mkdir(one.Path("kept"), 0o755))
	one.MustCLI("policy", "-r", one.Path("kept"), "--keep-removed", "24h")
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, 3<<20+5, 1)
	bytes, err := os.ReadFile(src)
	must(t, err)
	for _, name := range []string{"before", "open"} {
		one.MustRun("cp", src, one.Path("kept", name))
	}
	open, err := os.Open(two.Path("kept", "open"))
	must(t, err)
	defer open.Close()

	three.Kill()
	c.AwaitState(60*time.Second, one, three, "down")
	one.MustRun("cp", src, one.Path("kept", "during"))
	names := []string{"before", "open", "during"}
	for _, name := range names {
		must(t, os.Remove(one.Path("kept", name)))
	}
	three.Start()
	c.AwaitUp(one, two, three)
	list := three.MustCLI("versions", three.Path("kept"))
	for _, name := range names {
		if !strings.Contains(list, "/kept/"+name) {
			t.Errorf("%s is not listed:\n%s", name, list)
		}
	}
	for _, name := range names {
		three.MustCLI("restore", three.Path("kept", name), "--removed")
		refused(t, two, exitcode.NotFound, "", "restore", two.Path("kept", name), "--removed")
	}
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
	for _, n := range c.Nodes {
		for _, name := range names {
			if got, err := os.ReadFile(n.Path("kept", name)); err != nil || string(got) != string(bytes) {
				t.Errorf("%s at %s: %d bytes, %v", name, n.Name(), len(got), err)
			}
		}
	}
	got := make([]byte, len(bytes))
	if n, err := open.ReadAt(got, 0); err != nil || string(got[:n]) != string(bytes) {
		t.Errorf("what was open all the time: %d bytes, %v", n, err)
	}
}
