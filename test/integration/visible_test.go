package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G3: when a change of names has returned every node shows it; fsync and close, also of a file that was not changed,
// show the changes of attributes before them.
func TestNamesAreSeenEverywhere(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 4})
	here := c.Nodes[3]
	must(t, os.WriteFile(here.Path("file"), []byte("1"), 0o600))
	dir, err := os.Open(here.Mount)
	must(t, err)
	defer dir.Close()
	path := here.Path
	gone := func(p string) bool { _, err := os.Lstat(p); return errors.Is(err, fs.ErrNotExist) }
	mode := func(p string, want fs.FileMode) bool {
		st, err := os.Lstat(p)
		return err == nil && st.Mode().Perm() == want
	}
	linksTo := func(p, want string) bool { to, err := os.Readlink(p); return err == nil && to == want }
	steps := []struct {
		what string
		do   func(i int) error
		seen func(n *cluster.Node, i int) bool
	}{
		{"mkdir", func(i int) error { return os.Mkdir(path("d"), 0o755) }, func(n *cluster.Node, i int) bool {
			return mode(n.Path("d"), 0o755)
		}},
		{"symlink", func(i int) error { return os.Symlink(fmt.Sprint(i), path("next")) },
			func(n *cluster.Node, i int) bool { return linksTo(n.Path("next"), fmt.Sprint(i)) }},
		{"rename", func(i int) error { return os.Rename(path("next"), path("current")) },
			func(n *cluster.Node, i int) bool {
				return gone(n.Path("next")) && linksTo(n.Path("current"), fmt.Sprint(i))
			}},
		{"link", func(i int) error { return os.Link(path("file"), path("d/other")) },
			func(n *cluster.Node, i int) bool { return mode(n.Path("d/other"), 0o600) }},
		{"unlink", func(i int) error { return os.Remove(path("d/other")) }, func(n *cluster.Node, i int) bool {
			return gone(n.Path("d/other"))
		}},
		{"rmdir", func(i int) error { return os.Remove(path("d")) }, func(n *cluster.Node, i int) bool {
			return gone(n.Path("d"))
		}},
		{"chmod and fsync of the directory", func(i int) error {
			return errors.Join(os.Chmod(path("file"), 0o640), dir.Sync())
		},
			func(n *cluster.Node, i int) bool { return mode(n.Path("file"), 0o640) }},
		{"chmod and close", func(i int) error {
			return errors.Join(os.Chmod(path("file"), 0o600), openAndClose(path("file")))
		},
			func(n *cluster.Node, i int) bool { return mode(n.Path("file"), 0o600) }},
	}
	for i := range size(30, 300) {
		for _, s := range steps {
			if err := s.do(i); err != nil {
				t.Fatalf("round %d, %s: %v", i, s.what, err)
			}
			for _, n := range c.Nodes {
				if !s.seen(n, i) {
					t.Fatalf("round %d: %s does not show the %s", i, n.Name(), s.what)
				}
			}
		}
	}
}

func openAndClose(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
