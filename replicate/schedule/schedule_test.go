package schedule

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"testing"
)

var exhaustive = flag.Bool("exhaustive", false, "check schedules to n=128, k=256 instead of n=40, k=48")

// checker walks a schedule step by step and holds what a valid one promises.
type checker struct {
	has [][]bool // by rank and block
	got []uint64 // blocks by rank
	out []Transfer
	snd []bool
}

func (c *checker) reset(n int, k uint64) {
	c.has, c.got = c.has[:0], c.got[:0]
	for rank := range n {
		row := make([]bool, k)
		for b := range row {
			row[b] = rank == 0
		}
		c.has, c.got = append(c.has, row), append(c.got, 0)
	}
	c.out, c.snd = make([]Transfer, n), make([]bool, n)
}

func (c *checker) check(s Schedule) error { return c.checkBoth(s, s) }

// checkBoth checks a schedule that the receivers have computed for themselves.
func (c *checker) checkBoth(s, receivers Schedule) error {
	c.reset(s.Members(), s.Blocks())
	for step := range s.Steps() {
		if err := c.step(s, receivers, step); err != nil {
			return fmt.Errorf("n=%d k=%d step %d: %w", s.Members(), s.Blocks(), step, err)
		}
	}
	for rank := 1; rank < s.Members(); rank++ {
		if c.got[rank] != s.Blocks() {
			return fmt.Errorf("n=%d k=%d: rank %d got %d blocks", s.Members(), s.Blocks(), rank, c.got[rank])
		}
	}
	return nil
}

// step checks one step: at most one block out (by construction) and one in for each rank, both
// sides agree, senders have what they send, receivers lack it, within the steps that they claim.
func (c *checker) step(s, receivers Schedule, step uint64) error {
	sends, receipts := 0, 0
	for rank := range s.Members() {
		c.out[rank], c.snd[rank] = s.Outgoing(rank, step)
		if !c.snd[rank] {
			continue
		}
		sends++
		t := c.out[rank]
		if t.Peer <= 0 || t.Peer >= s.Members() || t.Peer == rank || t.Block >= s.Blocks() {
			return fmt.Errorf("rank %d sends %+v", rank, t)
		}
		if !c.has[rank][t.Block] {
			return fmt.Errorf("rank %d sends block %d and lacks it", rank, t.Block)
		}
		if in := s.Sends(rank); step < in.First || step >= in.End {
			return fmt.Errorf("rank %d sends, and claims to do so in %+v", rank, in)
		}
	}
	for rank := range s.Members() {
		in, ok := receivers.Incoming(rank, step)
		if !ok {
			continue
		}
		receipts++
		if !c.snd[in.Peer] || c.out[in.Peer] != (Transfer{Peer: rank, Block: in.Block}) {
			return fmt.Errorf("rank %d expects %+v, its source sends %+v %t", rank, in, c.out[in.Peer], c.snd[in.Peer])
		}
		if c.has[rank][in.Block] {
			return fmt.Errorf("rank %d gets block %d again", rank, in.Block)
		}
		if in := receivers.Receives(rank); step < in.First || step >= in.End {
			return fmt.Errorf("rank %d receives, and claims to do so in %+v", rank, in)
		}
	}
	if sends != receipts {
		return fmt.Errorf("%d sends, %d receipts", sends, receipts)
	}
	for rank := range s.Members() {
		if c.snd[rank] {
			t := c.out[rank]
			c.has[t.Peer][t.Block] = true
			c.got[t.Peer]++
		}
	}
	return nil
}

// wantSteps is the length that an algorithm claims.
func wantSteps(a Algorithm, n int, k uint64) uint64 {
	switch a {
	case Sequential:
		return k * uint64(n-1)
	case Chain:
		return k + uint64(n) - 2
	case BinomialTree:
		return k * uint64(ceilLog2(n))
	}
	return k - 1 + uint64(ceilLog2(n))
}

