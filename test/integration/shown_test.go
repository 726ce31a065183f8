package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G3: when rename has returned every node shows it, and the changes before it; so with fsync of a directory, and with close of a
// file that was not changed.
func TestRenameIsSeenEverywhere(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 4})
	here := c.Nodes[3]
	for i := range size(100, 1000) {
		next, current := fmt.Sprint("next", i), "current"
		removed := fmt.Sprint("removed", i)
		must(t, os.WriteFile(here.Path(removed), nil, 0o644))
		must(t, os.Symlink(fmt.Sprint("release", i), here.Path(next)))
		must(t, os.Remove(here.Path(removed)))
		switch i % 3 {
		case 0:
			must(t, os.Rename(here.Path(next), here.Path(current)))
		case 1:
			current = next
			dir, err := os.Open(here.Mount)
			must(t, err)
			must(t, dir.Sync())
			must(t, dir.Close())
		case 2:
			current = next
			f, err := os.OpenFile(here.Path("log"), os.O_CREATE|os.O_WRONLY, 0o644)
			must(t, err)
			must(t, f.Close())
		}
		for _, n := range c.Nodes {
			if to, err := os.Readlink(n.Path(current)); err != nil || to != fmt.Sprint("release", i) {
				t.Fatalf("round %d: %s shows %q, %v", i, n.Name(), to, err)
			}
			if _, err := os.Lstat(n.Path(removed)); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("round %d: %s still shows what was removed before: %v", i, n.Name(), err)
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
