package replicate

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// keptBlocks gives a member the blocks of a session that has ended with its root's incarnation, and announces the
// session that follows it.
func keptBlocks(t *testing.T, b []byte, blocks ...int) (*stepped, meta.ContentID, standing) {
	t.Helper()
	c := metatest.New(t, 3)
	s, store := storingNode(t, c, 2)
	before, shape := c.Session(1), content.Shape{Size: int64(len(b))}
	recv, err := store.Begin(storeID(before), shape)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range blocks {
		if err := recv.WriteBlock(int64(i), b[i*content.BlockBytes:][:recv.Layout().BlockLen(int64(i))], nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := recv.Close(); err != nil {
		t.Fatal(err)
	}
	c.Boot(1)
	s.member.verdicts.fenced(1, before.Incarnation)
	id := c.Session(1)
	encoded, err := shape.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.member.announce(t.Context(), 1, announce{Content: id, Shape: encoded, Follows: before})
	if err != nil {
		t.Fatal(err)
	}
	return s, id, st
}

// The session that follows one that was fenced has the blocks that were kept, and no others.
func TestSessionAfterAFenceClaimsTheKeptBlocksOnly(t *testing.T) {
	b := randomBytes(1, 3<<20+1000)
	for _, kept := range [][]int{nil, {1}, {0, 3}, {0, 1, 2}} {
		_, _, st := keptBlocks(t, b, kept...)
		var have []int
		for i := range 8 {
			if st.Have.Has(uint64(i)) {
				have = append(have, i)
			}
		}
		if st.Status != session.StatusReady || !slices.Equal(have, kept) {
			t.Errorf("kept %v: answers %d with blocks %v", kept, st.Status, have)
		}
	}
}

// All blocks of a session that was fenced are no vote for the session that follows: that needs its root's word, and
// the check.
func TestKeptBlocksAreNoVote(t *testing.T) {
	b := randomBytes(1, 2<<20)
	right := content.Root(int64(len(b)), []content.Hash{content.Leaf(b[:1<<20]), content.Leaf(b[1<<20:])})
	for root, want := range map[[32]byte]session.Status{right: session.StatusVoted, {1}: session.StatusRefused} {
		s, id, st := keptBlocks(t, b, 0, 1)
		if st.Status == session.StatusVoted || st.Have.Count() != 2 {
			t.Fatalf("answers %d with %d blocks before the root's word", st.Status, st.Have.Count())
		}
		ctx, cancel := context.WithTimeout(t.Context(), neverComes)
		got, err := s.member.finish(ctx, 1, finish{Content: id, HasRoot: true, Root: root, WaitMs: 1000})
		cancel()
		if err != nil || got.Status != want {
			t.Errorf("answers %d, want %d: %s %v", got.Status, want, got.Text, err)
		}
	}
}

// A session goes on from blocks of its own root's sessions only, whatever it is announced to follow.
func TestSessionFollowsItsOwnRootOnly(t *testing.T) {
	c := metatest.New(t, 3)
	s, store := storingNode(t, c, 2)
	b := randomBytes(1, 2<<20)
	other, shape := c.Session(3), content.Shape{Size: int64(len(b))}
	recv, err := store.Begin(storeID(other), shape)
	if err == nil {
		err = errors.Join(recv.WriteBlock(0, b[:content.BlockBytes], nil), recv.Close())
	}
	encoded, shapeErr := shape.AppendBinary(nil)
	if err = errors.Join(err, shapeErr); err != nil {
		t.Fatal(err)
	}
	st, err := s.member.announce(t.Context(), 1, announce{Content: c.Session(1), Shape: encoded, Follows: other})
	if err != nil || st.Status != session.StatusReady || st.Have.Count() != 0 {
		t.Errorf("answers %d with %d blocks of another node's session: %v", st.Status, st.Have.Count(), err)
	}
	if state, here := store.State(storeID(other)); !here || state != content.Partial {
		t.Errorf("the other node's session has lost its blocks: %v %v", state, here)
	}
}

// tightStore has no room for a new content as long as another one is there.
type tightStore struct {
	Store
	other content.ID
}

func (s *tightStore) BeginFrom(id, left content.ID, shape content.Shape) (*content.Receiving, bool, error) {
	if _, here := s.State(s.other); here {
		return nil, false, content.ErrNoSpace
	}
	return s.Store.BeginFrom(id, left, shape)
}

// What is kept of sessions that were fenced goes when its space is needed.
func TestKeptBlocksMakeRoom(t *testing.T) {
	c := metatest.New(t, 3)
	s, store := storingNode(t, c, 2)
	before, shape := c.Session(1), content.Shape{Size: 2 << 20}
	recv, err := store.Begin(storeID(before), shape)
	if err == nil {
		err = recv.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.member.cfg.Store = &tightStore{Store: store, other: storeID(before)}
	c.Boot(1)
	s.member.verdicts.fenced(1, before.Incarnation)
	recv, err = s.member.beginStore(c.Session(3), meta.ContentID{}, shape)
	if err != nil {
		t.Fatalf("no room beside what is kept of a fenced session: %v", err)
	}
	if err := recv.Discard(); err != nil {
		t.Error(err)
	}
}

// slowStore begins contents only when it may.
type slowStore struct {
	Store
	begun, may chan struct{}
}

func (s *slowStore) BeginFrom(id, left content.ID, shape content.Shape) (*content.Receiving, bool, error) {
	close(s.begun)
	<-s.may
	return s.Store.BeginFrom(id, left, shape)
}

// lateClock is a clock whose waits end when the test says so.
type lateClock struct {
	systemClock
	late chan time.Time
}

func (c *lateClock) After(time.Duration) (<-chan time.Time, func()) { return c.late, func() {} }

// An announcement is answered while the blocks that were kept are still being read; asked again, the member is ready
// with them.
func TestAnnouncementIsAnsweredWhileKeptBlocksAreRead(t *testing.T) {
	c := metatest.New(t, 3)
	s, store := storingNode(t, c, 2)
	slow := &slowStore{Store: store, begun: make(chan struct{}), may: make(chan struct{})}
	late := &lateClock{late: make(chan time.Time)}
	s.member.cfg.Store, s.member.cfg.Clock = slow, late
	shape, err := content.Shape{Size: 2 << 20}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), neverComes)
	defer cancel()
	a := announce{Content: c.Session(1), Epoch: 1, Shape: shape}
	var st standing
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		st, err = s.member.announce(ctx, 1, a)
	}()
	<-slow.begun
	select {
	case late.late <- time.Time{}:
	case <-ctx.Done():
	}
	<-answered
	if err != nil || st.Status != session.StatusPreparing || st.Epoch != 1 {
		t.Errorf("answers %d in epoch %d while it reads: %v", st.Status, st.Epoch, err)
	}
	close(slow.may)
	if st, err = s.member.announce(ctx, 1, a); err != nil || st.Status != session.StatusReady {
		t.Errorf("answers %d when asked again: %v", st.Status, err)
	}
}

