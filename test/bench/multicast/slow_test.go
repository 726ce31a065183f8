package multicast

import (
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
	"github.com/rdmcfs/rdmcfs/test/bench/links"
)

const (
	slowSize   = 64 << 20
	fullRate   = "200mbit"
	halfRate   = "100mbit"
	slowMargin = 0.05
)

// pair is two nodes whose link is slowed down, both ways.
type pair [2]int

// TestSlowLink is line 5 of the multicast's goals: one pair of nodes at half speed, compared with the same classes at
// full speed.
func TestSlowLink(t *testing.T) {
	measured(t)
	for _, n := range counts(t, 8, 13) {
		for name := range strings.SplitSeq(*names, ",") {
			a, err := schedule.ParseAlgorithm(name)
			if err != nil {
				t.Fatal(err)
			}
			t.Run(fmt.Sprintf("n=%d/%s", n, name), func(t *testing.T) {
				nodes := links.New(t, n, fullRate, "")
				busy, root := busiest(t, a, n)
				slowLink(t, nodes, a, busy)
				if a == schedule.BinomialPipeline {
					slowLink(t, nodes, a, root)
				}
			})
		}
	}
}

// busiest are the pair that moves most blocks, and the one among those with the root.
func busiest(t *testing.T, a schedule.Algorithm, n int) (of, withRoot pair) {
	t.Helper()
	const blocks = 256
	plan, err := schedule.NewPlan(a, n)
	if err != nil {
		t.Fatal(err)
	}
	s := plan.Schedule(blocks)
	moved := make(map[pair]int)
	for step := range s.Steps() {
		for rank := range n {
			if to, ok := s.Outgoing(rank, step); ok {
				moved[pair{min(rank, to.Peer), max(rank, to.Peer)}]++
			}
		}
	}
	for i := range n {
		for j := i + 1; j < n; j++ {
			p := pair{i, j}
			if moved[p] > moved[of] {
				of = p
			}
			if i == 0 && moved[p] > moved[withRoot] {
				withRoot = p
			}
		}
	}
	return of, withRoot
}

func TestBusiest(t *testing.T) {
	if of, root := busiest(t, schedule.Sequential, 5); of != (pair{0, 1}) || root != of {
		t.Errorf("sequential: %v, %v", of, root)
	}
	if of, root := busiest(t, schedule.BinomialPipeline, 8); of[0] == 0 || root[0] != 0 {
		t.Errorf("hypercube: %v, %v", of, root) // others exchange blocks, with the root they go one way
	}
}

func slowLink(t *testing.T, nodes *links.Links, a schedule.Algorithm, p pair) {
	var full, half []float64
	for range *rounds {
		for _, c := range []struct {
			rate string
			to   *[]float64
		}{{fullRate, &full}, {halfRate, &half}} {
			for i := range p {
				if err := nodes.Slow(t.Context(), p[i], p[1-i], c.rate); err != nil {
					t.Fatal(err)
				}
			}
			if r, ok := valid(t, nodes, one(nodes.Nodes(), slowSize, a.String())); ok {
				*c.to = append(*c.to, r.Median)
			}
		}
	}
	if len(full) == 0 || len(half) == 0 {
		t.Fatal("every run was void: the machine is busy")
	}
	n := nodes.Nodes()
	ratio := bench.Median(half) / bench.Median(full)
	limit := 1 + 1/float64(bits.Len(uint(n-1))) + slowMargin
	verdict := "beside"
	if a == schedule.BinomialPipeline {
		verdict = within(t, ratio <= limit)
	}
	t.Logf("RESULT n=%d, %d MiB at %s, %v, nodes %d and %d at %s: %.3f s to %.3f s, ratio %.3f, goal %.3f  %s (full "+
		"%.3f, half %.3f)",
		n, slowSize>>20, fullRate, a, p[0], p[1], halfRate, bench.Median(full), bench.Median(half), ratio, limit, verdict,
		full, half)
}