func checkAll(t *testing.T, a Algorithm, nMax int, kMax uint64) {
	t.Helper()
	var c checker
	for n := 2; n <= nMax; n++ {
		plan, err := NewPlan(a, n)
		if a == Hypercube && !isPowerOfTwo(n) {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("hypercube of %d: %v", n, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		alone, err := NewPlan(a, n) // what another member makes of the same arguments
		if err != nil {
			t.Fatal(err)
		}
		for k := uint64(1); k <= kMax; k++ {
			s := plan.Schedule(k)
			if s.Steps() != wantSteps(a, n, k) {
				t.Fatalf("%v n=%d k=%d: %d steps, want %d", a, n, k, s.Steps(), wantSteps(a, n, k))
			}
			if a == Sequential && k > 24 && k < kMax {
				err = checkSequential(s, alone.Schedule(k))
			} else {
				err = c.checkBoth(s, alone.Schedule(k))
			}
			if err != nil {
				t.Fatalf("%v: %v", a, err)
			}
		}
	}
}

// checkSequential checks all transfers of a sequential schedule, and of the members that do nothing in a step, which
// are all others, two neighbours of the receiver and one that changes with the step: asking all in all of the k(n-1)
// steps would take hours.
func checkSequential(s, receivers Schedule) error {
	n, k := s.Members(), s.Blocks()
	got := make([]uint64, n) // blocks come to each in order, so that their count says which
	for step := range s.Steps() {
		out, ok := s.Outgoing(0, step)
		if !ok || out.Peer < 1 || out.Peer >= n || out.Block != got[out.Peer] {
			return fmt.Errorf("n=%d k=%d step %d: the root sends %+v %t", n, k, step, out, ok)
		}
		got[out.Peer]++
		if in, ok := receivers.Incoming(out.Peer, step); !ok || in != (Transfer{Peer: 0, Block: out.Block}) {
			return fmt.Errorf("n=%d k=%d step %d: rank %d expects %+v %t", n, k, step, out.Peer, in, ok)
		}
		for _, idle := range [3]int{out.Peer - 1, (out.Peer + 1) % n, int(step*2654435761>>8) % n} {
			_, sends := s.Outgoing(idle, step)
			_, receives := receivers.Incoming(idle, step)
			if idle > 0 && sends || idle != out.Peer && receives {
				return fmt.Errorf("n=%d k=%d step %d: rank %d does something", n, k, step, idle)
			}
		}
	}
	for rank := 1; rank < n; rank++ {
		if got[rank] != k {
			return fmt.Errorf("n=%d k=%d: rank %d got %d blocks", n, k, rank, got[rank])
		}
	}
	return nil
}

// New makes the schedule of one message.
func New(algorithm Algorithm, members int, blocks uint64) (Schedule, error) {
	plan, err := NewPlan(algorithm, members)
	if err != nil {
		return nil, err
	}
	return plan.Schedule(blocks), nil
}

// TestDSN_4_4_Exhaustive checks every schedule for all small groups and messages; with -exhaustive for all of 2 to
// 128 members and 1 to 256 blocks. Receivers go by a plan of their own. Of Sequential, between 24 and 256 blocks, see
// checkSequential.
func TestDSN_4_4_Exhaustive(t *testing.T) {
	nMax, kMax := 40, uint64(48)
	if *exhaustive {
		nMax, kMax = 128, 256
	}
	if testing.Short() {
		nMax, kMax = 17, 20
	}
	for _, a := range []Algorithm{Sequential, Chain, BinomialTree, Hypercube, Twin, Circulant} {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			checkAll(t, a, nMax, kMax)
		})
	}
}

