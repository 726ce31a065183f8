package replicate

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

func TestNoVoteForASmallContentOfAnotherRoot(t *testing.T) {
	c := metatest.New(t, 2)
	s, store := storingNode(t, c, 2)
	id := c.Session(1)
	if st := s.Put(1, &putItem{Content: id, Root: contentRoot([]byte("what was sent")),
		Bytes: []byte("what came")}); st.Status != session.StatusRefused {
		t.Errorf("answers with status %d", st.Status)
	}
	if state, ok := store.State(storeID(id)); ok {
		t.Errorf("wrong bytes are kept: %v", state)
	}
}

// Only the node that a session is named after may bring its bytes before the log has published them.
func TestTakesSessionsOfTheirOwnWriterOnly(t *testing.T) {
	c := metatest.New(t, 3)
	s, store := storingNode(t, c, 2)
	small, large := c.Session(1), c.Session(1)
	b := []byte("another node's")
	if st := s.Put(3, &putItem{Content: small, Root: contentRoot(b), Bytes: b}); st.Status != session.StatusRefused {
		t.Errorf("node 3 puts a content of node 1: status %d", st.Status)
	}
	shape, err := content.Shape{Size: 4 << 20}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := s.member.announce(t.Context(), 3, announce{Content: large, Shape: shape}); err == nil ||
		st.Status != session.StatusRefused {
		t.Errorf("node 3 announces a session of node 1: status %d, %v", st.Status, err)
	}
	for _, state := range []content.State{content.Partial, content.Undecided, content.Committed} {
		if ids := store.List(state); len(ids) != 0 {
			t.Errorf("%v: %v", state, ids)
		}
	}
	vote(t, s, small, b)
}

// A session is given up by the node that began it, and by no other.
func TestSessionIsStoppedByItsRootOnly(t *testing.T) {
	s, id, _ := keptBlocks(t, randomBytes(1, 2<<20), 0)
	h := s.member.runs.find(id)
	end := func(from meta.NodeID) {
		t.Helper()
		if err := s.member.stopped(t.Context(), from, stop{Content: id, Drop: true}); err != nil {
			t.Fatal(err)
		}
	}
	end(3)
	if phase, err := ask(t.Context(), h, func() session.MemberPhase { return h.s.Phase() }); err != nil ||
		phase != session.Receiving {
		t.Fatalf("stopped by another node than its root: phase %d, %v", phase, err)
	}
	end(1)
	if _, err := ask(t.Context(), h, func() session.MemberPhase { return h.s.Phase() }); !errors.Is(err, errSessionOver) {
		t.Errorf("stopped by its root: %v", err)
	}
}

// What the bytes of a session must be is said by the node that began it, and by no other; no other brings blocks
// either.
func TestSessionIsFinishedByItsRootOnly(t *testing.T) {
	b := randomBytes(1, 2<<20)
	s, id, _ := keptBlocks(t, b, 0, 1)
	h := s.member.runs.find(id)
	right := content.Root(int64(len(b)), []content.Hash{content.Leaf(b[:1<<20]), content.Leaf(b[1<<20:])})
	for _, root := range [][32]byte{{1}, right} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // nothing ends the wait for a vote
		_, err := s.member.finish(ctx, 3, finish{Content: id, HasRoot: true, Root: root, WaitMs: 1000})
		cancel()
		known, askErr := ask(t.Context(), h, func() bool { _, known := h.s.Hash(); return known })
		if known || askErr != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("finished by another node than its root: taken %v, %v %v", known, err, askErr)
		}
	}
	err := h.begun(3, begin{Content: id}, rdmc.Announcement{Size: uint64(len(b))}, nil)
	if err == nil || h.transfer != nil {
		t.Errorf("blocks are taken from another node than the root: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), neverComes)
	defer cancel()
	st, err := s.member.finish(ctx, 1, finish{Content: id, HasRoot: true, Root: right, WaitMs: 1000})
	if err != nil || st.Status != session.StatusVoted {
		t.Errorf("finished by its root: answers %d, want %d: %s %v", st.Status, session.StatusVoted, st.Text, err)
	}
}
