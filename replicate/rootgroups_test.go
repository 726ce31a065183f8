package replicate

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// A member that restarts breaks the idle groups that it was in: the next file gets a new group and reaches everybody.
func TestGroupOfAnEarlierIncarnationIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// The root ends each group that failed: its memory and its workers are let go.
func TestFailedGroupsEndAtTheirRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// refusingPeers are peers of which node 2 refuses to be connected, and node 3 waits for it.
type refusingPeers struct{ Peers }

func (p refusingPeers) Call(ctx context.Context, node meta.NodeID, kind Kind, payload []byte) ([]byte, error) {
	switch {
	case kind != KindConnect:
		return p.Peers.Call(ctx, node, kind, payload)
	case node == 2:
		return encodeOutcome(refusalOf(errNoGroup)), nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// A member whose end has gone refuses to be connected. Its neighbours, which wait for it, are not waited for, and are
// not to blame.
func TestNobodyIsWaitedForWhenAMemberRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		cfg := c.node(1).rep.cfg
		l := newRootGroups(refusingPeers{cfg.Peers}, cfg.Groups, cfg.Logger, time.Now)
		rg := &rootGroup{
			number: 1<<40 | 1<<24 | 77, members: []meta.NodeID{1, 2, 3},
			form: groupForm{BlockBytes: 256 << 10, Algorithm: schedule.BinomialPipeline},
		}
		_, err := l.setUp(t.Context(), rg)
		var fault *groupFault
		if !errors.As(err, &fault) || !errors.Is(err, errRefused) {
			t.Fatalf("error %v, want a refusal", err)
		}
		if want := []session.Suspect{{Node: 2, Reason: meta.OwedUnreachable}}; !slices.Equal(fault.suspects, want) {
			t.Errorf("suspects %v, want %v", fault.suspects, want)
		}
	})
}

// TestSessionThatIsGivenUpBlamesNobody: a session waits for a group that another one makes. When that one is given up,
// the members have done nothing wrong: the group is made again.
func TestSessionThatIsGivenUpBlamesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.setLeaderless()
		open := make(chan struct{})
		var connecting atomic.Int32
		c.setCalls(func(_, _ meta.NodeID, kind Kind) error {
			if kind == KindConnect {
				connecting.Add(1)
				<-open
			}
			return nil
		})
		l, self, members := c.node(1).rep.rootGroups, c.node(1).self(), []meta.NodeID{1, 2, 3}
		form := groupForm{BlockBytes: 256 << 10, Algorithm: schedule.BinomialPipeline}
		acquire := func(ctx context.Context, bytes int64) error {
			rg, err := l.acquire(ctx, self, members, bytes, form)
			if err == nil {
				l.release(rg, bytes)
			}
			return err
		}
		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		var first, all sync.WaitGroup
		first.Go(func() {
			if err := acquire(ctx, 1); !errors.Is(err, context.Canceled) {
				t.Errorf("a session that was given up: %v", err)
			}
		})
		for range groupsPerSet - 1 {
			all.Go(func() {
				if err := acquire(t.Context(), 100); err != nil {
					t.Error(err)
				}
			})
		}
		c.eventually("all groups are being made", func() bool { return connecting.Load() == groupsPerSet*2 })
		all.Go(func() {
			if err := acquire(t.Context(), 1); err != nil {
				t.Errorf("who waited for the group of a session that was given up: %v", err)
			}
		})
		c.eventually("a session waits for the group of another", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, set := range l.sets {
				if slices.ContainsFunc(set, func(rg *rootGroup) bool { return rg.busy == 2 }) {
					return true
				}
			}
			return false
		})
		giveUp()
		first.Wait()
		close(open)
		all.Wait()
	})
}

// TestEndThatIsNeverJoinedGoes: a root asks for an end of a group, and is not heard of any more: its word that nothing
// comes of the group was lost, or came before the end was made. The memory of the end is let go.
func TestEndThatIsNeverJoinedGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.setLeaderless()
		groups := c.node(2).rep.member.groups
		groups.patience = 50 * time.Millisecond
		open := groupOpen{1<<40 | 7, []meta.NodeID{1, 2, 3},
			groupForm{BlockBytes: 256 << 10, Algorithm: schedule.BinomialPipeline}}
		if _, err := groups.open(2, 1, open); err != nil {
			t.Fatal(err)
		}
		c.eventually("the end is gone", func() bool {
			groups.mu.Lock()
			defer groups.mu.Unlock()
			return len(groups.byNum) == 0 && len(groups.perRoot) == 0
		})
		groups.patience = time.Hour
		publishAll(t, c, 1, "f")
	})
}

// unread is a source of which nothing is read.
type unread struct{}

func (unread) ReadBlock(uint64, []byte) error { return errors.New("nobody waits for it") }
func (unread) failure() error                 { return nil }

// TestMemberThatIsBeingToldIsNotBlamed: a session ends while its message is being announced to its members. The other
// sessions on the group, which ends as well, hold that against no member.
func TestMemberThatIsBeingToldIsNotBlamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.setLeaderless()
		told, never := make(chan struct{}, 2), make(chan struct{})
		defer close(never)
		c.setCalls(func(_, _ meta.NodeID, kind Kind) error {
			if kind == KindBegin {
				told <- struct{}{}
				<-never
			}
			return nil
		})
		layout, err := content.NewLayout(content.Shape{Size: 3 << 20})
		if err != nil {
			t.Fatal(err)
		}
		blocks := blockset.NewBitmap(3)
		for i := range 3 {
			blocks.Set(uint64(i))
		}
		rep := c.node(1).rep
		run := &rootRun{
			cfg: rep.cfg, rootGroups: rep.rootGroups, layout: layout, source: unread{}, groupBlock: 256 << 10,
			status: rep.transfers.begin(rep.cfg.Clock, TransferStatus{}), events: make(chan session.RootEvent, 64),
		}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go func() { <-told; <-told; end() }()
		part := &partRun{number: 1, cancel: end}
		if err := run.multicast(ctx, part, session.Send{Epoch: 1, Members: []meta.NodeID{2, 3}, Blocks: blocks}); err == nil {
			t.Fatal("it has sent")
		}
		var failure *rdmc.GroupError
		if err := part.transfer.Err(); !errors.As(err, &failure) || len(failure.Suspects) > 0 {
			t.Errorf("the group has failed with %v, want no suspects", err)
		}
	})
}
