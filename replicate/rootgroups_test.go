package replicate

import (
	"sync"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
)

// A member that restarts breaks the idle groups that it was in: the next file gets a new group and reaches everybody.
func TestGroupOfAnEarlierIncarnationIsNotUsed(t *testing.T) {
	c := newCluster(t, 3, 1)
	c.setLeaderless()
	for i, name := range []string{"before", "after"} {
		out, err := c.node(1).publish(c.create(1, name), meta.ContentID{}, randomBytes(uint64(i), 3<<20))
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Result.Owed) > 0 {
			t.Errorf("%s: owed %v", name, out.Result.Owed)
		}
		if got := c.node(1).rep.Counters(); got.Epochs > 0 {
			t.Errorf("%s: %d epochs: a group was not fresh", name, got.Epochs)
		}
		c.node(3).stop()
		c.node(3).start()
	}
}

// The root ends each group that failed: its memory and its workers are let go.
func TestFailedGroupsEndAtTheirRoot(t *testing.T) {
	c := newCluster(t, 4, 3)
	c.setLeaderless()
	var once sync.Once
	c.hub.setBlock(func(to meta.NodeID, i uint64) error {
		if to == 4 && i >= 20 {
			once.Do(c.node(4).cut)
			return errNoSuchNode
		}
		return nil
	})
	if _, err := c.node(1).publish(c.create(1, "f"), meta.ContentID{}, randomBytes(1, 4<<20)); err != nil {
		t.Fatal(err)
	}
	c.eventually("failed groups have ended", func() bool { return c.hub.unended(1) == 0 })
}
