package sim

import (
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	seedsFlag = flag.Uint64("sim.seeds", 0, "how many seeds TestSeeds runs (0: what the build can bear)")
	fromFlag  = flag.Uint64("sim.from", 1, "the first seed of TestSeeds")
	seedFlag  = flag.Uint64("sim.seed", 0, "run this seed alone; with -v its trace is printed")
)

// TestSeeds runs clusters in which everything goes wrong, one for each seed, and holds them against the guarantees.
func TestSeeds(t *testing.T) {
	if *seedFlag != 0 {
		one(t, *seedFlag)
		return
	}
	seeds := *seedsFlag
	if seeds == 0 {
		seeds = defaultSeeds
		if testing.Short() {
			seeds = defaultSeeds / 10
		}
	}
	var next atomic.Uint64
	next.Store(*fromFlag)
	var mu sync.Mutex
	var sum Stats
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := next.Add(1) - 1; seed < *fromFlag+seeds; seed = next.Add(1) - 1 {
				r := Run(Options{Seed: seed})
				mu.Lock()
				sum.add(&r.Stats)
				mu.Unlock()
				if r.Err != nil {
					t.Errorf("seed %d: %v\n  replay: go test ./internal/sim -run TestSeeds -sim.seed=%d -v", seed, r.Err, seed)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d seeds: %+v", seeds, sum)
}

func one(t *testing.T, seed uint64) {
	t.Helper()
	o := Options{Seed: seed}
	if testing.Verbose() {
		o.Trace = func(line string) { t.Log(line) }
	}
	r := Run(o)
	t.Logf("seed %d: %d nodes, %v of virtual time, trace %016x, %+v", r.Seed, r.Nodes, r.Virtual, r.Hash, r.Stats)
	if r.Err != nil {
		t.Fatalf("seed %d: %v", seed, r.Err)
	}
}
