package rdmc

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// offload has the members of a world post sends ahead, and some of their pollers lag behind.
func (w *world) offload(rng *rand.Rand) {
	late := make([]time.Duration, len(w.nodes))
	w.late = func(rank int) time.Duration { return late[rank] }
	for _, n := range w.nodes[1:] {
		o := &n.core.offload
		o.ahead = 1 + rng.IntN(2*len(n.core.slots))
		o.lanes = rng.IntN(6) > 0 // mixed devices
		if rng.IntN(3) == 0 {
			late[n.rank] = time.Duration(rng.IntN(20_000))
		}
	}
}

// checkAhead holds a send that waits against the data-flow graph: it waits for the receive that brings its block, counted on its lane
// over all messages.
func (w *world) checkAhead(n *simNode, a action) {
	if a.after.count == 0 {
		return
	}
	w.ahead++
	c := n.core
	l := &c.lanes[a.after.lane]
	r := c.graph(c.slots[a.slot].m).Receipt(c.slots[a.slot].pos)
	behind := l.granted - a.after.count // receives posted on the lane behind that one
	if r.Peer != l.peer || behind >= uint64(len(l.ring)) || l.ring[len(l.ring)-1-int(behind)] != a.slot {
		w.fault("rank %d sends block %d after receipt %d of rank %d, the graph says %+v", n.rank, a.block, a.after.count, l.peer, r)
	}
}

// TestSimOffload runs random groups as TestSimNoDeadlock does, with sends posted ahead, pools as small as can be and pollers that are late.
func TestSimOffload(t *testing.T) {
	seeds := uint64(600)
	if testing.Short() {
		seeds = 100
	}
	ahead := 0
	for seed := range seeds {
		n, err := simOnce(seed, true)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		ahead += n
	}
	if ahead < int(seeds) {
		t.Errorf("%d sends were posted ahead in %d groups", ahead, seeds)
	}
}

// TestSimOffloadFollowsTheGraph: the numbers of the first message on each lane are those of schedule.Graph, and with room enough each
// relay's sends are all posted ahead.
func TestSimOffloadFollowsTheGraph(t *testing.T) {
	for _, algorithm := range []schedule.Algorithm{schedule.Chain, schedule.BinomialTree, schedule.Hypercube, schedule.Circulant, schedule.Twin} {
		const n, k = 8, 12
		plan, err := schedule.NewPlan(algorithm, n)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(5, plan, func(int) coreLimits {
			return coreLimits{slots: 4 * k, posted: 2 * k, pins: 2 * k, sends: 4 * k, silence: time.Hour, interval: 1}
		})
		posted := make([]map[schedule.Receipt]int, n)
		want := make([]map[schedule.Receipt]int, n)
		for rank, node := range w.nodes {
			posted[rank], want[rank] = map[schedule.Receipt]int{}, map[schedule.Receipt]int{}
			node.core.offload = offload{lanes: rank > 0, ahead: 8 * k}
			for r := range plan.Graph(rank, 1, k).Requests(0, 1<<20) {
				if r.Sends && rank > 0 {
					want[rank][r.Awaits]++
				}
			}
		}
		w.sees = func(node *simNode, a action) {
			if a.after.count > 0 {
				posted[node.rank][schedule.Receipt{Peer: node.core.lanes[a.after.lane].peer, Number: a.after.count - 1}]++
			}
		}
		w.late = func(rank int) time.Duration { return time.Duration(min(rank, 1)) * 10 * time.Millisecond } // all is posted before the first block is looked at
		a := Announcement{Seq: 1, Size: k * simBlock, Blocks: AllBlocks(k)}
		w.announce(a, none(k))
		w.loop(func() bool { return false })
		w.verify(a, none(k))
		if w.err != nil {
			t.Fatalf("%v: %v", algorithm, w.err)
		}
		for rank := range want {
			if !equalCounts(posted[rank], want[rank]) {
				t.Errorf("%v: rank %d posted %v ahead, the graph is %v", algorithm, rank, posted[rank], want[rank])
			}
		}
	}
}

func equalCounts(a, b map[schedule.Receipt]int) bool {
	for r, n := range a {
		if b[r] != n {
			return false
		}
	}
	return len(a) == len(b)
}

