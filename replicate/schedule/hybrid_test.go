package schedule

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// racksOf puts n members into racks of the given size, one after another.
func racksOf(n, size int) []int {
	racks := make([]int, n)
	for rank := range racks {
		racks[rank] = rank / size
	}
	return racks
}

// layouts are ways to put n members into racks: full racks of several sizes, members dealt out in turn, and sizes at
// random.
func layouts(n int) [][]int {
	all := [][]int{racksOf(n, 2), racksOf(n, 3), racksOf(n, 8), racksOf(n, (n+1)/2)}
	dealt, random := make([]int, n), make([]int, n)
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	for rank := range n {
		dealt[rank] = -rank % 5
		random[rank] = int(math.Abs(rng.NormFloat64()) * 3)
	}
	return append(all, dealt, random)
}

// shape is the number of racks and the size of the largest.
func shape(racks []int) (count, largest int) {
	sizes := make(map[int]int)
	for _, r := range racks {
		sizes[r]++
		largest = max(largest, sizes[r])
	}
	return len(sizes), largest
}

func hybridSteps(racks []int, k uint64) uint64 {
	count, largest := shape(racks)
	if count == 1 || largest == 1 {
		return k - 1 + uint64(ceilLog2(len(racks)))
	}
	return 2 * (k - 1 + uint64(ceilLog2(largest)) + leaderDelay(count))
}

// leaderDelay finds the delay of a pipeline by running it, and holds what the doc comment says of it.
func leaderDelay(racks int) uint64 {
	const k = 64
	s, _ := New(BinomialPipeline, racks, k)
	var most uint64
	for step := range s.Steps() {
		for rank := range racks {
			if in, ok := s.Incoming(rank, step); ok {
				most = max(most, step-in.Block)
			}
		}
	}
	switch l := uint64(ceilLog2(racks)); {
	case racks == 2 && most != 0, racks > 2 && isPowerOfTwo(racks) && most != l, most >= 2*l:
		return 1 << 40 // not what is claimed: no schedule has that many steps
	}
	return most
}

// TestDSN_4_3_ExhaustiveHybrid checks the hybrid as TestDSN_4_4_Exhaustive does the others, and that each block
// crosses between racks once for each rack but the root's: for several layouts of racks, beyond the small sizes for
// one of them in turn.
func TestDSN_4_3_ExhaustiveHybrid(t *testing.T) {
	nMax, kMax := 40, uint64(48)
	if testing.Short() {
		nMax, kMax = 17, 20
	}
	for i := range layouts(2) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for n := 2; n <= nMax; n++ {
				checkHybrid(t, layouts(n)[i], kMax)
			}
			for n := 2; n <= 128 && *exhaustive; n++ {
				if n%len(layouts(n)) == i {
					checkHybrid(t, layouts(n)[i], 256)
				}
			}
		})
	}
}

func checkHybrid(t *testing.T, racks []int, kMax uint64) {
	t.Helper()
	plan, err := NewHybridPlan(racks)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := NewHybridPlan(racks)
	if err != nil {
		t.Fatal(err)
	}
	var c checker
	for k := uint64(1); k <= kMax; k++ {
		s := plan.Schedule(k)
		if want := hybridSteps(racks, k); s.Steps() != want {
			t.Fatalf("racks %v k=%d: %d steps, want %d", racks, k, s.Steps(), want)
		}
		if err := c.checkBoth(s, alone.Schedule(k)); err != nil {
			t.Fatalf("racks %v: %v", racks, err)
		}
	}
	checkCrossings(t, plan, racks)
}

func checkCrossings(t *testing.T, plan *Plan, racks []int) {
	t.Helper()
	const k = 7
	s := plan.Schedule(k)
	crossings := 0
	for step := range s.Steps() {
		for rank := range racks {
			if to, ok := s.Outgoing(rank, step); ok && racks[to.Peer] != racks[rank] {
				crossings++
			}
		}
	}
	if count, _ := shape(racks); crossings != k*(count-1) {
		t.Fatalf("racks %v: %d crossings of %d blocks, want %d", racks, crossings, k, k*(count-1))
	}
}