// TestMessagesOfOneBlock checks all trees that messages of one block take in turn: each is as short as can be and
// keeps to the plan's links.
func TestMessagesOfOneBlock(t *testing.T) {
	var c checker
	for n := 2; n <= 128; n++ {
		plan, err := NewPlan(BinomialPipeline, n)
		if err != nil {
			t.Fatal(err)
		}
		for number := range uint64(3) {
			s := plan.Message(number, 1)
			if err := c.check(s); err != nil || s.Steps() != uint64(ceilLog2(n)) {
				t.Fatalf("message %d: n=%d: %d steps, %v", number, n, s.Steps(), err)
			}
			for rank := 1; rank < n; rank++ {
				source := -1
				for step := range s.Steps() {
					if in, ok := s.Incoming(rank, step); ok {
						source = in.Peer
					}
				}
				if !slices.Contains(plan.Neighbours(rank), source) {
					t.Errorf("message %d: n=%d: rank %d gets it from %d, of neighbours %v", number, n, rank, source,
						plan.Neighbours(rank))
				}
			}
		}
	}
}

func TestLargeGroups(t *testing.T) {
	var c checker
	for _, n := range []int{127, 128, 129, 255, 257, 512, 777, 1025} {
		for _, a := range []Algorithm{Chain, BinomialPipeline, Twin, Circulant} {
			for _, k := range []uint64{1, 2, 11, 40} {
				s, err := New(a, n, k)
				if err != nil {
					t.Fatal(err)
				}
				if err := c.check(s); err != nil {
					t.Fatalf("%v: %v", a, err)
				}
			}
		}
	}
}

func TestBinomialPipelineChoosesByGroupSize(t *testing.T) {
	for n := 2; n < 40; n++ {
		want := Circulant
		if isPowerOfTwo(n) {
			want = Hypercube
		}
		s, _ := New(BinomialPipeline, n, 9)
		w, _ := New(want, n, 9)
		for step := range s.Steps() {
			for rank := range n {
				got, ok := s.Outgoing(rank, step)
				exp, expOK := w.Outgoing(rank, step)
				if ok != expOK || ok && got != exp {
					t.Fatalf("n=%d rank %d step %d: %+v, want %+v", n, rank, step, got, exp)
				}
			}
		}
	}
}

// TestNeighbours holds that the schedule uses exactly neighbours, and that neighbours are mutual.
func TestNeighbours(t *testing.T) {
	for _, a := range Algorithms() {
		for n := 1; n <= 40; n++ {
			plan, err := NewPlan(a, n)
			if err != nil {
				continue
			}
			used := usedLinks(plan)
			for rank := range n {
				peers := plan.Neighbours(rank)
				for _, peer := range peers {
					if peer == rank || peer < 0 || peer >= n {
						t.Fatalf("%v n=%d: %d has neighbour %d", a, n, rank, peer)
					}
					if !slices.Contains(plan.Neighbours(peer), rank) {
						t.Fatalf("%v n=%d: %d is a neighbour of %d, not the reverse", a, n, peer, rank)
					}
				}
				for peer := range used[rank] {
					if !slices.Contains(peers, peer) {
						t.Fatalf("%v n=%d: %d sends to %d, no neighbour", a, n, rank, peer)
					}
				}
			}
		}
	}
}

func usedLinks(plan *Plan) []map[int]bool {
	used := make([]map[int]bool, plan.Members())
	for rank := range used {
		used[rank] = make(map[int]bool)
	}
	for k := uint64(1); k < 30; k++ {
		s := plan.Schedule(k)
		for step := range s.Steps() {
			for rank := range used {
				if t, ok := s.Outgoing(rank, step); ok {
					used[rank][t.Peer] = true
				}
			}
		}
	}
	return used
}

func TestTreeSpansAllAlongNeighbours(t *testing.T) {
	for _, a := range Algorithms() {
		for n := 1; n <= 70; n++ {
			plan, err := NewPlan(a, n)
			if err != nil {
				continue
			}
			for rank, parent := range plan.Tree() {
				if rank == 0 {
					if parent != -1 {
						t.Fatalf("%v n=%d: root has parent %d", a, n, parent)
					}
					continue
				}
				if !slices.Contains(plan.Neighbours(rank), parent) {
					t.Fatalf("%v n=%d: parent %d of %d is no neighbour", a, n, parent, rank)
				}
			}
		}
	}
}

