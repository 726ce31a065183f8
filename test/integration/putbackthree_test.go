package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// forked is three voters, one of which was put back to an older copy of its directory while all were stopped.
type forked struct {
	*cluster.Cluster
	t                *testing.T
	sound, put, away *cluster.Node
}

// newForked writes files while one voter is away (or not), and puts the directory of another one back to how it was
// before. No node runs then.
func newForked(t *testing.T, away bool) *forked {
	c := start(t, cluster.Options{Nodes: 3})
	f := &forked{c, t, c.Nodes[0], c.Nodes[1], c.Nodes[2]}
	for i := range 5 {
		f.write(f.sound, fmt.Sprint("first", i))
	}
	c.AwaitNothingOwed(time.Minute)
	if away {
		f.away.Stop()
	}
	f.put.Stop()
	run(t, "cp", "-a", f.put.Data, f.put.Data+".older")
	f.put.Start()
	for i := range 12 {
		f.write(f.sound, fmt.Sprint("second", i))
	}
	<-time.After(4 * time.Second) // what the voters know of each other is on their disks
	for _, n := range []*cluster.Node{f.put, f.away, f.sound} {
		if n.Running() {
			n.Stop()
		}
	}
	must(t, errors.Join(os.Rename(f.put.Data, f.put.Data+".newer"), os.Rename(f.put.Data+".older", f.put.Data)))
	return f
}

func (f *forked) write(n *cluster.Node, name string) {
	f.t.Helper()
	must(f.t, os.WriteFile(n.Path(name), []byte(name), 0o644))
}

// shows checks that files are there and whole.
func (f *forked) shows(n *cluster.Node, kind string, count int) {
	f.t.Helper()
	for i := range count {
		name := fmt.Sprint(kind, i)
		if got, err := os.ReadFile(n.Path(name)); err != nil || string(got) != name {
			f.t.Errorf("%s: %s is %q, %v", n.Name(), name, got, err)
		}
	}
}

// A voter was put back to an older copy while all were stopped. Whatever leader there is, it does not come in again,
// and it says why. Nothing is lost.
func TestVoterOfThreeIsPutBack(t *testing.T) {
	t.Parallel()
	f := newForked(t, false)
	f.put.Launch()
	f.away.Launch() // it is not away in this test: it has everything
	f.Await(time.Minute, "the voter ends", func() (bool, string) {
		text := f.put.Log()
		return !f.put.Running() && strings.Contains(text, "shorter than what this node acknowledged") &&
			strings.Contains(text, "put that back"), text
	})
	f.sound.Start()
	for _, n := range []*cluster.Node{f.sound, f.away} {
		f.Await(time.Minute, "changes at "+n.Name(), func() (bool, string) {
			err := os.WriteFile(n.Path("later-"+n.Name()), nil, 0o644)
			return err == nil, fmt.Sprint(err)
		})
		f.shows(n, "first", 5)
		f.shows(n, "second", 12)
	}
}

// The same, and the third voter was away when the files were written that the second one has forgotten. These two know
// of nothing, and go on. The first voter comes later: it keeps what it has, takes no changes, and says the same as the
// others say.
func TestSoundVoterOfThreeKeepsItsState(t *testing.T) {
	t.Parallel()
	f := newForked(t, true)
	f.put.Launch()
	f.away.Start()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f.put.AwaitMounted(ctx) // its state is asked for below
	f.Await(time.Minute, "changes without the first voter", func() (bool, string) {
		err := os.WriteFile(f.away.Path("third0"), []byte("third0"), 0o644)
		return err == nil, fmt.Sprint(err)
	})
	for i := range 5 {
		f.write(f.away, fmt.Sprint("third", i))
	}
	for range 2 {
		f.sound.Start()
		said := map[string]bool{}
		f.Await(time.Minute, "both say so", func() (bool, string) {
			clear(said)
			var all strings.Builder
			for _, n := range f.Nodes {
				for _, w := range n.Status().Warnings {
					fmt.Fprintf(&all, "%s: %s\n", n.Name(), w)
					if strings.Contains(w, "older copy") {
						said[w] = true
					}
				}
			}
			return strings.Count(all.String(), "older copy") >= 2, all.String()
		})
		if len(said) != 1 {
			t.Errorf("the nodes say different things: %v", said)
		}
		f.keeps()
		f.sound.Stop()
	}
}

// keeps checks for a while that the sound voter shows its own files, and takes no changes, while the others go on.
func (f *forked) keeps() {
	f.t.Helper()
	for range 10 {
		<-time.After(time.Second)
		f.shows(f.sound, "first", 5)
		f.shows(f.sound, "second", 12)
		if err := os.Mkdir(f.sound.Path("dir"), 0o755); !errors.Is(err, syscall.EROFS) {
			f.t.Fatalf("a change at %s: %v, want EROFS", f.sound.Name(), err)
		}
	}
	if text := strings.Join(f.sound.Status().Warnings, "\n"); strings.Contains(text, "damaged") {
		f.t.Errorf("the state is said to be damaged: %s", text)
	}
	f.write(f.away, "later")
	f.shows(f.away, "first", 5)
	f.shows(f.away, "third", 5)
	if _, err := os.Stat(filepath.Join(f.away.Mount, "second0")); !errors.Is(err, os.ErrNotExist) {
		f.t.Errorf("second0 at %s: %v", f.away.Name(), err)
	}
}
