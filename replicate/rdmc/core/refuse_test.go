package core

import (
	"errors"
	"slices"
	"testing"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// TestDSN_4_2_StrayFirstBlock: the first block of a message comes after that message has ended. It is not kept in the
// place of the next message's first block.
func TestDSN_4_2_StrayFirstBlock(t *testing.T) {
	c := New(Config{Plan: simPlan(2), Rank: 1, BlockSize: simBlock, Epoch: 7, Unannounced: true, Limits: simLimits(1)})
	c.Pump()
	c.Connected(0)
	first := Trailer{Seq: 1, Block: 0, Size: simBlock, Epoch: 7, Length: simBlock}
	c.BlockReceived(0, c.lanes.all[0].ring[0], first, nil)
	c.BlockStored(slices.IndexFunc(c.slots.all, func(s slot) bool { return s.storing }), nil)
	if c.failure != nil || c.messages.first != 2 {
		t.Fatalf("the message did not end: %+v", c.failure)
	}
	c.BlockReceived(0, c.lanes.all[0].ring[0], first, nil)
	if c.failure == nil || c.failure.Reason != ReasonCorrupt || !slices.Equal(c.failure.Suspects, []int{0}) {
		t.Errorf("the same block again: %+v", c.failure)
	}
}

// TestDSN_4_2_RelayInTheSameTurn holds that a member which has credit sends a block on when it has received it,
// before it is stored.
func TestDSN_4_2_RelayInTheSameTurn(t *testing.T) {
	plan, err := schedule.NewPlan(schedule.Chain, 3)
	if err != nil {
		t.Fatal(err)
	}
	c := New(Config{Plan: plan, Rank: 1, BlockSize: simBlock, Epoch: 7, Limits: simLimits(1)})
	from, to := c.lanes.of[0], c.lanes.of[2]
	c.Connected(from)
	c.Connected(to)
	if err := c.Announce(Announcement{Seq: 1, Size: 3 * simBlock, Blocks: AllBlocks(3)}, NewBitmap(3)); err != nil {
		t.Fatal(err)
	}
	c.ControlReceived(to, &ControlMessage{epoch: 7, granted: 3})
	c.acts = nil
	slot := c.lanes.all[from].ring[0]
	c.BlockReceived(from, slot, Trailer{Seq: 1, Block: 0, Size: 3 * simBlock, Epoch: 7, Length: simBlock}, nil)
	if !slices.ContainsFunc(c.acts, func(a Action) bool { return a.Kind == ActSend && a.Lane == to && a.Slot == slot }) {
		t.Errorf("received and not sent on: %+v", c.acts)
	}
}

// TestDSN_4_1_QueueOfARelay: the root's queue is full again as soon as all members have its oldest message. A relay
// that has not heard yet that its last send of that message arrived takes the announcement of the newest all the same.
func TestDSN_4_1_QueueOfARelay(t *testing.T) {
	plan, err := schedule.NewPlan(schedule.Chain, 3)
	if err != nil {
		t.Fatal(err)
	}
	c := New(Config{Plan: plan, Rank: 1, BlockSize: simBlock, Epoch: 7, Limits: simLimits(1)})
	from, to := c.lanes.of[0], c.lanes.of[2]
	c.Connected(from)
	c.Connected(to)
	if err := c.Announce(Announcement{Seq: 1, Size: simBlock, Blocks: AllBlocks(1)}, NewBitmap(1)); err != nil {
		t.Fatal(err)
	}
	c.ControlReceived(to, &ControlMessage{epoch: 7, granted: 1})
	slot := c.lanes.all[from].ring[0]
	c.BlockReceived(from, slot, Trailer{Seq: 1, Block: 0, Size: simBlock, Epoch: 7, Length: simBlock}, nil)
	c.BlockStored(slot, nil)
	// And the root hears of both.
	c.ControlReceived(to, &ControlMessage{epoch: 7, granted: 1, reports: []report{{rank: 2, done: 1}}})
	for seq := uint64(2); seq <= MaxQueued+1; seq++ {
		if err := c.Announce(Announcement{Seq: seq}, NewBitmap(0)); err != nil {
			t.Fatalf("message %d: %v", seq, err)
		}
	}
	c.BlockSent(to, slot)
	if c.messages.first != MaxQueued+2 || c.failure != nil {
		t.Errorf("message %d is not over: %+v", c.messages.first, c.failure)
	}
	for seq := uint64(MaxQueued + 3); err == nil && seq <= 4*MaxQueued; seq++ { // one is left out: they wait for it
		err = c.Announce(Announcement{Seq: seq}, NewBitmap(0))
	}
	if !errors.Is(err, ErrInvalid) {
		t.Error("messages are announced without bound")
	}
}

// TestReportsOnTheHearerAreRefused: a neighbour reports to a member how far that member itself is. That is refused:
// only the member itself counts what it has stored.
func TestReportsOnTheHearerAreRefused(t *testing.T) {
	c := New(Config{Plan: simPlan(4), Rank: 1, BlockSize: simBlock, Epoch: 7, Limits: simLimits(1)})
	c.Connected(0)
	c.ControlReceived(0, &ControlMessage{epoch: 7, reports: []report{{rank: 1, done: 1<<64 - 1}}})
	if done := c.reports.members[1].done; done != 0 {
		t.Errorf("messages up to %d count as stored, though none came", done)
	}
	if f := c.failure; f == nil || f.Reason != ReasonCorrupt || !slices.Equal(f.Suspects, []int{c.lanes.all[0].peer}) {
		t.Errorf("%+v, want a corrupt message of the neighbour", f)
	}
}

// TestFailuresNameMembers: a failure blames ranks that the group does not have, by a neighbour's word and by the
// caller's. Such ranks are left out, so that each suspect has a name that can be looked up.
func TestFailuresNameMembers(t *testing.T) {
	told := Failure{Reason: ReasonSilent, Reporter: 1 << 20, Suspects: []int{2, 4, 1<<32 - 1}}
	c := New(Config{Plan: simPlan(4), Rank: 1, BlockSize: simBlock, Epoch: 7, Limits: simLimits(1)})
	c.Connected(0)
	c.ControlReceived(0, &ControlMessage{epoch: 7, failure: &told})
	if f := c.failure; f.Reporter != -1 || !slices.Equal(f.Suspects, []int{2}) {
		t.Errorf("heard of %v by %d, want rank 2 and nobody known", f.Suspects, f.Reporter)
	}
	c = New(Config{Plan: simPlan(4), Rank: 1, BlockSize: simBlock, Epoch: 7, Limits: simLimits(1)})
	c.Fail(ReasonAborted, 1, []int{-1, 3}, nil)
	if f := c.failure; f.Reporter != 1 || !slices.Equal(f.Suspects, []int{3}) {
		t.Errorf("failed by %v, reported by %d", f.Suspects, f.Reporter)
	}
}

// TestBlockOfAnotherEpochIsRefused: a block comes that is the right one but for its epoch. It is neither stored nor
// sent on, and its sender is to blame.
func TestBlockOfAnotherEpochIsRefused(t *testing.T) {
	plan, err := schedule.NewPlan(schedule.Chain, 3)
	if err != nil {
		t.Fatal(err)
	}
	c := New(Config{Plan: plan, Rank: 1, BlockSize: simBlock, Epoch: 7, Limits: simLimits(1)})
	from, to := c.lanes.of[0], c.lanes.of[2]
	c.Connected(from)
	c.Connected(to)
	if err := c.Announce(Announcement{Seq: 1, Size: simBlock, Blocks: AllBlocks(1)}, NewBitmap(1)); err != nil {
		t.Fatal(err)
	}
	c.ControlReceived(to, &ControlMessage{epoch: 7, granted: 1})
	c.TakeActions(nil)
	c.BlockReceived(from, c.lanes.all[from].ring[0], Trailer{Seq: 1, Size: simBlock, Epoch: 6, Length: simBlock}, nil)
	if f := c.Failure(); f == nil || f.Reason != ReasonCorrupt || !slices.Equal(f.Suspects, []int{0}) {
		t.Errorf("%+v, want a corrupt block of its sender", f)
	}
	for _, a := range c.TakeActions(nil) {
		if a.Kind == ActSend || a.Kind == ActStore {
			t.Errorf("action %d with a block of another epoch", a.Kind)
		}
	}
}

// TestRootWaitsForEachMember: members report one after the other that they have a message. At the root it ends with the
// last of them, whichever that is.
func TestRootWaitsForEachMember(t *testing.T) {
	for _, order := range [][]uint32{{1, 2, 3}, {3, 1, 2}, {2, 3, 1}} {
		c := New(Config{Plan: simPlan(4), BlockSize: simBlock, Epoch: 7, Limits: simLimits(0)})
		if err := c.Announce(Announcement{Seq: 1}, nil); err != nil {
			t.Fatal(err)
		}
		for _, rank := range order {
			if c.Messages().IsOver(1) {
				t.Errorf("%v: over before rank %d has it", order, rank)
			}
			c.ControlReceived(0, &ControlMessage{epoch: 7, reports: []report{{rank: rank, done: 1}}})
		}
		if !c.Messages().IsOver(1) {
			t.Errorf("%v: all have it, and it is not over: %+v", order, c.Failure())
		}
	}
}
