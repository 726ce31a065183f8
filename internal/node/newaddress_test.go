package node

import (
	"net"
	"testing"
	"time"

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

// A node gets a host name for its address. The address that the log knows leads to the node itself, and not to a copy.
func TestAddressGetsAName(t *testing.T) {
	t.Parallel() // it waits more than it works
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	l.Close()
	if err != nil {
		t.Fatal(err)
	}
	c := &clocked{t: t, dir: t.TempDir(), nodes: map[string]*clockedNode{}}
	n := c.add("n1", func(dir, _ string) error {
		_, err := Init(InitConfig{DataDir: dir, Listen: "127.0.0.1:" + port, Name: "n1"})
		return err
	})
	c.until("n1", "serving", serving)
	c.stop("n1")
	d := dataDir(n.dir)
	id, err := d.load(format.Known)
	if err == nil {
		id.Advertise = "localhost:" + port
		err = d.save(id)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.start("n1")
	t.Cleanup(func() { c.stop("n1") })
	ended := make(chan struct{})
	go func() {
		n.done.Wait()
		close(ended)
	}()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for serves := false; !serves; {
		select {
		case <-ended:
			t.Fatalf("it ended: %v", n.err)
		case <-tick.C:
			st, err := n.admin.Status(t.Context())
			serves = err == nil && serving(st)
		}
	}
}
