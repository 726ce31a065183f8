//go:build replay

package detsim

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	_ "unsafe" // for go:linkname

	"github.com/rdmcfs/rdmcfs/internal/detsim/replay"
)

// simRand is the state of all the runtime's randomness (package replay).
//
//go:linkname simRand runtime.simRand
var simRand uint64

// TestOneSeed is one run. TestSeeds has it built and run for each seed, in a process of its own.
func TestOneSeed(t *testing.T) {
	seed, err := strconv.ParseUint(os.Getenv(replay.SeedVariable), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	cryptotest.SetGlobalRandom(t, seed)
	o := Options{Seed: seed, Dir: os.Getenv("TMPDIR")}
	if testing.Verbose() {
		o.Trace = func(line string) { fmt.Println(line) }
	}
	const odd = 0x9e3779b97f4a7c15
	simRand = seed*odd | 1
	synctest.Test(t, func(t *testing.T) {
		r := Run(o)
		fmt.Println(r)
		if r.Err != nil {
			t.Errorf("seed %d: %v", r.Seed, r.Err)
		}
	})
}
