package graph

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// plansOf makes all plans for n members, the hybrid with racks of two, three and half of them, and with racks at
// random.
func plansOf(t *testing.T, n int) []*schedule.Plan {
	t.Helper()
	var plans []*schedule.Plan
	for _, a := range schedule.Algorithms() {
		p, err := schedule.NewPlan(a, n)
		switch {
		case err == nil:
			plans = append(plans, p)
		case !errors.Is(err, schedule.ErrInvalid):
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	for _, rackOf := range []func(rank int) int{
		func(rank int) int { return rank / 2 }, func(rank int) int { return rank / 3 }, func(rank int) int {
			return 2 * rank / (n + 1)
		},
		func(int) int { return rng.IntN(3) },
	} {
		racks := make([]int, n)
		for rank := range racks {
			racks[rank] = rackOf(rank)
		}
		p, err := schedule.NewHybridPlan(racks)
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, p)
	}
	return plans
}

// TestDSN_2_GraphIsAnOrder holds that each send waits for a receive of its block that stands before it, and that a
// walk can end early.
func TestDSN_2_GraphIsAnOrder(t *testing.T) {
	const k = 20
	for n := 2; n <= 13; n++ {
		for _, plan := range plansOf(t, n) {
			for rank := range n {
				blocks := make(map[Receipt]uint64)
				received := 0
				for r := range Requests(plan, rank, 1, k) {
					if block, ok := blocks[r.Awaits]; r.Sends && rank > 0 && (!ok || block != r.Block) {
						t.Fatalf("%v n=%d rank %d: %+v waits for block %d, known %t", plan.Algorithm(), n, rank, r, block, ok)
					}
					if !r.Sends {
						blocks[Receipt{r.Peer, r.Number}] = r.Block
						received++
					}
				}
				if want := min(rank, 1) * k; received != want {
					t.Errorf("%v n=%d rank %d: %d receives, want %d", plan.Algorithm(), n, rank, received, want)
				}
				for range Requests(plan, rank, 1, k) {
					break
				}
			}
		}
	}
}

// machine runs the graphs of all ranks as hardware would: every queue pair by itself, each send as soon as those
// before it on its queue pair are gone, its block has come, and the peer has posted the receive. What takes how long
// is decided by rng.
type machine struct {
	plan  *schedule.Plan
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

func newMachine(plan *schedule.Plan, k uint64, ahead int, rng *rand.Rand) *machine {
	n := plan.Members()
	m := &machine{plan: plan, k: k, ahead: ahead, rng: rng, ranks: make([]machineRank, n)}
	for rank := range m.ranks {
		r := &m.ranks[rank]
		*r = machineRank{queues: make([][]Request, n), posted: make([][]Request, n), came: make([]uint64, n),
			busy: make([]bool, n), has: make(map[uint64]bool)}
		for req := range Requests(plan, rank, 1, k) {
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

// TestDSN_2_GraphsRunByThemselves runs the graphs of all members with delays at random, with all receives posted
// before the start and with few at a time: each block comes to each member once, and nothing waits for ever.
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
