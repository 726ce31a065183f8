package replicate

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// TestDiskErrorOfOneSessionIsNoneOfAnother: two sessions have the same group, as all groups of their members are busy.
// A member can't store the first one's file. It gets the second one's.
func TestDiskErrorOfOneSessionIsNoneOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.setLeaderless()
		shared, refused := make(chan struct{}), errors.New("the disk takes nothing of this file")
		goOn := sync.OnceFunc(func() { close(shared) })
		t.Cleanup(goOn)
		c.hub.setBlock(func(meta.NodeID, uint64) error {
			<-shared
			return nil
		})
		const small, large = 2 << 20, 4 << 20
		c.hub.setSink(func(to meta.NodeID, size uint64) error {
			if to == 3 && size == small {
				return refused
			}
			return nil
		})
		busy := func() (list []int) {
			l := c.node(1).rep.rootGroups
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, set := range l.sets {
				for _, rg := range set {
					list = append(list, rg.busy)
				}
			}
			slices.Sort(list)
			return list
		}
		var all sync.WaitGroup
		publish := func(name string, size int) (out *Outcome) {
			out = new(Outcome)
			ino := c.create(1, name)
			all.Go(func() {
				var err error
				if *out, err = c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, size)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
			return out
		}
		first := publish("small", small)
		for _, name := range []string{"a", "b", "c"} {
			publish(name, large)
		}
		c.eventually("all groups are busy", func() bool { return slices.Equal(busy(), []int{1, 1, 1, 1}) })
		second := publish("shared", large)
		c.eventually("two sessions have one group", func() bool { return slices.Equal(busy(), []int{1, 1, 1, 2}) })
		goOn()
		all.Wait()
		if c.node(3).heldHere(first.Content) {
			t.Error("a file that the disk did not take is there")
		}
		c.eventually("the member has the file of the other session", func() bool {
			return c.node(3).heldHere(second.Content)
		})
	})
}

// TestMemberWithoutASessionIsWellForOthers: a member does not know a session of which a message begins. It answers:
// other sessions on the group, which ends, hold nothing against it.
func TestMemberWithoutASessionIsWellForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.setLeaderless()
		layout, err := content.NewLayout(content.Shape{Size: 3 << 20})
		if err != nil {
			t.Fatal(err)
		}
		blocks := blockset.NewBitmap(3)
		blocks.Set(0)
		rep := c.node(1).rep
		run := &rootRun{
			cfg: rep.cfg, rootGroups: rep.rootGroups, layout: layout, source: unread{}, groupBlock: 256 << 10,
			status: rep.transfers.begin(rep.cfg.Clock, TransferStatus{}), events: make(chan session.RootEvent, 64),
		}
		part := &partRun{number: 1, cancel: func() {}}
		send := session.Send{Epoch: 1, Members: []meta.NodeID{2, 3}, Blocks: blocks}
		if err := run.multicast(t.Context(), part, send); !errors.Is(err, errRefused) {
			t.Errorf("sent to members that do not know the session: %v", err)
		}
		var failure *rdmc.GroupError
		if err := part.transfer.Err(); !errors.As(err, &failure) || len(failure.Suspects) > 0 {
			t.Errorf("the group has failed with %v, want no suspects", err)
		}
	})
}
