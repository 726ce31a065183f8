package consensus

import (
	"fmt"
	"io"
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// shaky is a state machine that finds its state wrong at some entries.
type shaky struct {
	toy
	wrongAt map[uint64]bool
	order   []uint64
}

func (m *shaky) Apply(entries []Entry) ([]any, error) {
	for _, e := range entries {
		if m.wrongAt[e.Index] {
			delete(m.wrongAt, e.Index)
			return nil, fmt.Errorf("test: entry %d: %w", e.Index, ErrStateWrong)
		}
		m.order = append(m.order, e.Index)
	}
	return make([]any, len(entries)), nil
}

func (m *shaky) Restore(uint64, uint64, io.Reader) error { return nil }

// While the state is replaced, jobs wait, count as queued, and are done in their order afterwards, also when the
// state that took its place turns out to be wrong in the middle of them.
func TestHeldJobsKeepTheirOrder(t *testing.T) {
	sm := &shaky{wrongAt: map[uint64]bool{1: true, 3: true}}
	n := newNode(Config{Identity: Identity{ID: 1}, StateMachine: sm})
	defer n.cancel(ErrClosed)
	n.feed.reset(raftlog.Base{})
	n.state.conf = &raftpb.ConfState{}
	a := &applier{n: n, sm: sm}
	p := core.Proposal{Origin: 8, Data: []byte("x")}
	const jobs = 2000
	for i := range uint64(jobs) {
		if err := a.take(applyJob{session: 1, entries: []core.Committed{{Index: i + 1, Term: 1,
			Raw: p.Envelope(int64(i) + 1)}}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.applyQ.queued; len(sm.order) != 0 || got == 0 {
		t.Fatalf("applied %v; %d bytes count as queued", sm.order, got)
	}
	for range 2 {
		job := &restoreJob{head: snapHead{index: a.applied}, replace: true, done: make(chan error, 1)}
		if err := a.take(applyJob{restore: job}); err != nil {
			t.Fatal(err)
		}
		if err := <-job.done; err != nil {
			t.Fatal(err)
		}
	}
	for i, index := range sm.order {
		if index != uint64(i)+1 {
			t.Fatalf("entry %d is applied as number %d", index, i+1)
		}
	}
	if len(sm.order) != jobs || n.applyQ.queued != 0 || len(a.held) != 0 {
		t.Fatalf("%d applied, %d held, %d bytes count as queued", len(sm.order), len(a.held), n.applyQ.queued)
	}
}

// Entries come again, after a start from the log's base or when a follower changes its voter: the state machine gets
// each once.
func TestEntriesThatComeAgainAreAppliedOnce(t *testing.T) {
	sm := &shaky{}
	n := newNode(Config{Identity: Identity{ID: 1}, StateMachine: sm})
	defer n.cancel(ErrClosed)
	a := &applier{n: n, sm: sm}
	p := core.Proposal{Origin: 8, Data: []byte("x")}
	for _, part := range [][2]uint64{{1, 3}, {3, 5}, {2, 4}, {5, 5}, {5, 7}, {1, 9}} {
		var list []core.Committed
		for i := part[0]; i <= part[1]; i++ {
			list = append(list, core.Committed{Index: i, Term: 1, Raw: p.Envelope(int64(i))})
		}
		if err := a.take(applyJob{session: 1, entries: list}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(sm.order, want) {
		t.Fatalf("applied %v, want %v", sm.order, want)
	}
}