// TestNeighbourCounts holds the figures that the choice of circulant graphs rests on.
func TestNeighbourCounts(t *testing.T) {
	plan, _ := NewPlan(Circulant, 100)
	for rank := range 100 {
		if got := len(plan.Neighbours(rank)); got > 2*7 {
			t.Fatalf("rank %d of 100 has %d neighbours", rank, got)
		}
	}
}

func TestEmptyAndLonely(t *testing.T) {
	for _, a := range Algorithms() {
		if a == Hybrid {
			continue // TestHybridDegenerates
		}
		s, err := New(a, 8, 0)
		if err != nil || s.Steps() != 0 {
			t.Fatalf("%v: no blocks: %d steps, %v", a, s.Steps(), err)
		}
		s, err = New(a, 1, 7)
		if err != nil || s.Steps() != 0 {
			t.Fatalf("%v: no receivers: %v", a, err)
		}
		if _, ok := s.Outgoing(0, 0); ok {
			t.Fatalf("%v: a lonely root sends", a)
		}
	}
}

func TestInvalid(t *testing.T) {
	for _, c := range []struct {
		a Algorithm
		n int
		k uint64
	}{{0, 4, 4}, {99, 4, 4}, {99, 1, 4}, {Chain, 0, 4}, {Chain, -1, 4}, {Chain, MaxMembers + 1, 4}, {Hypercube, 6, 4},
		{Hybrid, 4, 4}} {
		if _, err := New(c.a, c.n, c.k); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", c, err)
		}
	}
}

func TestAlgorithmNames(t *testing.T) {
	for _, a := range Algorithms() {
		if got, err := ParseAlgorithm(a.String()); err != nil || got != a {
			t.Errorf("%v: parsed as %v, %v", a, got, err)
		}
	}
	if _, err := ParseAlgorithm("bittorrent"); !errors.Is(err, ErrInvalid) {
		t.Errorf("bittorrent: %v", err)
	}
}

// TestHugeMessages holds that positions far beyond 32 bits are computed right and cheaply.
func TestHugeMessages(t *testing.T) {
	const k = 1 << 40 // more than any message has
	for _, a := range []Algorithm{Chain, Hypercube, Twin, Circulant} {
		s, err := New(a, 16, k)
		if err != nil {
			t.Fatal(err)
		}
		for step := s.Steps() - 40; step < s.Steps(); step++ {
			for rank := range 16 {
				out, ok := s.Outgoing(rank, step)
				if !ok {
					continue
				}
				in, ok := s.Incoming(out.Peer, step)
				if !ok || in != (Transfer{Peer: rank, Block: out.Block}) {
					t.Fatalf("%v step %d: %d sends %+v, target expects %+v %t", a, step, rank, out, in, ok)
				}
			}
		}
	}
}

func TestNoAllocation(t *testing.T) {
	hybrid, _ := NewHybridPlan(racksOf(32, 5))
	for _, a := range Algorithms() {
		s, err := New(a, 32, 1000)
		if err != nil {
			s = hybrid.Schedule(1000)
		}
		got := testing.AllocsPerRun(100, func() {
			s.Outgoing(5, 77)
			s.Incoming(5, 77)
		})
		if got != 0 {
			t.Errorf("%v: %v allocations a step", a, got)
		}
	}
}

func BenchmarkStep(b *testing.B) {
	for _, a := range []Algorithm{Hypercube, Twin, Circulant} {
		b.Run(a.String(), func(b *testing.B) {
			s, _ := New(a, 64, 1<<20)
			for i := 0; b.Loop(); i++ {
				s.Outgoing(i%64, uint64(i))
				s.Incoming(i%64, uint64(i))
			}
		})
	}
}
