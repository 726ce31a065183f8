package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
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

// mirror follows the changes of a directory by 'rdmcfs watch --changes --json', and knows the size of each file in it;
// -1 stands for a directory.
type mirror struct {
	t        *testing.T
	node     *cluster.Node
	cmd      *exec.Cmd
	lines    *bufio.Scanner
	position uint64
	sizes    map[string]int64 // by path from the root of the name space
}

// begin starts a watch on a node, which goes on from where the last one was.
func (m *mirror) begin(n *cluster.Node, dir string, args ...string) {
	m.t.Helper()
	args = append([]string{"watch", "--changes", "--json", "--data", n.Data, n.Path(dir)}, args...)
	m.node, m.cmd = n, n.Command(cluster.Binary(m.t), args...)
	out, err := m.cmd.StdoutPipe()
	if err == nil {
		m.cmd.Stderr = m.cmd.Stdout
		err = m.cmd.Start()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.lines = bufio.NewScanner(out)
	cmd := m.cmd
	m.t.Cleanup(func() { cmd.Process.Kill() })
}

func (m *mirror) end() {
	m.cmd.Process.Signal(syscall.SIGINT)
	if err := m.cmd.Wait(); err != nil {
		m.t.Errorf("watch of %s: %v", m.node.Name(), err)
	}
}

// next takes one line.
func (m *mirror) next() (path string) {
	m.t.Helper()
	if !m.lines.Scan() {
		m.t.Fatalf("the watch has ended: %v", m.lines.Err())
	}
	var ev admin.Event
	if err := json.Unmarshal(m.lines.Bytes(), &ev); err != nil || ev.Position < m.position {
		m.t.Fatalf("watch printed %q after position %d: %v", m.lines.Text(), m.position, err)
	}
	m.position = ev.Position
	c := ev.Change
	if c == nil {
		return ""
	}
	maps.DeleteFunc(m.sizes, func(p string, _ int64) bool { return p == c.Path || strings.HasPrefix(p, c.Path+"/") })
	switch c.What {
	case "gone":
	case "directory":
		m.look(c.Path)
	case "file":
		m.sizes[c.Path] = c.SizeBytes
	default:
		m.t.Errorf("%s is a %s", c.Path, c.What)
	}
	return c.Path
}

// look takes a directory from the mount, as a program does that finds a new one.
func (m *mirror) look(path string) {
	maps.Copy(m.sizes, sizesBelow(m.node, path))
}

// sizesBelow is what a node shows at a path and below it.
func sizesBelow(n *cluster.Node, path string) map[string]int64 {
	sizes := map[string]int64{}
	filepath.WalkDir(n.Path(path), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it has gone meanwhile: there will be a line about it
		}
		at := "/" + strings.TrimPrefix(strings.TrimPrefix(p, n.Path()), "/")
		if d.IsDir() {
			sizes[at] = -1
		} else if info, err := d.Info(); err == nil {
			sizes[at] = info.Size()
		}
		return nil
	})
	return sizes
}

// A program that follows the changes of a directory, now at one node and then at another one, knows what is there,
// though files are written, renamed and removed at all nodes all the time.
func TestWatchOfChangesMirrorsATree(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	n := c.Nodes
	for _, dir := range []string{"tree", "tree/a", "tree/b", "elsewhere"} {
		if err := os.Mkdir(n[0].Path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m := &mirror{t: t, sizes: map[string]int64{}}
	m.begin(n[1], "tree")
	m.next() // from here on nothing is missed
	m.look("tree")
	r := rand.New(rand.NewPCG(5, 5))
	for round := range 4 {
		if round > 0 {
			for range 20 { // while nobody watches
				if err := change(n[r.IntN(3)], r); err != nil {
					t.Fatal(err)
				}
			}
			m.begin(n[round-1], "tree", "--after", fmt.Sprint(m.position))
		}
		for range 40 {
			if err := change(n[r.IntN(3)], r); err != nil {
				t.Fatal(err)
			}
		}
		last := fmt.Sprintf("/tree/last%d", round)
		if err := os.WriteFile(n[2].Path(last), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for m.next() != last {
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("the last change came after %v", took)
		}
		if want := sizesBelow(m.node, "tree"); !maps.Equal(m.sizes, want) {
			t.Fatalf("round %d: the mirror has\n%v, and %s shows\n%v", round, m.sizes, m.node.Name(), want)
		}
		m.end()
	}
	n[2].Restart()
	_, stderr, err := n[2].CLI("watch", "--changes", "--after", fmt.Sprint(m.position))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 6 || !strings.Contains(stderr, "begin a watch without --after") {
		t.Errorf("after a position that the node does not know any more: %v, %s", err, stderr)
	}
}

// unless is an error, unless it is that one.
func unless(err, not error) error {
	if errors.Is(err, not) {
		return nil
	}
	return err
}

// change changes something below tree, or elsewhere.
func change(n *cluster.Node, r *rand.Rand) error {
	path := func() string {
		return n.Path([]string{"tree", "tree/a", "tree/b", "elsewhere"}[r.IntN(4)], fmt.Sprint("f", r.IntN(6)))
	}
	switch at := path(); r.IntN(6) {
	case 0:
		return unless(os.Remove(at), syscall.ENOENT)
	case 1:
		return unless(os.Rename(at, path()), syscall.ENOENT)
	case 2:
		dir := n.Path("tree", fmt.Sprint("d", r.IntN(2)))
		if err := unless(os.Mkdir(dir, 0o755), syscall.EEXIST); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "in"), make([]byte, r.IntN(9)), 0o644)
	case 3:
		return unless(os.Rename(n.Path("tree/d0"), n.Path(fmt.Sprint("tree/moved", r.IntN(1000)))), syscall.ENOENT)
	}
	return os.WriteFile(path(), make([]byte, r.IntN(2)*r.IntN(100_000)), 0o644)
}
