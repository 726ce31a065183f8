package rdmc

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// paceCase is a universe of one group in which something is slow.
type paceCase struct {
	name string
	// disturb makes something slow and returns who is to be blamed; -1 if nobody.
	disturb func(rng *rand.Rand, u *universe, w *world) int
	// coupled is up to how many members nobody gets ahead of who is slow, not even in a pulse, so that nothing is
	// proven.
	coupled int
}

const (
	paceLink   = 25e6
	paceFactor = 1.6
)

func slowNode(out, in float64) func(rng *rand.Rand, u *universe, w *world) int {
	return func(rng *rand.Rand, u *universe, w *world) int {
		victim := 1 + rng.IntN(len(w.nodes)-1)
		u.net.out[victim], u.net.in[victim] = paceLink*out, paceLink*in
		if in == 1 {
			return -1
		}
		return victim
	}
}

// slowLink slows a link of the schedule that carries blocks down, in both directions.
func slowLink(part float64) func(rng *rand.Rand, u *universe, w *world) int {
	return func(rng *rand.Rand, u *universe, w *world) int {
		from := w.nodes[rng.IntN(len(w.nodes))].core
		var to []int
		for k := range uint64(16) {
			if t, ok := from.plan.Schedule(100).Outgoing(from.rank, 40+k); ok {
				to = append(to, t.Peer)
			}
		}
		if len(to) == 0 {
			return slowLink(part)(rng, u, w)
		}
		peer := to[rng.IntN(len(to))]
		u.net.pair[[2]int{from.rank, peer}], u.net.pair[[2]int{peer, from.rank}] = paceLink*part, paceLink*part
		return -1
	}
}

// slowly has actions of a kind take so much longer.
func slowly(w *world, slow actionKind, by time.Duration) {
	quick := w.delay
	w.delay = func(kind actionKind) time.Duration {
		if kind == slow {
			return quick(kind) + by
		}
		return quick(kind)
	}
}

var paceCases = []paceCase{
	{name: "undisturbed", disturb: func(*rand.Rand, *universe, *world) int { return -1 }},
	{name: "slow source", disturb: func(_ *rand.Rand, _ *universe, w *world) int { slowly(w, actLoad, 20*time.Millisecond); return -1 }},
	{name: "slow root", disturb: func(_ *rand.Rand, u *universe, _ *world) int { u.net.out[0] = paceLink / 2; return -1 }},
	{name: "hiccups", disturb: func(rng *rand.Rand, _ *universe, w *world) int {
		w.delay = func(actionKind) time.Duration { // as with a processor that is elsewhere now and then
			if rng.IntN(20) == 0 {
				return time.Duration(rng.IntN(30_000_000))
			}
			return time.Duration(20_000 + rng.IntN(60_000))
		}
		return -1
	}},
	{name: "a little slower", disturb: func(rng *rand.Rand, u *universe, w *world) int { slowNode(0.95, 0.95)(rng, u, w); return -1 }},
	{name: "half a node", disturb: slowNode(0.5, 0.5), coupled: 4},
	{name: "half a downlink", disturb: slowNode(1, 0.5), coupled: 4},
	{name: "half an uplink", disturb: slowNode(0.5, 1)},
	{name: "half a link", disturb: slowLink(0.5)},
	{name: "slow link", disturb: slowLink(1.0 / 8)},
	{name: "slow sink", disturb: func(rng *rand.Rand, u *universe, w *world) int {
		victim := 1 + rng.IntN(len(w.nodes)-1)
		w.slowSink = map[int]time.Duration{victim: 300 * time.Millisecond}
		return victim
	}},
	{name: "busy elsewhere", disturb: func(rng *rand.Rand, u *universe, w *world) int {
		victim := 1 + rng.IntN(len(w.nodes)-1)
		u.net.in[victim] = paceLink / 2 // the rest is another's
		w.nodes[victim].elsewhere = 2
		return -1
	}},
}

var paceSeeds = flag.Uint64("pace.seeds", 1, "seeds of TestSimStragglers")

// TestSimStragglers slows one thing down, and holds who is blamed by whom: the right one in all seeds, nobody where
// nobody is slow.
func TestSimStragglers(t *testing.T) {
	for _, c := range paceCases {
		for _, n := range []int{3, 4, 8, 13} {
			t.Run(fmt.Sprintf("%s/n=%d", c.name, n), func(t *testing.T) {
				t.Parallel()
				for seed := range *paceSeeds {
					paceOnce(t, c, n, seed)
				}
			})
		}
	}
}

// paceWorld is a group of n alone in its universe.
func paceWorld(n int, seed uint64, policy SlowPolicy) (*universe, *world) {
	u := newUniverse(n, paceLink)
	machines := make([]int, n)
	for i := range machines {
		machines[i] = i
	}
	return u, u.group(seed, 64<<10, PriorityNormal, func(int) coreLimits {
		l := bigLimits(0)
		l.slots, l.posted, l.pins = 16, 8, 4
		l.slow, l.slowFactor, l.slowTime = policy, paceFactor, 2*time.Second
		return l
	}, machines...)
}

func paceOnce(t *testing.T, c paceCase, n int, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 11))
	u, w := paceWorld(n, seed, SlowEject)
	guilty := c.disturb(rng, u, w)
	u.message(w, 1, 1<<32, true)
	failed := func() bool { return slices.ContainsFunc(w.nodes, func(n *simNode) bool { return n.failed }) }
	if err := u.run(7*time.Second, failed); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	told := w.nodes[0].slow
	if guilty < 0 {
		if len(told) > 0 {
			t.Errorf("seed %d: nobody is slow, and blamed is %v", seed, told)
		}
		return
	}
	f := w.nodes[0].core.failure
	if n <= c.coupled && len(told) == 0 {
		return
	}
	if len(told) != 1 || told[0].Rank != guilty || f == nil || f.reason != ReasonSlow || !slices.Equal(f.suspects, []int{guilty}) {
		t.Errorf("seed %d: %d is slow, and blamed is %v; %+v", seed, guilty, told, f)
		for rank := range w.nodes {
			t.Logf("rank %d: %+v", rank, w.nodes[0].core.members[rank].figures)
		}
		return
	}
	if cause, ok := f.cause.(*SlowError); !ok || cause.Straggler != told[0] || !strings.Contains(cause.Error(), fmt.Sprintf("member %d takes", guilty)) {
		t.Errorf("seed %d: cause %v", seed, f.cause)
	}
	if u.now > 7*time.Second/2+100*time.Millisecond {
		t.Errorf("seed %d: found after %v", seed, u.now)
	}
}
