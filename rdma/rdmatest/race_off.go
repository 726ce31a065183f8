//go:build !race

package rdmatest

// raceEnabled reports whether the race detector is on, which itself allocates memory.
const raceEnabled = false