// TestSimOffloadCorrupt: a wrong block is handed on before it was looked at, but nobody that it reached ends the message, and the group
// fails everywhere.
func TestSimOffloadCorrupt(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 8))
		plan, _ := schedule.NewPlan(schedule.BinomialPipeline, 3+rng.IntN(8))
		w := newWorld(seed, plan, tiny(rng))
		w.offload(rng)
		const k = 20
		w.announce(Announcement{Seq: 1, Size: k * simBlock, Blocks: AllBlocks(k)}, none(k))
		w.flip[0] = true
		w.loop(func() bool { return false })
		if w.err != nil {
			t.Fatalf("seed %d: %v", seed, w.err)
		}
		for _, node := range w.nodes {
			if f := node.core.failure; f == nil || f.reason != ReasonCorrupt || node.rank > 0 && node.stored[1] {
				t.Fatalf("seed %d rank %d: %+v, stored %t", seed, node.rank, f, node.stored[1])
			}
		}
	}
}

// preempted is how long a message of k blocks takes, in the time of a block on a link, if each handling of a completion at a relay is
// late by a tenth of that, and by ten times that with a probability: the processor is somebody else's then.
func preempted(t *testing.T, cfg GroupConfig, n int, k uint64, probability float64) (mean float64) {
	t.Helper()
	const seeds = 10
	cfg.Members = make([]string, n)
	cfg.setDefaults()
	for seed := range uint64(seeds) {
		mean += preemptedOnce(t, seed, cfg, k, probability) / seeds
	}
	return mean
}

func preemptedOnce(t *testing.T, seed uint64, cfg GroupConfig, k uint64, probability float64) float64 {
	const unit = 100 * time.Microsecond
	n := len(cfg.Members)
	plan, err := cfg.plan()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(seed, plan, func(int) coreLimits { return cfg.limits() })
	f := &fluid{w: w, lanes: make([][][]*flow, n), unit: unit}
	for rank := range f.lanes {
		f.lanes[rank] = make([][]*flow, len(w.nodes[rank].core.lanes))
	}
	w.wire = f
	w.delay = func(actionKind) time.Duration { return unit / 50 }
	w.late = func(rank int) time.Duration {
		if rank > 0 && w.rng.Float64() < probability {
			return 10 * unit
		}
		return unit / 10
	}
	for _, node := range w.nodes {
		node.placed = true
		node.core.offload = offload{on: cfg.Offload, lanes: cfg.Offload && node.rank > 0, ahead: offloadAhead * cfg.Window}
	}
	a := Announcement{Seq: 1, Size: k * simBlock, Blocks: AllBlocks(k)}
	w.announce(a, none(k))
	all := func() bool {
		for _, node := range w.nodes[1:] {
			if !node.stored[1] {
				return false
			}
		}
		return true
	}
	w.loop(all)
	if w.err != nil || !all() {
		t.Fatal(w.err)
	}
	return float64(w.now) / float64(unit)
}

// TestSimOffloadAgainstPreemption holds what offloading is for: relays whose software is late, now and then by much, cost a chain less.
// In the pipeline its sends to several peers begin when they can, in no order between them, which costs more than it brings while
// software is in time; how much is only printed.
func TestSimOffloadAgainstPreemption(t *testing.T) {
	const n, k = 8, 200
	for _, algorithm := range []schedule.Algorithm{schedule.Chain, schedule.BinomialPipeline} {
		for _, sends := range []int{1, 0} {
			for _, probability := range []float64{0, 0.002, 0.01, 0.03} {
				by := preempted(t, GroupConfig{Algorithm: algorithm, MaxSends: sends, Offload: true}, n, k, probability)
				without := preempted(t, GroupConfig{Algorithm: algorithm, MaxSends: sends}, n, k, probability)
				t.Logf("%v of %d, MaxSends %d, %d blocks, late by 10 blocks with %.3f: %.0f block times offloaded, %.0f without",
					algorithm, n, sends, k, probability, by, without)
				if algorithm == schedule.Chain && by > without {
					t.Errorf("%.1f block times offloaded, %.1f without", by, without)
				}
			}
		}
	}
}
