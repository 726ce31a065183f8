package core

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// asked is a schedule that counts the questions for what is sent and what is received.
type asked struct {
	schedule.Schedule
	sends, receipts int
}

func (a *asked) Outgoing(rank int, step uint64) (schedule.Transfer, bool) {
	a.sends++
	return a.Schedule.Outgoing(rank, step)
}

func (a *asked) Incoming(rank int, step uint64) (schedule.Transfer, bool) {
	a.receipts++
	return a.Schedule.Incoming(rank, step)
}

// TestLeafGoesOverNoSteps: members that relay nothing begin a long message without a look at each of its steps, under
// the group's lock.
func TestLeafGoesOverNoSteps(t *testing.T) {
	const k = 1 << 20
	for _, a := range []schedule.Algorithm{schedule.BinomialPipeline, schedule.Chain, schedule.BinomialTree,
		schedule.Sequential} {
		plan, err := schedule.NewPlan(a, 2)
		if err != nil {
			t.Fatal(err)
		}
		c := New(Config{Plan: plan, Rank: 1, BlockSize: 1, Limits: Limits{Slots: 8, Posted: 4, Pins: 2, Sends: 2}})
		s := &asked{Schedule: plan.Message(1, k)}
		m := &message{seq: 1, size: k, blocks: AllBlocks(k).Index(), have: NewBitmap(k), sched: s, sends: s.Sends(1),
			receives: s.Receives(1)}
		c.enqueue(m)
		c.Pump()
		if s.sends > 10 || !m.sentAll {
			t.Errorf("%v: asked %d times, all sends are prepared: %v", a, s.sends, m.sentAll)
		}
	}
}

// TestNobodyGoesOverTheTurnsOfOthers: all members begin and end a long message, with the algorithms that serve some
// members after others, without a look at each of the steps in which they have nothing to do.
func TestNobodyGoesOverTheTurnsOfOthers(t *testing.T) {
	const n, k = 9, 1 << 20
	for _, a := range []schedule.Algorithm{schedule.Sequential, schedule.BinomialTree} {
		plan, err := schedule.NewPlan(a, n)
		if err != nil {
			t.Fatal(err)
		}
		for rank := range n {
			c := New(Config{Plan: plan, Rank: rank, BlockSize: 1, Limits: Limits{Slots: 8, Posted: 4, Pins: 2, Sends: 2}})
			if err := c.Announce(Announcement{Seq: 1, Size: k, Blocks: AllBlocks(k)}, NewBitmap(k)); err != nil {
				t.Fatal(err)
			}
			m := c.messages.at(1)
			s := &asked{Schedule: m.sched}
			m.sched = s
			c.steps.in, c.steps.out = cursor{seq: 1}, cursor{seq: 1}
			if _, first, ok := c.steps.nextIn(); ok != (rank > 0) || first.Block != 0 {
				t.Errorf("%v: rank %d receives %+v first, %v", a, rank, first, ok)
			}
			if rank > 0 {
				c.steps.in.step += k - 1
				if _, last, ok := c.steps.nextIn(); !ok || last.Block != k-1 {
					t.Errorf("%v: rank %d receives %+v last, %v", a, rank, last, ok)
				}
				c.steps.in.step++
				c.steps.nextIn()
			}
			targets := sendsOf(plan.Message(1, 1), rank)
			if _, first, ok := c.steps.nextOut(); ok != (targets > 0) || first.Block != 0 {
				t.Errorf("%v: rank %d sends %+v first, %v", a, rank, first, ok)
			}
			if targets > 0 {
				c.steps.out.step += uint64(targets)*k - 1
				if _, last, ok := c.steps.nextOut(); !ok || last.Block != k-1 {
					t.Errorf("%v: rank %d sends %+v last, %v", a, rank, last, ok)
				}
				c.steps.out.step++
				c.steps.nextOut()
			}
			if c.steps.in.seq != 2 || c.steps.out.seq != 2 || s.sends+s.receipts > 10 {
				t.Errorf("%v: rank %d is at %+v and %+v, asked %d times what it sends, %d what it receives", a, rank,
					c.steps.in, c.steps.out,
					s.sends, s.receipts)
			}
		}
	}
}

// TestLeavesHandNothingOn goes over all steps of members that are said to relay nothing.
func TestLeavesHandNothingOn(t *testing.T) {
	for n := 2; n <= 20; n++ {
		for _, plan := range plansOf(n) {
			for rank := range n {
				if !share.NewCosts(plan, rank).Leaf {
					continue
				}
				for _, k := range []uint64{schedule.PartBlocks, schedule.PartBlocks + 1, 2*schedule.PartBlocks + 7} {
					if sends := sendsOf(plan.Message(1, k), rank); sends > 0 {
						t.Errorf("%v of %d: rank %d hands on %d of %d blocks", plan.Algorithm(), n, rank, sends, k)
					}
				}
			}
		}
	}
}

// plansOf returns the plans of all algorithms for n members, in two racks where it matters.
func plansOf(n int) (plans []*schedule.Plan) {
	racks := make([]int, n)
	for rank := range racks {
		racks[rank] = rank % 2
	}
	for _, a := range schedule.Algorithms() {
		plan, err := schedule.NewPlan(a, n)
		if a == schedule.Hybrid {
			plan, err = schedule.NewHybridPlan(racks)
		}
		if err == nil {
			plans = append(plans, plan)
		}
	}
	return plans
}

func sendsOf(s schedule.Schedule, rank int) (n int) {
	for step := range s.Steps() {
		if _, ok := s.Outgoing(rank, step); ok {
			n++
		}
	}
	return n
}
