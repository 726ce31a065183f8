//go:build !race

package rdmatest

// raceEnabled tells that the race detector, which allocates by itself, is on.
const raceEnabled = false
