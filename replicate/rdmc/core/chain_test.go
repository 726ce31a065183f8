package core

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// slowEnd carries a block in a unit of time, and in several to one rank. Each link carries one at a time.
type slowEnd struct {
	w     *world
	to    int // the rank behind the slow link
	units time.Duration
	free  []time.Duration // by receiver: when its link is free
}

func (l *slowEnd) add(_, to, _, _ int, arrive func()) {
	took := 1000 * time.Nanosecond
	if to == l.to {
		took *= l.units
	}
	l.free[to] = max(l.free[to], l.w.now) + took
	l.w.at(l.free[to], arrive)
}

// chainOf runs a message of k blocks along a chain with a slow link, and returns how far members ran ahead of what they
// had sent on.
func chainOf(t *testing.T, n int, k uint64, limits Limits) (ahead uint64, w *world) {
	plan, err := schedule.NewPlan(schedule.Chain, n)
	if err != nil {
		t.Fatal(err)
	}
	w = newWorld(3, plan, func(int) Limits { return limits })
	w.wire = &slowEnd{w: w, to: n - 1, units: 5, free: make([]time.Duration, n)}
	w.delay = func(ActionKind) time.Duration { return 100 }
	for _, node := range w.nodes {
		node.placed = true
	}
	am := Announcement{Seq: 1, Size: k * simBlock, Blocks: AllBlocks(k)}
	w.announce(am, none(k))
	w.loop(func() bool {
		for _, node := range w.nodes[1 : n-1] {
			if m := node.core.messages.at(1); m != nil {
				ahead = max(ahead, m.received-min(m.received, uint64(len(node.sent))))
			}
		}
		return false
	})
	if w.err != nil {
		t.Fatal(w.err)
	}
	w.verify(am, none(k))
	if w.err != nil {
		t.Fatal(w.err)
	}
	return ahead, w
}

// TestChainKeepsStep: members before a slow link take no more blocks than they can hand on soon, so that no block
// loses its slot.
func TestChainKeepsStep(t *testing.T) {
	limits := Limits{Slots: 16, Posted: 6, Pins: 4, Sends: 2, Silence: time.Hour, Interval: time.Hour}
	ahead, w := chainOf(t, 6, 300, limits)
	if most := uint64(limits.Posted + chainLead + 2); ahead > most {
		t.Errorf("a member had %d blocks that it had not sent on, want at most %d", ahead, most)
	}
	for _, node := range w.nodes[1:] {
		if node.rereads > 0 {
			t.Errorf("rank %d read %d blocks back", node.rank, node.rereads)
		}
	}
}

// TestCreditIsToldSeldom: a control message grants several blocks.
func TestCreditIsToldSeldom(t *testing.T) {
	const k = 300
	_, w := chainOf(t, 4, k, Limits{Slots: 16, Posted: 6, Pins: 4, Sends: 2, Silence: time.Hour, Interval: time.Hour})
	for _, node := range w.nodes[1:] {
		if told := node.core.lanes.all[node.core.lanes.of[node.rank-1]].ctlSent; told > k/2 {
			t.Errorf("rank %d sent %d control messages for %d blocks", node.rank, told, k)
		}
	}
}

// TestChainGoesOnToTheNextMessage: receives for the blocks of the next messages are posted while the one before is
// still sent on.
func TestChainGoesOnToTheNextMessage(t *testing.T) {
	const n, messages = 8, 20
	plan, err := schedule.NewPlan(schedule.Chain, n)
	if err != nil {
		t.Fatal(err)
	}
	limits := Limits{Slots: 16, Posted: 6, Pins: 4, Sends: 2, Silence: time.Hour, Interval: time.Hour}
	w := newWorld(3, plan, func(int) Limits { return limits })
	for seq := range uint64(messages) {
		w.announce(Announcement{Seq: seq + 1, Size: simBlock, Blocks: AllBlocks(1)}, none(1))
	}
	most := make([]int, n)
	w.loop(func() bool {
		for rank, node := range w.nodes {
			most[rank] = max(most[rank], node.core.posted)
		}
		return false
	})
	for rank, posted := range most[1:] {
		if posted < limits.Posted || !w.nodes[rank+1].done[messages] {
			t.Errorf("rank %d posted %d receives at most, want %d", rank+1, posted, limits.Posted)
		}
	}
	if w.err != nil {
		t.Fatal(w.err)
	}
}