// TestHybridRelaysBlockByBlock holds that a leader's rack is given its first block long before the leader has the last.
func TestHybridRelaysBlockByBlock(t *testing.T) {
	racks := racksOf(32, 8)
	plan, err := NewHybridPlan(racks)
	if err != nil {
		t.Fatal(err)
	}
	const k = 100
	s := plan.Schedule(k)
	for leader := 8; leader < 32; leader += 8 {
		got := map[uint64]uint64{}
		for step := range s.Steps() {
			if in, ok := s.Incoming(leader, step); ok {
				got[in.Block] = step
			}
			if out, ok := s.Outgoing(leader, step); ok && racks[out.Peer] == racks[leader] {
				if wait := step - got[out.Block]; wait > 2*2+1 && out.Block < k-1 {
					t.Errorf("leader %d keeps block %d for %d steps", leader, out.Block, wait)
				}
			}
		}
	}
}

func TestDSN_4_3_HybridNeverDeadlocks(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 2))
		all := layouts(2 + rng.IntN(40))
		plan, err := NewHybridPlan(all[rng.IntN(len(all))])
		if err != nil {
			t.Fatal(err)
		}
		n := newNetwork(plan.Schedule(1+rng.Uint64N(40)), func(int, int) float64 { return math.Exp(3 * rng.NormFloat64()) })
		if _, err := n.run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// TestHybridNeighbours holds that neighbours are mutual, are all that is used, and that the tree of reports spans all.
func TestHybridNeighbours(t *testing.T) {
	for n := 2; n <= 30; n++ {
		for _, racks := range layouts(n) {
			plan, err := NewHybridPlan(racks)
			if err != nil {
				t.Fatal(err)
			}
			used := usedLinks(plan)
			for rank := range n {
				peers := plan.Neighbours(rank)
				for _, peer := range peers {
					if peer == rank || !slices.Contains(plan.Neighbours(peer), rank) {
						t.Fatalf("racks %v: %d is a neighbour of %d, not the reverse", racks, peer, rank)
					}
				}
				for peer := range used[rank] {
					if !slices.Contains(peers, peer) {
						t.Fatalf("racks %v: %d sends to %d, no neighbour", racks, rank, peer)
					}
				}
				if parent := plan.Tree()[rank]; rank > 0 && !slices.Contains(peers, parent) {
					t.Fatalf("racks %v: parent %d of %d", racks, parent, rank)
				}
			}
		}
	}
}

// TestHybridOverATor runs the paper's case: racks whose common uplink carries one block at a time. A pipeline that
// knows no racks waits for the uplinks; the hybrid does not.
func TestHybridOverATor(t *testing.T) {
	racks := racksOf(32, 8)
	rand.New(rand.NewPCG(1, 1)).Shuffle(32, func(i, j int) { racks[i], racks[j] = racks[j], racks[i] })
	const k = 100
	flat, _ := NewPlan(BinomialPipeline, 32)
	hybrid, _ := NewHybridPlan(racks)
	times := []float64{uplinks(t, flat, racks, 1), uplinks(t, hybrid, racks, 1)}
	t.Logf("32 members in 4 racks with oversubscribed uplinks, %d blocks: flat %.0f, hybrid %.0f block times", k, times[0],
		times[1])
	if times[1] > 2.2*k || times[0] < 2*times[1] {
		t.Errorf("flat %.0f, hybrid %.0f block times", times[0], times[1])
	}
}

// uplinks runs 100 blocks where each rack has one uplink, which carries one block after another, each in the given
// block times.
func uplinks(t *testing.T, plan *Plan, racks []int, each float64) float64 {
	t.Helper()
	n := newNetwork(plan.Schedule(100), nil)
	free := make(map[int]float64) // by rack: when its uplink is
	n.duration = func(from, to int) float64 {
		if racks[from] == racks[to] {
			return 1
		}
		start := max(n.now, free[racks[from]])
		free[racks[from]] = start + each
		return max(start+each-n.now, 1)
	}
	took, err := n.run()
	if err != nil {
		t.Fatal(err)
	}
	return took
}

func TestHybridDegenerates(t *testing.T) {
	for _, racks := range [][]int{{0, 0, 0, 0, 0}, {4, 3, 2, 1, 0}} {
		plan, err := NewHybridPlan(racks)
		if err != nil {
			t.Fatal(err)
		}
		if got := plan.Schedule(10).Steps(); got != 9+3 {
			t.Errorf("racks %v: %d steps", racks, got)
		}
	}
	lonely, err := NewHybridPlan([]int{9})
	if err != nil || lonely.Schedule(5).Steps() != 0 {
		t.Errorf("one member: %v", err)
	}
	if plan, _ := NewHybridPlan(racksOf(8, 2)); plan.Schedule(0).Steps() != 0 {
		t.Error("no blocks make steps")
	}
	if _, err := NewHybridPlan(nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("no members: %v", err)
	}
}
