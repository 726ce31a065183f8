package peers

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
)

// bounds is an interval that holds the median of what the values are samples of with some confidence.
type bounds struct {
	low, high float64
	// confidence is at least the one that was asked for, if the values are enough for that.
	confidence float64
}

// medianBounds gives bounds of the median with at least the confidence, by order statistics: a sample lies below the
// median with probability one half, whatever the distribution. Fewer than 6 values cannot give 95%: then the bounds
// are the extremes, and the confidence is less.
func medianBounds(values []float64, confidence float64) bounds {
	n := len(values)
	if n == 0 {
		return bounds{math.NaN(), math.NaN(), 0}
	}
	sorted := slices.Sorted(slices.Values(values))
	drop := 0 // values left out at each end
	for 2*(drop+1) < n && coverage(n, drop+1) >= confidence {
		drop++
	}
	return bounds{sorted[drop], sorted[n-1-drop], coverage(n, drop)}
}

// coverage is the probability that the median lies between the values of n that remain when drop are left out at each
// end.
func coverage(n, drop int) float64 {
	tail := 0.0
	for i := range drop + 1 {
		tail += math.Exp(logChoose(n, i) - float64(n)*math.Ln2)
	}
	return max(0, 1-2*tail)
}

func logChoose(n, k int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return a - b - c
}

func TestMedianBounds(t *testing.T) {
	var values []float64
	for i := range 20 {
		values = append(values, float64((i*7)%20+1))
	}
	b := medianBounds(values, 0.95)
	if b.low != 6 || b.high != 15 || math.Abs(b.confidence-0.9586) > 1e-3 {
		t.Errorf("of 20: %+v", b)
	}
	if b = medianBounds(values[:5], 0.95); b.low != slices.Min(values[:5]) || math.Abs(b.confidence-0.9375) > 1e-6 {
		t.Errorf("of 5: %+v", b)
	}
	if b = medianBounds(nil, 0.95); b.confidence != 0 || !math.IsNaN(b.low) {
		t.Errorf("of none: %+v", b)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(rapid.Float64Range(0, 1), 1, 200).Draw(t, "values")
		b, m := medianBounds(v, 0.95), bench.Median(v)
		if b.low > m || m > b.high || len(v) >= 6 && b.confidence < 0.95 {
			t.Fatalf("median %v, bounds %+v", m, b)
		}
	})
}
