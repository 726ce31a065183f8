package schedule

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// plansOf makes all plans for n members, the hybrid with several layouts of racks.
func plansOf(t *testing.T, n int) []*Plan {
	t.Helper()
	var plans []*Plan
	for _, a := range Algorithms() {
		p, err := NewPlan(a, n)
		switch {
		case err == nil:
			plans = append(plans, p)
		case !errors.Is(err, ErrInvalid):
			t.Fatal(err)
		}
	}
	for _, racks := range layouts(n) {
		p, err := NewHybridPlan(racks)
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, p)
	}
	return plans
}

// TestDSN_2_GraphIsTheSchedule holds that a graph has the transfers of the schedule, numbered as they follow each other on each queue
// pair, and that each send waits for the receive of its block, which is of an earlier step: found by walking over all steps before it.
func TestDSN_2_GraphIsTheSchedule(t *testing.T) {
	nMax, kMax := 32, uint64(64)
	if testing.Short() {
		nMax, kMax = 13, 20
	}
	for n := 2; n <= nMax; n++ {
		for _, plan := range plansOf(t, n) {
			for k := uint64(1); k <= kMax; k += 1 + k/5*uint64(n)/8 { // all small messages, some larger ones
				for rank := range n {
					if err := checkGraph(plan, rank, k); err != nil {
						t.Fatalf("%v n=%d k=%d rank %d: %v", plan.Algorithm(), n, k, rank, err)
					}
				}
			}
		}
	}
}

func checkGraph(plan *Plan, rank int, k uint64) error {
	s, g := plan.Message(1, k), plan.Graph(rank, 1, k)
	sent, came := make([]uint64, plan.Members()), make([]uint64, plan.Members())
	brings := make(map[uint64]Receipt)
	for step := range s.Steps() + 2 {
		out, sends := s.Outgoing(rank, step)
		if got, ok := g.Send(step); ok != sends {
			return fmt.Errorf("step %d: sends %t, want %t", step, ok, sends)
		} else if sends {
			want := Request{Transfer: out, Sends: true, Step: step, Number: sent[out.Peer], Awaits: awaited(brings, rank, out.Block)}
			if got != want {
				return fmt.Errorf("step %d: %+v, want %+v", step, got, want)
			}
			sent[out.Peer]++
		}
		in, receives := s.Incoming(rank, step)
		if got, ok := g.Receive(step); ok != receives {
			return fmt.Errorf("step %d: receives %t, want %t", step, ok, receives)
		} else if receives {
			if want := (Request{Transfer: in, Step: step, Number: came[in.Peer], Awaits: Receipt{Peer: -1}}); got != want {
				return fmt.Errorf("step %d: %+v, want %+v", step, got, want)
			}
			brings[in.Block] = Receipt{Peer: in.Peer, Number: came[in.Peer]}
			came[in.Peer]++
		}
	}
	return nil
}

// awaited is the receive that has brought the block so far, one that can't be if none has.
func awaited(brings map[uint64]Receipt, rank int, block uint64) Receipt {
	if rank == 0 {
		return Receipt{Peer: -1}
	}
	if r, ok := brings[block]; ok {
		return r
	}
	return Receipt{Peer: -2}
}

// TestGraphInWindows holds that going on where a window ended gives the same as one walk.
func TestGraphInWindows(t *testing.T) {
	for _, plan := range plansOf(t, 13) {
		g := plan.Graph(3, 1, 50)
		whole := slices.Collect(g.Requests(0, g.Steps()+9))
		var parts []Request
		for step := uint64(0); step < g.Steps(); step += 7 {
			parts = slices.AppendSeq(parts, g.Requests(step, step+7))
		}
		if !slices.Equal(whole, parts) || len(whole) < 50 {
			t.Errorf("%v: %d requests in one walk, %d in windows, or not the same", plan.Algorithm(), len(whole), len(parts))
		}
		for r := range g.Requests(0, g.Steps()) {
			if r != whole[0] {
				t.Errorf("%v: begins with %+v, then with %+v", plan.Algorithm(), whole[0], r)
			}
			break
		}
	}
}

// TestGraphOfHugeMessages: the end of a message of the most blocks is computed as its beginning is, without walking there.
func TestGraphOfHugeMessages(t *testing.T) {
	const k = MaxBlocks
	hybrid, err := NewHybridPlan(racksOf(16, 5))
	if err != nil {
		t.Fatal(err)
	}
	plans := []*Plan{hybrid}
	for _, a := range []Algorithm{Sequential, Chain, BinomialTree, Hypercube, Twin, Circulant} {
		plan, err := NewPlan(a, 16)
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, plan)
	}
	for _, plan := range plans {
		last := make(map[int]uint64)
		for rank := 1; rank < 16; rank++ {
			for _, peer := range plan.Neighbours(rank) {
				last[rank] += plan.rule.before(rank, peer, plan.Schedule(k).Steps(), k)
			}
			if last[rank] != k {
				t.Errorf("%v: rank %d receives %d blocks, want %d", plan.Algorithm(), rank, last[rank], uint64(k))
			}
			g := plan.Graph(rank, 1, k)
			for r := range g.Requests(g.Steps()-30, g.Steps()) {
				if r.Sends && (r.Awaits.Peer < 0 || r.Awaits.Number > k) {
					t.Errorf("%v: rank %d: %+v", plan.Algorithm(), rank, r)
				}
			}
		}
	}
}

