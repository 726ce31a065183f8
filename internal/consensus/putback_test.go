package consensus

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
)

// disks is a copy of a stopped node's data.
type disks struct {
	disk *simfs.Disk
	sm   *toy
}

// copyOf copies the data of a stopped node.
func (c *cluster) copyOf(id ID) disks {
	return disks{c.nodes[id].disk.PowerLoss(func(int) int { return 1 }), c.nodes[id].sm.crash()}
}

// putBack replaces the data of a stopped node by a copy.
func (c *cluster) putBack(id ID, d disks) { c.nodes[id].disk, c.nodes[id].sm = d.disk, d.sm }

// others are the nodes that are not among ids.
func (c *cluster) others(ids ...ID) (list []ID) {
	for id := range c.nodes {
		if !slices.Contains(ids, id) {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list
}

// endsShort waits until a node ends because it has lost what it had acknowledged.
func (c *cluster) endsShort(id ID) {
	c.t.Helper()
	select {
	case <-c.nodes[id].node.Done():
	case <-time.After(20 * time.Second):
		c.t.Fatalf("node %d goes on with a log that was put back", id)
	}
	if err := c.nodes[id].node.Err(); !errors.Is(err, ErrLogShort) || !strings.Contains(err.Error(), "join it again") {
		c.t.Fatal(err)
	}
}

// putBackWhileStopped stops all nodes, and puts the data of one back to a copy from before the last 20 proposals.
func (c *cluster) putBackWhileStopped(leader, put ID) {
	c.t.Helper()
	c.propose(leader, "a")
	c.converge()
	c.stop(put)
	older := c.copyOf(put)
	c.start(put)
	for i := range 20 {
		c.propose(leader, fmt.Sprint("later", i))
	}
	c.converge()
	<-time.After(settled)
	for id := range c.nodes {
		c.stop(id)
	}
	c.putBack(put, older)
}

// A voter was put back to an older copy while all were stopped. No leader remembers what it has acknowledged, but the
// other voters do.
func TestVoterPutBackIsFoundAfterAllHaveRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		leader := c.waitVoters(3)
		put := c.others(leader)[0]
		c.putBackWhileStopped(leader, put)
		for id := range c.nodes {
			c.start(id)
		}
		c.endsShort(put)
		for _, id := range c.others(put) {
			c.propose(id, fmt.Sprint("goes on at ", id))
		}
	})
}

// The same while one of the sound voters is away. The other one and the voter that was put back elect nobody, and when
// the third is there again, the two sound ones do.
func TestVoterPutBackDoesNotElect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		leader := c.waitVoters(3)
		put, other := c.others(leader)[0], c.others(leader)[1]
		c.putBackWhileStopped(leader, put)
		c.start(put)
		c.start(other)
		c.endsShort(put)
		if got := c.nodes[other].node.Status(); got.Leader != 0 {
			t.Fatalf("the two have a leader: %+v", got)
		}
		c.start(leader)
		c.propose(other, "goes on")
		if got := c.nodes[other].sm.state().Results; got["later0"] == 0 || got["later19"] == 0 {
			t.Errorf("what was acknowledged is lost: %v", got)
		}
	})
}

// settled is longer than what voters know of each other takes to get to the disks.
const settled = time.Second

// A voter is put back, and elects with one that was away before and knows nothing of what was lost. They go on. The
// third, which has all that was acknowledged before, keeps its state: it takes nothing of theirs, also when their log
// is longer than its own, and after restarts. It says so, and so does the leader.
func TestSoundVoterKeepsItsHistory(t *testing.T) {
	for _, more := range []int{5, 60} {
		t.Run(fmt.Sprint(more), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { soundVoterKeepsItsHistory(t, more) })
		})
	}
}

func soundVoterKeepsItsHistory(t *testing.T, more int) {
	c := newCluster(t, 3, nil)
	sound := c.waitVoters(3)
	put, away := c.others(sound)[0], c.others(sound)[1]
	c.propose(sound, "a")
	c.converge()
	c.stop(away)
	c.stop(put)
	older := c.copyOf(put)
	c.start(put)
	for i := range 20 {
		c.propose(sound, fmt.Sprint("second", i))
	}
	<-time.After(settled)
	c.stop(put)
	c.stop(sound)
	c.putBack(put, older)
	c.start(put)
	c.start(away)
	for i := range more {
		c.propose(away, fmt.Sprint("third", i))
	}
	had := c.nodes[sound].sm.state()
	for range 2 {
		c.start(sound)
		c.keeps(sound, had.Index)
		for _, id := range []ID{sound, c.leader()} {
			eventually(t, 20*time.Second, "it is said", func() bool {
				return strings.Contains(c.nodes[id].node.Status().Diverged, "older copy")
			})
		}
		eventually(t, 20*time.Second, "the two say the same", func() bool {
			return c.nodes[sound].node.Status().Diverged == c.nodes[c.leader()].node.Status().Diverged
		})
		c.propose(away, "goes on")
		c.keeps(sound, had.Index)
		c.stop(sound)
	}
}

// keeps checks that a node's state stays as it is.
func (c *cluster) keeps(id ID, index uint64) {
	c.t.Helper()
	for began := time.Now(); time.Since(began) < settled; <-time.After(10 * time.Millisecond) {
		got := c.nodes[id].sm.state()
		if got.Index != index || got.Results["second19"] == 0 || got.Results["third0"] != 0 {
			c.t.Fatalf("the state is at %d, was at %d", got.Index, index)
		}
	}
	if err := c.nodes[id].node.Err(); err != nil {
		c.t.Fatal(err)
	}
}
