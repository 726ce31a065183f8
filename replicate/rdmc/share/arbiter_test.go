package share

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// start is the time at which tests begin.
var start = time.Unix(0, 0)

func mustPlan(t *testing.T, a schedule.Algorithm, n int) *schedule.Plan {
	plan, err := schedule.NewPlan(a, n)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// TestArbiterWakesAllWhoseTurnItIs asks, completes, rests, joins and leaves at random: each share that waits, and may
// send after a step, is woken by that step.
func TestArbiterWakesAllWhoseTurnItIs(t *testing.T) {
	costs, sizes := []int64{Unit, 2 * Unit, 4 * Unit}, []int{48, 1000, 16 << 10, 1 << 20}
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var a Arbiter
		for range 2 + rng.IntN(4) {
			a.Add(&Share{Class: rng.IntN(classes)})
		}
		now, out := start, map[*Share][]int{}
		ask := func(s *Share) {
			bytes := sizes[rng.IntN(len(sizes))]
			if a.Ask(s, bytes, costs[rng.IntN(len(costs))], now) {
				out[s] = append(out[s], bytes)
			}
		}
		for step := range 300 {
			now = now.Add(time.Duration(rng.IntN(3)) * time.Millisecond)
			s := a.all[rng.IntN(len(a.all))]
			switch kind := rng.IntN(20); {
			case kind < 9:
				ask(s)
			case kind < 14 && s.flight > 0:
				a.Done(s, out[s][0], now)
				out[s] = out[s][1:]
			case kind == 14 && s.wants > 0:
				a.Rest(s, now)
			case kind == 15 && len(a.all) > 2:
				a.Leave(s)
				a.Add(&Share{Class: s.Class})
			case kind == 16:
				a.Tick(now)
			default:
				if s := a.Next(); s != nil {
					ask(s)
				}
			}
			for i, s := range a.all {
				if s.wants > 0 && a.eligible(s) && !slices.Contains(a.woken, s) {
					t.Fatalf("seed %d, step %d: group %d waits for its turn, has it, and is not woken", seed, step, i)
				}
			}
		}
	}
}

// TestArbiterAlone holds that a group alone is never refused and costs no memory.
func TestArbiterAlone(t *testing.T) {
	var a Arbiter
	s, idle := &Share{Class: 1}, &Share{Class: 2}
	a.Add(s)
	a.Add(idle)
	if n := testing.AllocsPerRun(1000, func() {
		if a.contended(s) || !a.Ask(s, 1000, Unit, time.Time{}) {
			t.Fatal("refused")
		}
		a.Done(s, 1000, time.Time{})
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if a.busy != 0 || a.flying != 0 || a.waiting != 0 || a.starving != 0 {
		t.Errorf("left over: %+v", a)
	}
}

// TestArbiterTurns follows two groups by hand: the one that is ahead waits, and is woken when the other has caught up,
// has nothing, or leaves.
func TestArbiterTurns(t *testing.T) {
	for name, end := range map[string]func(a *Arbiter, small *Share){
		"catches up": func(a *Arbiter, small *Share) {
			for range 9 {
				if !a.Ask(small, 100, Unit, start) {
					t.Fatal("who is behind is refused")
				}
				a.Done(small, 100, start)
			}
		},
		"has nothing": func(a *Arbiter, small *Share) { a.Done(small, 100, start) },
		"leaves":      func(a *Arbiter, small *Share) { a.Leave(small) },
	} {
		var a Arbiter
		big, small := &Share{Class: 1}, &Share{Class: 1}
		a.Add(big)
		a.Add(small)
		if !a.Ask(big, 1000, Unit, start) || !a.Ask(small, 100, Unit, start) ||
			!a.Ask(big, 1000, Unit, start) {
			t.Fatalf("%s: refused before anybody is ahead", name)
		}
		a.Done(big, 1000, start)
		if a.Ask(big, 1000, Unit, start) || a.Next() != nil {
			t.Fatalf("%s: two blocks ahead, and not refused", name)
		}
		if end(&a, small); a.Next() != big || a.Next() != nil || !a.Ask(big, 1000, Unit, start) {
			t.Errorf("%s: not woken", name)
		}
	}
}

// TestCostsOfManyChildren: a member that sends a block, or a small message, many times still takes turns with others,
// and of long messages gets no more bytes.
func TestCostsOfManyChildren(t *testing.T) {
	turns := func(cost int64, size int) (own, other int) {
		var a Arbiter
		x, y := &Share{Class: 1}, &Share{Class: 1}
		a.Add(x)
		a.Add(y)
		now := start
		for range 20000 {
			now = now.Add(time.Millisecond)
			okx, oky := a.Ask(x, size, cost, now), a.Ask(y, 1000, Unit, now)
			if okx {
				own += size
				a.Done(x, size, now)
			}
			if oky {
				other += 1000
				a.Done(y, 1000, now)
			}
			for a.Next() != nil {
				continue
			}
		}
		return own, other
	}
	for _, c := range []struct {
		name   string
		cost   int64
		size   int
		factor float64 // of the other's bytes, at most
	}{
		{"sequential, long", NewCosts(mustPlan(t, schedule.Sequential, 64), 0).Long, 1000, 1.1},
		{"sequential, one block", NewCosts(mustPlan(t, schedule.Sequential, 64), 0).Single, 1000, 70},
		{"to 2000", Cost(2000), 1000, 1100},
		{"small to 64", Cost(64), 48, 70},
	} {
		if own, other := turns(c.cost, c.size); other == 0 || float64(own) > c.factor*float64(other) {
			t.Errorf("%s: %d bytes for %d of the other", c.name, own, other)
		}
	}
}
