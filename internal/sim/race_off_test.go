//go:build !race

package sim

const (
	defaultSeeds  = 1000
	systematicMax = 2000
)
