package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
	"golang.org/x/sys/unix"
)

// openFile is a file that a program has open while its node is taken for dead.
type openFile struct {
	name string
	file *os.File
	tmp  bool // gets its name after the outage
	want []byte
}

// G2, G4: the node of a program that has files open stands still, or its link is down, until the others have declared it down, and goes on.
// What the program writes, syncs, closes and links then is on every node under its name; a cp that ran meanwhile ends with 0.
func TestWriterWasTakenForDead(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 4, Rate: "200mbit"})
	src := filepath.Join(c.Dir, "image")
	cluster.Random(t, src, size[int64](48<<20, 256<<20), 1)
	for _, outage := range []struct {
		name       string
		writer     func() *cluster.Node
		begin, end func(n *cluster.Node)
	}{
		{"stop", func() *cluster.Node { return c.Nodes[0] }, func(n *cluster.Node) { n.Signal(syscall.SIGSTOP) }, func(n *cluster.Node) { n.Signal(syscall.SIGCONT) }},
		{"cut", func() *cluster.Node { return follower(c) }, func(n *cluster.Node) { c.Net().Cut(n.Index, true) }, func(n *cluster.Node) { c.Net().Cut(n.Index, false) }},
	} {
		t.Run(outage.name, func(t *testing.T) {
			w := outage.writer()
			must(t, os.Mkdir(w.Path(outage.name), 0o755))
			files := openAll(t, w, outage.name)
			image := filepath.Join(outage.name, "image")
			cp := startCopy(t, src, w.Path(image))
			awaitMoving(t, c, w, 0.1)
			outage.begin(w)
			func() {
				defer outage.end(w)
				c.AwaitState(60*time.Second, c.Nodes[3], w, "down")
			}()
			for _, f := range files {
				f.finish(t, w)
			}
			if _, err := cp.wait(t, 2*time.Minute); err != nil {
				t.Errorf("cp: %v: %s", err, cp.stderr.String())
			}
			for _, f := range files {
				for _, n := range c.Nodes {
					if got, err := os.ReadFile(n.Path(f.name)); err != nil || !bytes.Equal(got, f.want) {
						t.Errorf("%s: %s has %d bytes (%v), want %d", n.Name(), f.name, len(got), err, len(f.want))
					}
				}
			}
			c.AwaitUp(c.Nodes...)
			sameEverywhere(t, c, src, image)
		})
	}
}

// follower is a node among the first three that does not lead: a leader that is cut off is declared down by the next one, so late that it
// knows by then that no quorum answers, and refuses changes with EROFS.
func follower(c *cluster.Cluster) *cluster.Node {
	for _, n := range c.Nodes[1:3] {
		if st := n.Status(); st.Leader != 0 && st.Leader != st.Node {
			return n
		}
	}
	return c.Nodes[0]
}

// openAll opens files of all kinds and sizes.
func openAll(t *testing.T, w *cluster.Node, dir string) (files []*openFile) {
	t.Helper()
	for _, bytes := range []int64{0, 23, 100_000, 3 << 20} {
		for _, kind := range []string{"new", "existing", "tmpfile"} {
			f := &openFile{name: filepath.Join(dir, fmt.Sprint(kind, bytes)), tmp: kind == "tmpfile"}
			from := filepath.Join(t.TempDir(), "bytes")
			cluster.Random(t, from, bytes, uint64(bytes))
			var err error
			f.want, err = os.ReadFile(from)
			must(t, err)
			switch kind {
			case "new":
				f.file, err = os.OpenFile(w.Path(f.name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
			case "existing":
				must(t, os.WriteFile(w.Path(f.name), []byte("the version before"), 0o644))
				f.file, err = os.OpenFile(w.Path(f.name), os.O_WRONLY|os.O_TRUNC, 0)
			case "tmpfile":
				f.file, err = os.OpenFile(w.Path(dir), unix.O_TMPFILE|os.O_RDWR, 0o644)
			}
			must(t, err)
			files = append(files, f)
		}
	}
	return files
}

// finish writes, syncs, names and closes a file.
func (f *openFile) finish(t *testing.T, w *cluster.Node) {
	t.Helper()
	_, err := f.file.Write(f.want)
	if f.tmp {
		from := fmt.Sprintf("/proc/self/fd/%d", f.file.Fd())
		err = errors.Join(err, unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, w.Path(f.name), unix.AT_SYMLINK_FOLLOW))
	} else if len(f.want) == 23 {
		err = errors.Join(err, f.file.Sync())
	}
	if err = errors.Join(err, f.file.Close()); err != nil {
		t.Errorf("%s: %v", f.name, err)
	}
}
