package rdmc

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// paceCase is a universe of one group in which something is slow.
type paceCase struct {
	name   string
	factor float64
	// disturb makes something slow and returns who may be blamed; nobody if none.
	disturb func(rng *rand.Rand, u *universe, w *world) []int
}

const paceLink = 25e6

func slowNode(part float64) func(rng *rand.Rand, u *universe, w *world) []int {
	return func(rng *rand.Rand, u *universe, w *world) []int {
		victim := 1 + rng.IntN(len(w.nodes)-1)
		u.net.out[victim], u.net.in[victim] = paceLink*part, paceLink*part
		return []int{victim}
	}
}

// slowLink slows a link of the schedule that carries blocks down, in both directions.
func slowLink(part float64) func(rng *rand.Rand, u *universe, w *world) []int {
	return func(rng *rand.Rand, u *universe, w *world) []int {
		from := w.nodes[rng.IntN(len(w.nodes))].core
		var to []int
		for k := range uint64(16) {
			if t, ok := from.plan.Schedule(100).Outgoing(from.rank, 40+k); ok {
				to = append(to, t.Peer)
			}
		}
		peer := to[rng.IntN(len(to))]
		u.net.pair[[2]int{from.rank, peer}], u.net.pair[[2]int{peer, from.rank}] = paceLink*part, paceLink*part
		return []int{from.rank, peer}
	}
}

var paceCases = []paceCase{
	{"undisturbed", 3, func(*rand.Rand, *universe, *world) []int { return nil }},
	{"slow source", 3, func(_ *rand.Rand, _ *universe, w *world) []int {
		quick := w.delay
		w.delay = func(kind actionKind) time.Duration {
			if kind == actLoad {
				return 200 * time.Millisecond
			}
			return quick(kind)
		}
		return nil
	}},
	{"slow root", 3, func(_ *rand.Rand, u *universe, _ *world) []int { u.net.out[0] = paceLink / 8; return nil }},
	{"hiccups", DefaultSlowFactor, func(rng *rand.Rand, _ *universe, w *world) []int {
		w.delay = func(actionKind) time.Duration { // as with a processor that is elsewhere now and then
			if rng.IntN(20) == 0 {
				return time.Duration(rng.IntN(30_000_000))
			}
			return time.Duration(20_000 + rng.IntN(60_000))
		}
		return nil
	}},
	{"slow node", 3, slowNode(1.0 / 8)},
	{"node at a quarter", 2.5, slowNode(1.0 / 4)},
	{"slow link", 3, slowLink(1.0 / 16)},
	{"slow sink", 3, func(rng *rand.Rand, u *universe, w *world) []int {
		victim := 1 + rng.IntN(len(w.nodes)-1)
		w.slowSink = map[int]time.Duration{victim: time.Second}
		return []int{victim}
	}},
}

// TestSimStragglers slows one thing down, and holds who is blamed by whom: the right one in all seeds, nobody where nobody is slow.
func TestSimStragglers(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 4
	}
	for _, c := range paceCases {
		for _, n := range []int{8, 13} {
			t.Run(fmt.Sprintf("%s/n=%d", c.name, n), func(t *testing.T) {
				for seed := range seeds {
					paceOnce(t, c, n, seed)
				}
			})
		}
	}
}

func paceOnce(t *testing.T, c paceCase, n int, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 11))
	u := newUniverse(n, paceLink)
	machines := make([]int, n)
	for i := range machines {
		machines[i] = i
	}
	w := u.group(seed, 256<<10, PriorityNormal, func(int) coreLimits {
		l := bigLimits(0)
		l.slots, l.posted, l.pins = 16, 8, 4
		l.slow, l.slowFactor, l.slowTime = SlowEject, c.factor, 2*time.Second
		return l
	}, machines...)
	guilty := c.disturb(rng, u, w)
	u.message(w, 1, 1<<32, true)
	failed := func() bool { return slices.ContainsFunc(w.nodes, func(n *simNode) bool { return n.failed }) }
	if err := u.run(7*time.Second, failed); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	blamed := false
	for _, node := range w.nodes {
		for _, s := range node.slow {
			blamed = true
			if !slices.Contains(guilty, s.Rank) {
				t.Errorf("seed %d: rank %d blames %v, guilty are %v", seed, node.rank, s, guilty)
			}
			if !strings.Contains(s.String(), fmt.Sprintf("member %d takes", s.Rank)) {
				t.Errorf("evidence %q", s)
			}
			f := node.core.failure
			if cause, ok := f.cause.(*SlowError); f.reason != ReasonSlow || !slices.Equal(f.suspects, []int{s.Rank}) || !ok || cause.Straggler != s {
				t.Errorf("seed %d: %+v", seed, f)
			}
		}
	}
	if !blamed && guilty != nil {
		t.Errorf("seed %d: of %v nobody was blamed", seed, guilty)
		for _, node := range w.nodes {
			for _, p := range node.core.peerPaces((*lanePace).total) {
				if slices.Contains(guilty, p.Rank) {
					t.Logf("rank %d: %+v, %.3g", node.rank, p, p.PerSecond())
				}
			}
		}
	}
}
