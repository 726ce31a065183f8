package node

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

// threeVoters is a cluster of n1, n2 and n3; all of them vote.
func threeVoters(t *testing.T) *clocked {
	t.Helper()
	c := &clocked{t: t, dir: t.TempDir(), nodes: map[string]*clockedNode{}}
	t.Cleanup(func() {
		for name := range c.nodes {
			c.stop(name)
		}
	})
	c.add("n1", func(dir, listen string) error {
		_, err := Init(InitConfig{DataDir: dir, Listen: listen, Name: "n1"})
		return err
	})
	c.until("n1", "serving", serving)
	c.join("n2", "n1")
	c.until("n2", "serving", serving)
	c.join("n3", "n1")
	c.until("n1", "one of three voters", func(st admin.Status) bool { return len(st.Voters) == 3 && serving(st) })
	return c
}

// move gives a node that is stopped another address.
func (c *clocked) move(name string) {
	c.t.Helper()
	d := dataDir(c.nodes[name].dir)
	id, err := d.load(format.Known)
	if err == nil {
		id.Listen = freePort(c.t)
		id.Advertise = id.Listen
		err = d.save(id)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// A voter starts at another address while another voter is gone. The third dials the address that the log knows, and
// learns the new one from the voter itself: the two are a majority.
func TestVoterThatMovedWhileAnotherIsGone(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := threeVoters(t)
	c.stop("n2")
	c.stop("n1")
	c.move("n2")
	c.start("n2")
	c.until("n2", "serving", serving)
	c.until("n3", "serving", serving)
}

// The same when the third was away while the voter moved: the log of the two others knows the new address by then.
func TestVoterThatMovedWhileAnotherWasAway(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := threeVoters(t)
	c.stop("n3")
	c.stop("n2")
	c.move("n2")
	c.start("n2")
	c.until("n2", "serving", serving)
	c.stop("n1")
	c.start("n3")
	c.until("n3", "serving", serving)
	c.until("n2", "serving", serving)
}
