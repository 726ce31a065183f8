package rdmc

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// offload has the members of a world post sends ahead, and some of their pollers lag behind.
func (w *world) offload(rng *rand.Rand) {
	w.late = make(map[int]time.Duration)
	for _, n := range w.nodes[1:] {
		o := &n.core.offload
		o.ahead = 1 + rng.IntN(2*len(n.core.slots))
		o.lanes = rng.IntN(6) > 0 // mixed devices
		if rng.IntN(3) == 0 {
			w.late[n.rank] = time.Duration(rng.IntN(20_000))
		}
	}
}

// checkAhead holds a send that waits against the data-flow graph: it waits for the receive that brings its block, counted on its lane over all messages.
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

// TestSimOffloadFollowsTheGraph: the numbers of the first message on each lane are those of schedule.Graph, and with room enough each relay's
// sends are all posted ahead.
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
			for r := range plan.Graph(rank, k).Requests(0, 1<<20) {
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
		w.late = map[int]time.Duration{}
		for _, node := range w.nodes[1:] {
			w.late[node.rank] = 10 * time.Millisecond // all is posted before the first block is looked at
		}
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

// TestSimOffloadCorrupt: a wrong block is handed on before it was looked at, but nobody that it reached ends the message, and the group fails everywhere.
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