func TestGraphDoesNotAllocate(t *testing.T) {
	for _, plan := range plansOf(t, 32) {
		if n := testing.AllocsPerRun(100, func() {
			g, one := plan.Graph(5, 1, 1000), plan.Graph(5, 1, 1)
			g.Send(77)
			g.Receive(77)
			one.Receive(0)
		}); n != 0 {
			t.Errorf("%v: %v allocations a step", plan.Algorithm(), n)
		}
	}
}

// machine runs the graphs of all ranks as hardware would: every queue pair by itself, each send as soon as those before it on its queue
// pair are gone, its block has come, and the peer has posted the receive. What takes how long is decided by rng.
type machine struct {
	plan  *Plan
	k     uint64
	ahead int // receives that a rank has posted at most, in the order of steps
	rng   *rand.Rand
	ranks []machineRank
	moves []move // under way
}

type machineRank struct {
	queues  [][]Request // sends by peer
	receive []Request   // not posted yet
	posted  [][]Request // receives by peer
	out     int         // posted in all
	came    []uint64    // blocks by peer
	has     map[uint64]bool
	busy    []bool // a send to the peer is under way
}

type move struct {
	from int
	req  Request
}

func newMachine(plan *Plan, k uint64, ahead int, rng *rand.Rand) *machine {
	n := plan.Members()
	m := &machine{plan: plan, k: k, ahead: ahead, rng: rng, ranks: make([]machineRank, n)}
	for rank := range m.ranks {
		r := &m.ranks[rank]
		*r = machineRank{queues: make([][]Request, n), posted: make([][]Request, n), came: make([]uint64, n), busy: make([]bool, n), has: make(map[uint64]bool)}
		g := plan.Graph(rank, 1, k)
		for req := range g.Requests(0, g.Steps()) {
			if req.Sends {
				r.queues[req.Peer] = append(r.queues[req.Peer], req)
			} else {
				r.receive = append(r.receive, req)
			}
		}
	}
	return m
}

// run moves blocks until nothing can move any more.
func (m *machine) run() error {
	for {
		m.post()
		m.begin()
		if len(m.moves) == 0 {
			return m.ended()
		}
		i := m.rng.IntN(len(m.moves))
		a := m.moves[i]
		m.moves[i] = m.moves[len(m.moves)-1]
		m.moves = m.moves[:len(m.moves)-1]
		if err := m.arrive(a); err != nil {
			return err
		}
	}
}

func (m *machine) post() {
	for rank := range m.ranks {
		r := &m.ranks[rank]
		for ; r.out < m.ahead && len(r.receive) > 0; r.out++ {
			req := r.receive[0]
			r.receive = r.receive[1:]
			r.posted[req.Peer] = append(r.posted[req.Peer], req)
		}
	}
}

func (m *machine) begin() {
	for from := range m.ranks {
		r := &m.ranks[from]
		for to, queue := range r.queues {
			if r.busy[to] || len(queue) == 0 || len(m.ranks[to].posted[from]) == 0 {
				continue
			}
			if a := queue[0].Awaits; a.Peer < 0 || r.came[a.Peer] > a.Number {
				m.moves = append(m.moves, move{from: from, req: queue[0]})
				r.queues[to], r.busy[to] = queue[1:], true
			}
		}
	}
}

func (m *machine) arrive(a move) error {
	from, to := &m.ranks[a.from], &m.ranks[a.req.Peer]
	want := to.posted[a.from][0]
	to.posted[a.from] = to.posted[a.from][1:]
	from.busy[a.req.Peer] = false
	switch {
	case want.Block != a.req.Block || want.Number != a.req.Number || want.Number != to.came[a.from]:
		return fmt.Errorf("rank %d sent %+v into %+v", a.from, a.req, want)
	case a.from != 0 && !from.has[a.req.Block]:
		return fmt.Errorf("rank %d sent %+v and lacks it", a.from, a.req)
	case to.has[a.req.Block]:
		return fmt.Errorf("rank %d got block %d again", a.req.Peer, a.req.Block)
	}
	to.came[a.from]++
	to.out--
	to.has[a.req.Block] = true
	return nil
}

func (m *machine) ended() error {
	for rank := range m.ranks {
		r := &m.ranks[rank]
		for peer, queue := range r.queues {
			if len(queue) > 0 {
				return fmt.Errorf("rank %d still has %d sends to %d", rank, len(queue), peer)
			}
		}
		if rank > 0 && uint64(len(r.has)) != m.k {
			return fmt.Errorf("rank %d got %d of %d blocks", rank, len(r.has), m.k)
		}
	}
	return nil
}

// TestDSN_2_GraphsRunByThemselves runs the graphs of all members with delays at random, with all receives posted before the start and
// with few at a time: each block comes to each member once, and nothing waits for ever.
func TestDSN_2_GraphsRunByThemselves(t *testing.T) {
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for n := 2; n <= 32; n++ {
		for _, plan := range plansOf(t, n) {
			for seed := range seeds {
				rng := rand.New(rand.NewPCG(seed, uint64(n)))
				k := 1 + rng.Uint64N(64)
				for _, ahead := range []int{1, 3, 1 << 20} {
					if err := newMachine(plan, k, ahead, rng).run(); err != nil {
						t.Fatalf("%v n=%d k=%d, %d receives ahead, seed %d: %v", plan.Algorithm(), n, k, ahead, seed, err)
					}
				}
			}
		}
	}
}
