package sim

import (
	"fmt"
	"testing"
	"time"
)

// TestSameSeedSameTrace holds that a seed says everything: two runs of it are equal, event by event, and another one differs.
func TestSameSeedSameTrace(t *testing.T) {
	hashes := map[uint64]uint64{}
	for seed := uint64(1); seed <= 12; seed++ {
		a, b := Run(Options{Seed: seed}), Run(Options{Seed: seed})
		if a.Hash != b.Hash || a.Stats.Events != b.Stats.Events || a.Virtual != b.Virtual {
			t.Errorf("seed %d: %016x after %d events and %v, then %016x after %d and %v", seed, a.Hash, a.Stats.Events, a.Virtual, b.Hash, b.Stats.Events, b.Virtual)
		}
		if other, ok := hashes[a.Hash]; ok {
			t.Errorf("seeds %d and %d have one trace", seed, other)
		}
		hashes[a.Hash] = seed
	}
}

// systematic runs one calm cluster again and again, each time with one crash at the next of all moments of a kind, up to limit of
// them, evenly spread.
func systematic(t *testing.T, crash Crash, seed uint64, limit int) {
	t.Helper()
	base := Options{Seed: seed, Nodes: 3, Faulty: 3 * time.Second, Calm: true, Crash: &Crash{At: crash.At, Node: crash.Node, Count: -1}}
	r := Run(base)
	if r.Err != nil {
		t.Fatalf("without a crash: %v", r.Err)
	}
	moments := r.Stats.Passed[crash.At]
	if moments == 0 {
		t.Fatalf("no moment of %q passes", crash.At)
	}
	step := max(1, moments/limit)
	runs := 0
	for count := 0; count < moments; count += step {
		o := base
		c := crash
		c.Count = count
		o.Crash = &c
		if r := Run(o); r.Err != nil {
			t.Errorf("seed %d, %+v: %v", seed, c, r.Err)
		} else if r.Stats.Kills+r.Stats.PowerLosses == 0 {
			t.Errorf("seed %d, %+v: nothing crashed", seed, c)
		}
		runs++
	}
	t.Logf("%d of %d moments", runs, moments)
}

// TestPowerLossAfterEachWrite cuts the power after every single write of the state database, of the raft log and of the content
// store: of the founder, which leads and writes, and of a member.
func TestPowerLossAfterEachWrite(t *testing.T) {
	limit := systematicMax
	if testing.Short() {
		limit /= 10
	}
	for _, at := range []string{"state", "log", "content"} {
		for node := range 2 {
			t.Run(fmt.Sprintf("%s of node %d", at, node+1), func(t *testing.T) {
				t.Parallel()
				systematic(t, Crash{At: at, Node: node, Power: true}, 7, limit)
			})
		}
	}
}

// TestKilledAtEachPoint kills a process at every passing of each labelled point, and once more with its machine's power.
func TestKilledAtEachPoint(t *testing.T) {
	limit := systematicMax / 2
	if testing.Short() {
		limit /= 10
	}
	for _, at := range []string{"vote", "propose", "commit", "apply", "visible", "reply"} {
		for _, power := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s power %t", at, power), func(t *testing.T) {
				t.Parallel()
				systematic(t, Crash{At: at, Node: -1, Power: power}, 11, limit)
			})
		}
	}
}