// An announcement of the next epoch is handled when the log has fenced the session already, and nobody has come to the
// fence's event yet. What the session has is kept all the same: the fence does not make it worthless.
func TestAnnouncementInAFenceLeavesTheBlocks(t *testing.T) {
	c := metatest.New(t, 3)
	s, _ := storingNode(t, c, 2)
	s.member.cfg.Clock = SystemClock()
	b := randomBytes(1, 3<<20)
	before, shape := c.Session(1), content.Shape{Size: int64(len(b))}
	encoded, err := shape.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), neverComes)
	defer cancel()
	announced := func(a announce) standing {
		t.Helper()
		st, err := s.member.announce(ctx, 1, a)
		if err != nil || st.Status != session.StatusReady {
			t.Fatalf("announced %v: %+v, %v", a.Content, st, err)
		}
		return st
	}
	announced(announce{Content: before, Shape: encoded})
	h, fenced := s.member.runs.find(before), make(chan struct{})
	h.post(func() {
		if err := h.copy.recv.WriteBlock(1, b[1<<20:2<<20], nil); err != nil {
			t.Error(err)
		}
		<-fenced
	})
	h.post(func() { h.join(1, announce{Content: before, Epoch: 1, Shape: encoded}, shape) })
	c.Boot(1)
	s.member.verdicts.fenced(1, before.Incarnation)
	close(fenced)
	st := announced(announce{Content: c.Session(1), Shape: encoded, Follows: before})
	if st.Have.Count() != 1 || !st.Have.Has(1) {
		t.Errorf("%d blocks were kept, want one", st.Have.Count())
	}
}
