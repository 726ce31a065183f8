package bench

import (
	"math"
	"slices"
)

// Median is the middle value, or the mean of the two in the middle; NaN without values.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// mean is the mean of the values, of which there is at least one.
func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// Quantile is the smallest value that is at least as large as the share q of the values; NaN without values.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// Bounds is an interval that holds the median of what the values are samples of with some confidence.
type Bounds struct {
	Low, High float64
	// Confidence is at least the one that was asked for, if the values are enough for that.
	Confidence float64
}

// MedianBounds gives bounds of the median with at least the confidence, by order statistics: a sample lies below the median
// with probability one half, whatever the distribution. Fewer than 6 values cannot give 95%: then the bounds are the
// extremes, and Confidence is less.
func MedianBounds(values []float64, confidence float64) Bounds {
	n := len(values)
	if n == 0 {
		return Bounds{math.NaN(), math.NaN(), 0}
	}
	sorted := slices.Sorted(slices.Values(values))
	drop := 0 // values left out at each end
	for 2*(drop+1) < n && coverage(n, drop+1) >= confidence {
		drop++
	}
	return Bounds{sorted[drop], sorted[n-1-drop], coverage(n, drop)}
}

// coverage is the probability that the median lies between the values of n that remain when drop are left out at each end.
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
