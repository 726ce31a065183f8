package schedule

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// network runs a schedule asynchronously: every rank does its sends one after another in step order, as soon as it
// has the block; a receipt may come whenever its source sends it.
type network struct {
	s Schedule
	// duration of a transfer.
	duration func(from, to int) float64
	ranks    []simRank
	arrivals arrivals
	now      float64
	got      int
}

type simRank struct {
	step uint64 // the next send
	busy bool
	has  []bool
}

type arrival struct {
	at       float64
	from, to int
	block    uint64
}

type arrivals []arrival

func (a arrivals) Len() int           { return len(a) }
func (a arrivals) Less(i, j int) bool { return a[i].at < a[j].at }
func (a arrivals) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *arrivals) Push(x any)        { *a = append(*a, x.(arrival)) }
func (a *arrivals) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

func newNetwork(s Schedule, duration func(from, to int) float64) *network {
	n := &network{s: s, duration: duration, ranks: make([]simRank, s.Members())}
	for rank := range n.ranks {
		n.ranks[rank].has = make([]bool, s.Blocks())
		for b := range n.ranks[rank].has {
			n.ranks[rank].has[b] = rank == 0
		}
	}
	return n
}

// run returns the time at which the last block arrived, or an error if some never did.
func (n *network) run() (float64, error) {
	for rank := range n.ranks {
		n.start(rank)
	}
	for n.arrivals.Len() > 0 {
		a := heap.Pop(&n.arrivals).(arrival)
		n.now = a.at
		n.ranks[a.from].busy = false
		n.ranks[a.to].has[a.block] = true
		n.got++
		n.start(a.from)
		n.start(a.to)
	}
	if want := int(n.s.Blocks()) * (n.s.Members() - 1); n.got != want {
		return 0, fmt.Errorf("deadlock: %d of %d transfers", n.got, want)
	}
	return n.now, nil
}

// start begins the rank's next send if it can.
func (n *network) start(rank int) {
	r := &n.ranks[rank]
	for ; !r.busy && r.step < n.s.Steps(); r.step++ {
		t, ok := n.s.Outgoing(rank, r.step)
		if !ok {
			continue
		}
		if !r.has[t.Block] {
			return
		}
		r.busy = true
		heap.Push(&n.arrivals, arrival{at: n.now + n.duration(rank, t.Peer), from: rank, to: t.Peer, block: t.Block})
	}
}

// TestDSN_4_3_RandomDelaysNeverDeadlock runs all algorithms with random durations.
func TestDSN_4_3_RandomDelaysNeverDeadlock(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		a := Algorithms()[rng.IntN(len(Algorithms()))]
		s, err := New(a, 2+rng.IntN(40), 1+rng.Uint64N(40))
		if err != nil {
			continue
		}
		n := newNetwork(s, func(int, int) float64 { return math.Exp(3 * rng.NormFloat64()) })
		if _, err := n.run(); err != nil {
			t.Fatalf("seed %d %v n=%d k=%d: %v", seed, a, s.Members(), s.Blocks(), err)
		}
	}
}

// TestDSN_4_5_Slack holds the paper's figure: in a steady step the average slack, the number of steps between
// the receipt of a block and the sending of it, is 2(1-(l-1)/(n-2)).
func TestDSN_4_5_Slack(t *testing.T) {
	for l := 2; l <= 7; l++ {
		n, k := 1<<l, uint64(60)
		s, err := New(Hypercube, n, k)
		if err != nil {
			t.Fatal(err)
		}
		want := 2 * (1 - float64(l-1)/float64(n-2))
		for step := uint64(2 * l); step < k-1; step++ {
			if got := averageSlack(s, step); math.Abs(got-want) > 1e-9 {
				t.Fatalf("n=%d step %d: average slack %.4f, want %.4f", n, step, got, want)
			}
		}
	}
}

func averageSlack(s Schedule, step uint64) float64 {
	var sum float64
	var senders int
	for rank := 1; rank < s.Members(); rank++ {
		t, ok := s.Outgoing(rank, step)
		if !ok {
			continue
		}
		senders++
		for back := uint64(1); back <= step; back++ {
			if in, ok := s.Incoming(rank, step-back); ok && in.Block == t.Block {
				sum += float64(back)
				break
			}
		}
	}
	return sum / float64(senders)
}

// TestDSN_4_5_SlowLink runs with one link at half speed. The paper's estimate for the hypercube is that
// lT'/(T+(l-1)T') of the bandwidth remains, a slowdown of 1+1/l at half speed; chain pays all of it.
func TestDSN_4_5_SlowLink(t *testing.T) {
	for _, c := range []struct {
		a     Algorithm
		n     int
		bound float64
	}{
		{Hypercube, 8, 1 + 1.0/3 + 0.05}, {Hypercube, 64, 1 + 1.0/6 + 0.05},
		{Circulant, 8, 1.45}, {Circulant, 13, 1 + 1.0/4 + 0.05}, {Circulant, 33, 1.25},
		{Twin, 13, 1.8}, {Chain, 8, 2},
	} {
		worst, where := slowLink(t, c.a, c.n)
		t.Logf("%v n=%d: one link at half speed costs at most %.2fx (%s)", c.a, c.n, worst, where)
		if worst > c.bound {
			t.Errorf("%v n=%d: slowdown %.3f, want at most %.3f", c.a, c.n, worst, c.bound)
		}
	}
}

// TestDSN_4_5_SlowLinkBound holds the paper's formula for more than half speed: with one link at bandwidth T' and the
// others at T the hypercube of 2^l members keeps at least lT'/(T+(l-1)T') of its bandwidth, whichever link it is,
// less what filling and draining the pipeline over the slow link takes in a message of finite length.
func TestDSN_4_5_SlowLinkBound(t *testing.T) {
	for _, l := range []int{2, 3, 4, 5, 6} {
		for _, slow := range []float64{0.9, 0.75, 0.5, 0.25} {
			bound := float64(l) * slow / (1 + float64(l-1)*slow)
			worst, where := slowLinkAt(t, Hypercube, 1<<l, 1/slow)
			t.Logf("n=%d, one link at %.2f: at least %.3f of the bandwidth stays (%s), the paper's bound is %.3f", 1<<l, slow,
				1/worst, where, bound)
			if 1/worst < bound*0.99 {
				t.Errorf("n=%d, one link at %.2f: %.3f of the bandwidth stays, want %.3f", 1<<l, slow, 1/worst, bound)
			}
		}
	}
}

// slowLink finds the worst slowdown over all links when one of them is at half speed.
func slowLink(t *testing.T, a Algorithm, n int) (worst float64, where string) {
	t.Helper()
	return slowLinkAt(t, a, n, 2)
}

// slowLinkAt finds the worst slowdown over all links when one of them takes times as long.
func slowLinkAt(t *testing.T, a Algorithm, n int, times float64) (worst float64, where string) {
	t.Helper()
	const k = 200
	plan, err := NewPlan(a, n)
	if err != nil {
		t.Fatal(err)
	}
	s := plan.Schedule(k)
	for from := range n {
		for _, to := range plan.Neighbours(from) {
			took, err := newNetwork(s, func(x, y int) float64 {
				if x == from && y == to {
					return times
				}
				return 1
			}).run()
			if err != nil {
				t.Fatal(err)
			}
			if slow := took / float64(s.Steps()); slow > worst {
				worst, where = slow, fmt.Sprintf("%d->%d", from, to)
			}
		}
	}
	return worst, where
}
