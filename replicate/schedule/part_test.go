package schedule

import (
	"math"
	"testing"
)

// TestPart holds how much ranks hand on; together they bring each block to all but the root once.
func TestPart(t *testing.T) {
	for _, c := range []struct {
		a    Algorithm
		want []float64
	}{
		{Circulant, []float64{1, 1, 1, 2.0 / 3, 2.0 / 3, 2.0 / 3}},
		{Hypercube, []float64{1, 0.5, 0.5, 1}},
		{Chain, []float64{1, 1, 1, 0}},
		{Sequential, []float64{2, 0, 0}},
		{BinomialTree, []float64{2, 1, 0, 0}},
	} {
		plan, err := NewPlan(c.a, len(c.want))
		if err != nil {
			t.Fatal(err)
		}
		for rank, want := range c.want {
			if got := plan.Part(rank, PartBlocks); math.Abs(got-want) > 0.02 {
				t.Errorf("%v: rank %d of %d hands on %.3f, want %.3f", c.a, rank, len(c.want), got, want)
			}
		}
	}
}

// TestPartsOfPipelines holds that the parts of a pipeline's ranks are the receipts of its members.
func TestPartsOfPipelines(t *testing.T) {
	for n := 2; n <= 33; n++ {
		plan, err := NewPlan(BinomialPipeline, n)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for rank := range n {
			sum += plan.Part(rank, PartBlocks)
		}
		if want := float64(n - 1); math.Abs(sum-want) > 0.02*want {
			t.Errorf("n=%d: %.2f sends of each block, want %.0f", n, sum, want)
		}
	}
}

// TestPartOfOneBlock holds what ranks hand on of messages of one block: the members that follow the root hand on the
// least.
func TestPartOfOneBlock(t *testing.T) {
	for n, want := range map[int][]float64{
		4: {2, 0, 1, 0},
		5: {3, 0.5, 0, 0.5, 0},
		6: {3, 0, 0, 2, 0, 0},
		8: {3, 0, 1, 0, 2, 0, 1, 0},
	} {
		plan, err := NewPlan(BinomialPipeline, n)
		if err != nil {
			t.Fatal(err)
		}
		for rank := range n {
			if got := plan.Part(rank, 1); got != want[rank] {
				t.Errorf("n=%d: rank %d sends %.2f times, want %.2f", n, rank, got, want[rank])
			}
		}
	}
}
