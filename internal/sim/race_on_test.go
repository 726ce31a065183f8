//go:build race

package sim

// Under the race detector a run takes many times as long, and there is no concurrency inside of one.
const (
	defaultSeeds  = 40
	systematicMax = 20
)
