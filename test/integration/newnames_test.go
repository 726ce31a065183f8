package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// A node that makes many files in a tree of its own needs one log entry for each.
func TestNewFilesTakeOneEntry(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 4})
	const files = 200
	for _, n := range c.Nodes {
		top := n.Path(n.Name())
		must(t, os.Mkdir(top, 0o755))
		warm(t, top)
		before := n.Status().AppliedIndex
		for i := range files {
			dir := filepath.Join(top, fmt.Sprint("d", i/50))
			if i%50 == 0 {
				must(t, os.Mkdir(dir, 0o755))
			}
			must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), []byte("bytes"), 0o640))
		}
		entries := n.Status().AppliedIndex - before
		t.Logf("%s: %d entries for %d files", n.Name(), entries, files)
		if entries > files*3/2 {
			t.Errorf("%s: %d log entries for %d files", n.Name(), entries, files)
		}
		for _, other := range c.Nodes {
			cluster.SameTrees(t, top, other.Path(n.Name()))
		}
	}
}

// warm makes files in a directory until the log gives its new names to the node.
func warm(t *testing.T, dir string) {
	t.Helper()
	for i := range 20 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("warm", i)), nil, 0o600))
		<-time.After(20 * time.Millisecond)
	}
}

// The commands know a file that only this node knows so far, as its mount does.
func TestCommandsKnowANewFile(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	n := c.Nodes[0]
	must(t, os.Mkdir(n.Path("d"), 0o755))
	warm(t, n.Path("d"))
	before := n.Status().AppliedIndex
	f, err := os.OpenFile(n.Path("d", "f"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	must(t, err)
	defer f.Close()
	if entries := n.Status().AppliedIndex - before; entries > 0 {
		t.Logf("the file took %d log entries: others know it too", entries)
	}
	for _, command := range []string{"where", "versions"} {
		if _, stderr, err := n.CLI(command, n.Path("d", "f")); err != nil {
			t.Errorf("%s: %v: %s", command, err, stderr)
		}
	}
}

// O_EXCL lets in one program of all nodes, also where one node gives the names of the directory by itself.
func TestExclusiveCreate(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	for round := range size(12, 100) {
		dir, holder := fmt.Sprint("d", round), c.Nodes[round%3]
		must(t, os.Mkdir(holder.Path(dir), 0o755))
		warm(t, holder.Path(dir))
		open, err := os.OpenFile(holder.Path(dir, "open"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		must(t, err)
		if _, err := open.WriteString("the first"); err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			oneWins(t, c, filepath.Join(dir, fmt.Sprint("lock", i)))
		}
		for _, n := range c.Nodes {
			f, err := os.OpenFile(n.Path(dir, "open"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if !errors.Is(err, fs.ErrExist) {
				t.Errorf("%s makes a file that %s has open: %v", n.Name(), holder.Name(), err)
				_ = f.Close()
			}
		}
		must(t, open.Close())
		for _, n := range c.Nodes {
			if got, err := os.ReadFile(n.Path(dir, "open")); err != nil || string(got) != "the first" {
				t.Errorf("%s: %q, %v", n.Name(), got, err)
			}
		}
	}
}

// oneWins has programs of all nodes make a file at the same time.
func oneWins(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	var mu sync.Mutex
	var won []string
	var work sync.WaitGroup
	for _, n := range c.Nodes {
		for range 2 {
			work.Go(func() {
				f, err := os.OpenFile(n.Path(name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
				if errors.Is(err, fs.ErrExist) {
					return
				}
				if err == nil {
					_, err = f.WriteString(n.Name())
					err = errors.Join(err, f.Close())
				}
				mu.Lock()
				defer mu.Unlock()
				if won = append(won, n.Name()); err != nil {
					t.Errorf("%s: %s: %v", n.Name(), name, err)
				}
			})
		}
	}
	work.Wait()
	if len(won) != 1 {
		t.Errorf("%s was made by %v", name, won)
		return
	}
	for _, n := range c.Nodes {
		if got, err := os.ReadFile(n.Path(name)); err != nil || string(got) != won[0] {
			t.Errorf("%s: %s has %q, %v; made by %s", n.Name(), name, got, err, won[0])
		}
	}
}

// What a killed node had not published is gone with it, and its names are free.
func TestNamesOfAKilledNodeAreFree(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	n, other := c.Nodes[1], c.Nodes[2]
	must(t, os.Mkdir(n.Path("d"), 0o755))
	warm(t, n.Path("d"))
	f, err := os.Create(n.Path("d", "f"))
	must(t, err)
	defer f.Close()
	if _, err := f.WriteString("never closed"); err != nil {
		t.Fatal(err)
	}
	n.Kill()
	must(t, os.WriteFile(other.Path("d", "f"), []byte("another"), 0o600))
	n.Restart()
	c.AwaitUp(c.Nodes...)
	for _, n := range c.Nodes {
		if got, err := os.ReadFile(n.Path("d", "f")); err != nil || string(got) != "another" {
			t.Errorf("%s: %q, %v", n.Name(), got, err)
		}
	}
	warm(t, n.Path("d"))
}
