package replicate

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// onlyStates is a store of which only states are asked.
type onlyStates struct {
	Store
	committed map[content.ID]bool
}

func (s *onlyStates) State(id content.ID) (content.State, bool) {
	return content.Committed, s.committed[id]
}

func (s *onlyStates) List(state content.State) (ids []content.ID) {
	for id := range s.committed {
		if state == content.Committed {
			ids = append(ids, id)
		}
	}
	return ids
}

func (s *onlyStates) Damaged() []content.ID { return nil }

func (s *onlyStates) Whole(id content.ID, _ int64) bool { return s.committed[id] }

func (s *onlyStates) Delete(id content.ID) error {
	delete(s.committed, id)
	return nil
}

// handClock is a clock that is set by hand.
type handClock struct{ now time.Time }

func (c *handClock) Now() time.Time { return c.now }

func (c *handClock) After(time.Duration) (<-chan time.Time, func()) { return nil, func() {} }

type noLog struct{}

func (noLog) Propose(context.Context, meta.Op) (meta.Result, error)           { return meta.Result{}, ErrUnknown }
func (noLog) Barrier(context.Context, uint64) ([]meta.NodeID, error)          { return nil, nil }
func (noLog) NewGroup(rdmc.GroupConfig) (Group, error)                        { return nil, ErrClosed }
func (noLog) Call(context.Context, meta.NodeID, Kind, []byte) ([]byte, error) { return nil, ErrClosed }

// TestKeepsWhatTheLogHasNotDecidedHere: a process committed a content and was killed before its state was synced. The
// next one begins before the publish, and may be cut off from the log for longer than retired contents are kept.
func TestKeepsWhatTheLogHasNotDecidedHere(t *testing.T) {
	c := metatest.New(t, 2)
	ahead := c.Session(1)
	store := &onlyStates{committed: map[content.ID]bool{storeID(ahead): true}}
	clock := &handClock{now: time.Unix(1, 0)}
	s, err := newStepped(Config{
		Self: func() meta.Lease { return c.Lease(1) }, Names: c.DB, Log: noLog{}, Peers: noLog{}, Groups: noLog{},
		Store:    store,
		IsLeader: func() bool { return false }, Clock: clock,
	}, func(meta.ContentID, bool) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	clock.now = clock.now.Add(time.Hour)
	s.Sweep()
	if _, ok := store.State(storeID(ahead)); !ok {
		t.Fatal("deleted a content that the log has not decided as far as it was applied")
	}
	c.Do(1, &meta.Abort{Session: ahead})
	s.Restored()
	clock.now = clock.now.Add(time.Hour)
	s.Sweep()
	if _, ok := store.State(storeID(ahead)); ok {
		t.Fatal("kept a content of an aborted session")
	}
}

// notingLog notes what is proposed.
type notingLog struct {
	noLog
	ops *[]meta.Op
}

func (l notingLog) Propose(_ context.Context, op meta.Op) (meta.Result, error) {
	*l.ops = append(*l.ops, op)
	return meta.Result{}, ErrUnknown
}

func steppedNode(t *testing.T, c *metatest.Cluster, node meta.NodeID, store Store, clock Clock) (*stepped, *[]meta.Op) {
	t.Helper()
	var ops []meta.Op
	s, err := newStepped(Config{
		Self: func() meta.Lease { return c.Lease(node) }, Names: c.DB, Log: notingLog{ops: &ops}, Peers: noLog{},
		Groups: noLog{}, Store: store,
		IsLeader: func() bool { return false }, Clock: clock,
	}, func(meta.ContentID, bool) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	return s, &ops
}

// TestKeepsWhatIsBeingReported: the log is about to believe that a content is here. A report may be under way for
// longer than retired contents are kept, while the node is cut off.
func TestKeepsWhatIsBeingReported(t *testing.T) {
	c := metatest.New(t, 2)
	id := c.Session(1)
	store := &onlyStates{committed: map[content.ID]bool{storeID(id): true}}
	clock := &handClock{now: time.Unix(1, 0)}
	c.Do(1, &meta.Abort{Session: id}) // nobody wants it
	s, _ := steppedNode(t, c, 1, store, clock)
	s.member.held.add(id)
	for range 3 {
		clock.now = clock.now.Add(time.Hour)
		s.Sweep()
	}
	if _, ok := store.State(storeID(id)); !ok {
		t.Fatal("deleted a content whose report may still be applied")
	}
	s.HeldTold([]meta.ContentID{id})
	clock.now = clock.now.Add(time.Hour)
	s.Sweep()
	if _, ok := store.State(storeID(id)); ok {
		t.Fatal("kept for ever")
	}
}

// TestBacklogDoesNotSettleAChangeOfMembers: a node has become a member for old contents by an eviction, and has a
// backlog of its own. Reporting the backlog must not make the log forget what it lacks of the others, and not what it
// has of them before that is reported by name: the report may be lost with the process.
func TestBacklogDoesNotSettleAChangeOfMembers(t *testing.T) {
	for _, holds := range []bool{false, true} {
		c, id, published, fresh := evictedHolder(t)
		s, ops := steppedNode(t, c, fresh, &onlyStates{committed: map[content.ID]bool{storeID(id): holds}},
			&handClock{now: time.Unix(1, 0)})
		s.Reconcile()
		for _, op := range *ops {
			if h, ok := op.(*meta.Held); ok && h.UpTo >= published {
				t.Fatalf("holds %t: node %d says that it has all up to %d, what was published at %d is not settled", holds, fresh,
					h.UpTo, published)
			}
		}
		if !holds {
			continue
		}
		if held := s.Held(); len(held) != 1 || held[0] != id {
			t.Fatalf("node %d reports %v, want %v", fresh, held, id)
		}
		c.Do(fresh, &meta.Held{Node: fresh, Contents: []meta.ContentID{id}})
		s.HeldTold([]meta.ContentID{id})
		*ops = nil
		s.Reconcile()
		if h, ok := (*ops)[0].(*meta.Held); len(*ops) != 1 || !ok || h.UpTo < published {
			t.Fatalf("node %d goes on with %+v", fresh, *ops)
		}
	}
}

// TestChangeOfMembersDoesNotWaitForWhatNoNodeHas: a node has become a member for an old content by an eviction, and
// then its last holder has lost it. All else that the node is owed is settled, and this content has a row of its own.
func TestChangeOfMembersDoesNotWaitForWhatNoNodeHas(t *testing.T) {
	c, id, _, fresh := evictedHolder(t)
	gone := []meta.ContentID{id}
	holders, err := c.DB.Holders(id)
	if err != nil || len(holders) != 1 {
		t.Fatalf("holders: %v %v", holders, err)
	}
	c.Do(holders[0], &meta.Unheld{Node: holders[0], Contents: gone, Reason: meta.OwedLost})
	s, ops := steppedNode(t, c, fresh, &onlyStates{}, &handClock{now: time.Unix(1, 0)})
	s.Reconcile()
	lost := s.member.lost.next()
	if !slices.Equal(lost, gone) {
		t.Fatalf("told as lost: %v, want %v", lost, gone)
	}
	c.Do(fresh, &meta.Unheld{Node: fresh, Contents: lost, Reason: meta.OwedLost})
	s.member.lost.done(lost)
	*ops = nil
	s.Reconcile()
	for _, op := range *ops {
		c.Do(fresh, op)
	}
	n, err := c.DB.Node(fresh)
	if err != nil || len(n.Backlog) != 0 || n.Recheck.Hi != 0 {
		t.Errorf("the backlog is still %v, the recheck %v: %v", n.Backlog, n.Recheck, err)
	}
	owed, err := c.DB.OwedTo(fresh, 0, 10)
	if err != nil || len(owed) != 1 || owed[0].Content != id || owed[0].Reason != meta.OwedLost {
		t.Errorf("owed: %v %v", owed, err)
	}
	c.Do(holders[0], &meta.Held{Node: holders[0], Contents: gone}) // its disk is back
	if owed, err = c.DB.OwedTo(fresh, 0, 10); err != nil || len(owed) != 1 {
		t.Errorf("owed when a holder is back: %v %v", owed, err)
	}
}

// evictedHolder has a content of two copies, one of whose holders is evicted. It returns the node that is to hold it
// now, which was down meanwhile.
func evictedHolder(t *testing.T) (c *metatest.Cluster, id meta.ContentID, published uint64, fresh meta.NodeID) {
	t.Helper()
	c = metatest.New(t, 4)
	c.Do(1, &meta.SetPolicy{Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 2}})
	res := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile})
	placed, err := c.DB.Members(res.Inode.Policy, res.Ino)
	if err != nil {
		t.Fatal(err)
	}
	p := &meta.Publish{Ino: res.Ino, Session: c.Session(1), Size: 5, Votes: meta.Votes{View: c.DB.View()}}
	for _, n := range placed {
		p.Votes.Add(n)
	}
	published = c.Do(1, p).Index
	c.Do(placed[0]%4+1, &meta.Evict{Node: placed[0]})
	members, err := c.DB.Members(res.Inode.Policy, res.Ino)
	if err != nil {
		t.Fatal(err)
	}
	fresh = members[0]
	if fresh == placed[1] {
		fresh = members[1]
	}
	c.Do(placed[1], &meta.Down{Node: fresh, Incarnation: 1})
	c.Boot(fresh)
	return c, p.Session, published, fresh
}

