package rdmc

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// asked is a schedule that counts the questions for what is sent.
type asked struct {
	schedule.Schedule
	sends int
}

func (a *asked) Outgoing(rank int, step uint64) (schedule.Transfer, bool) {
	a.sends++
	return a.Schedule.Outgoing(rank, step)
}

// TestLeafGoesOverNoSteps has those who hand nothing on begin a long message without a look at each of its steps, under the group's lock.
func TestLeafGoesOverNoSteps(t *testing.T) {
	const k = 1 << 20
	for _, a := range []schedule.Algorithm{schedule.BinomialPipeline, schedule.Chain, schedule.BinomialTree, schedule.Sequential} {
		plan, err := schedule.NewPlan(a, 2)
		if err != nil {
			t.Fatal(err)
		}
		c := newCore(plan, 1, 1, 0, false, coreLimits{slots: 8, posted: 4, pins: 2, sends: 2})
		s := &asked{Schedule: plan.Message(1, k)}
		m := &message{seq: 1, size: k, blocks: index(AllBlocks(k)), have: NewBitmap(k), sched: s, steps: s.Steps()}
		c.enqueue(m)
		c.pump()
		if s.sends > 10 || !m.sentAll {
			t.Errorf("%v: asked %d times, all sends are prepared: %v", a, s.sends, m.sentAll)
		}
	}
}

// TestLeavesHandNothingOn goes over all steps of those who are said to hand nothing on.
func TestLeavesHandNothingOn(t *testing.T) {
	for n := 2; n <= 20; n++ {
		for _, plan := range plansOf(n) {
			for rank := range n {
				if !newShareCosts(plan, rank).leaf {
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

// plansOf are those of all algorithms for n members, in two racks where it matters.
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
