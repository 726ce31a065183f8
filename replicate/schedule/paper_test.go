package schedule

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestDSN_4_4_BlocksOfEachStep runs the pipeline as section 4.4 describes it, without its formula: in step j each
// member exchanges with its neighbour along direction j mod l the block with the highest number that it held before,
// the root sends block j, and after k the last one. The schedule must say the same of every step.
func TestDSN_4_4_BlocksOfEachStep(t *testing.T) {
	for l := 1; l <= 6; l++ {
		for _, k := range []uint64{1, 2, 3, 7, 20, 65} {
			s, err := New(Hypercube, 1<<l, k)
			if err != nil {
				t.Fatal(err)
			}
			exchange(t, s, l)
		}
	}
}

func exchange(t *testing.T, s Schedule, l int) {
	t.Helper()
	n, k := 1<<l, s.Blocks()
	highest := make([]int, n)
	for rank := range highest {
		highest[rank] = -1
	}
	for step := range s.Steps() {
		after := append([]int(nil), highest...)
		highest[0] = int(min(step, k-1))
		for rank, block := range highest {
			peer := rank ^ 1<<(step%uint64(l))
			got, ok := s.Outgoing(rank, step)
			if want := block >= 0 && peer != 0 && highest[peer] != block; ok != want && (ok || highest[peer] < block) {
				t.Fatalf("n=%d k=%d step %d: rank %d sends %t, want %t", n, k, step, rank, ok, want)
			}
			if ok && (got != Transfer{Peer: peer, Block: uint64(block)}) {
				t.Fatalf("n=%d k=%d step %d: rank %d sends %+v, want block %d to %d", n, k, step, rank, got, block, peer)
			}
			if ok {
				after[peer] = max(after[peer], block)
			}
		}
		highest = after
	}
}

// TestReport_3_PairsStayTogether holds what the report says of members that share a vertex: at the end of every step
// each lacks at most one block that the other has, and the last step settles that.
func TestReport_3_PairsStayTogether(t *testing.T) {
	for n := 3; n <= 40; n++ {
		s, err := New(Twin, n, 30)
		if err != nil {
			t.Fatal(err)
		}
		rule := newTwin(n)
		has := make([][30]bool, n)
		for step := range s.Steps() {
			for rank := 1; rank < n; rank++ {
				if in, ok := s.Incoming(rank, step); ok {
					has[rank][in.Block] = true
				}
			}
			for v := 1; v <= rule.extra; v++ {
				one, two := lacks(has[v], has[v+1<<rule.dims-1])
				if one > 1 || two > 1 || step == s.Steps()-1 && one+two > 0 {
					t.Fatalf("n=%d step %d: the members on vertex %d lack %d and %d blocks of the other's", n, step, v, one, two)
				}
			}
		}
	}
}

// lacks counts the blocks that a lacks and b has, and the reverse.
func lacks(a, b [30]bool) (one, two int) {
	for i := range a {
		if b[i] && !a[i] {
			one++
		}
		if a[i] && !b[i] {
			two++
		}
	}
	return one, two
}

// TestDSN_4_5_OneDelay delays one transfer of a pipeline: the whole takes longer by that much at most.
func TestDSN_4_5_OneDelay(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		a := []Algorithm{Hypercube, Circulant, Chain}[rng.IntN(3)]
		n := 2 + rng.IntN(30)
		if a == Hypercube {
			n = 1 << (1 + rng.IntN(5))
		}
		s, err := New(a, n, 1+rng.Uint64N(40))
		if err != nil {
			t.Fatal(err)
		}
		late, delay, count := rng.IntN(int(s.Blocks())*(n-1)), 5*rng.Float64(), 0
		took, err := newNetwork(s, func(int, int) float64 {
			count++
			if count-1 == late {
				return 1 + delay
			}
			return 1
		}).run()
		if err != nil {
			t.Fatal(err)
		}
		if want := float64(s.Steps()) + delay; took > want+1e-9 {
			t.Errorf("seed %d %v n=%d k=%d: %.2f block times with a delay of %.2f, want at most %.2f", seed, a, n, s.Blocks(),
				took, delay, want)
		}
	}
}

// TestDSN_4_3_ExhaustiveDelays runs every algorithm asynchronously, with random durations, for every group size: each
// side goes by its own steps, a member sends when it has the block, and all end. With -exhaustive to 128 members and
// 256 blocks.
func TestDSN_4_3_ExhaustiveDelays(t *testing.T) {
	t.Parallel()
	nMax, kMax := 40, uint64(48)
	if *exhaustive {
		nMax, kMax = 128, 256
	}
	for n := 2; n <= nMax; n++ {
		rng := rand.New(rand.NewPCG(uint64(n), 4))
		for _, a := range Algorithms() {
			plan, err := NewPlan(a, n)
			if a == Hybrid {
				all := layouts(n)
				plan, err = NewHybridPlan(all[rng.IntN(len(all))])
			} else if a == Hypercube && !isPowerOfTwo(n) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			k := 1 + rng.Uint64N(kMax)
			if _, err := newNetwork(plan.Schedule(k), func(int,
				int) float64 {
				return math.Exp(3 * rng.NormFloat64())
			}).run(); err != nil {
				t.Fatalf("%v n=%d k=%d: %v", a, n, k, err)
			}
		}
	}
}