// TestDeletesNothingBeforeItIsLetIn: a process reported a content as held, and was killed before its state was
// synced. The next one begins before that report. What the state says of the content is old until the log has let the
// process in.
func TestDeletesNothingBeforeItIsLetIn(t *testing.T) {
	c := metatest.New(t, 2)
	id := c.Session(1)
	c.Do(1, &meta.Abort{Session: id}) // nobody wants it, by the state as it is now
	lease := c.Lease(1)
	lease.Incarnation++ // the boot of this process is not applied yet
	store := &onlyStates{committed: map[content.ID]bool{storeID(id): true}}
	clock := &handClock{now: time.Unix(1, 0)}
	s, err := newStepped(Config{
		Self: func() meta.Lease { return lease }, Names: c.DB, Log: noLog{}, Peers: noLog{}, Groups: noLog{}, Store: store,
		IsLeader: func() bool { return false }, Clock: clock,
	}, func(meta.ContentID, bool) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	clock.now = clock.now.Add(time.Hour)
	if s.Sweep(); !store.committed[storeID(id)] {
		t.Fatal("deleted a content by a state that is behind the reports of the process before")
	}
	c.Boot(1)
	if s.Sweep(); store.committed[storeID(id)] {
		t.Fatal("kept for ever")
	}
}

// A content was retired and is wanted again before it was deleted: its version was restored, or this node is to hold
// it again.
func TestKeepsWhatCameBack(t *testing.T) {
	c := metatest.New(t, 3)
	id, b := c.Session(1), []byte("wanted")
	publishFor(c, id, b, 1, 2)
	store := &onlyStates{committed: map[content.ID]bool{storeID(id): true}}
	clock := &handClock{now: time.Unix(1, 0)}
	s, _ := steppedNode(t, c, 2, store, clock)
	s.member.retired.add(id, clock.now)
	clock.now = clock.now.Add(time.Hour)
	if s.Sweep(); !store.committed[storeID(id)] {
		t.Fatal("deleted a content that this node is to hold")
	}
}
