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

// openFile is a file that a program has open while its node counts as dead.
type openFile struct {
	name string
	file *os.File
	tmp  bool // gets its name after the outage
	want []byte
}

// G2, G4: the node of a program that has files open stands still, or its link is down, until the others have declared
// it down; then it goes on. What the program writes, syncs, closes and links then is on every node under its name; a cp
// that ran meanwhile ends with 0.
func TestWriterWasTakenForDead(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 4, Rate: "200mbit"})
	src := filepath.Join(c.Dir, "image")
	cluster.Random(t, src, size[int64](48<<20, 256<<20), 1)
	for _, outage := range outages() {
		t.Run(outage.name, func(t *testing.T) {
			w := c.Nodes[0]
			if outage.leads {
				w = leaderOf(t, c)
			}
			must(t, os.Mkdir(w.Path(outage.name), 0o755))
			files := openAll(t, w, outage.name)
			image := filepath.Join(outage.name, "image")
			cp := startCopy(t, src, w.Path(image))
			awaitMoving(t, c, w, 0.1)
			outage.pass(c, w)
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

// outage is what a writer's node goes through.
type outage struct {
	name  string
	leads bool          // the node leads
	cut   bool          // its link is down; otherwise it stands still
	lasts time.Duration // 0: until the others have declared it down
}

// outages are those of TestWriterWasTakenForDead. A leader that is cut off knows after some seconds that it has no
// quorum, and is declared down late, by the next one.
func outages() []outage {
	all := []outage{{name: "stop"}, {name: "cut", cut: true, leads: true},
		{name: "cut6s", cut: true, leads: true, lasts: 6 * time.Second}}
	if *long {
		all = append(all, outage{name: "cut12s", cut: true, leads: true, lasts: 12 * time.Second},
			outage{name: "stop30s", leads: true, lasts: 30 * time.Second})
	}
	return all
}

// pass lets an outage come and go.
func (o *outage) pass(c *cluster.Cluster, w *cluster.Node) {
	begin, end := func() { w.Signal(syscall.SIGSTOP) }, func() { w.Signal(syscall.SIGCONT) }
	if o.cut {
		begin, end = func() { c.Net().Cut(w.Index, true) }, func() { c.Net().Cut(w.Index, false) }
	}
	begin()
	defer end()
	if o.lasts == 0 {
		seer := c.Nodes[3]
		if w == seer {
			seer = c.Nodes[2]
		}
		c.AwaitState(60*time.Second, seer, w, "down")
		return
	}
	<-time.After(o.lasts)
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
