//go:build replay

package detsim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	_ "unsafe" // for go:linkname

	"github.com/rdmcfs/rdmcfs/test/detsim/replay"
)

// simRand is the state of all the runtime's randomness (package replay).
//
//go:linkname simRand runtime.simRand
var simRand uint64

const traceBytes = 64 << 20

// notable are the lines of a trace that say what happened to machines, with the errors in their logs, the last ones
// only: a seed that failed on another machine may not replay here.
func notable(trace []byte) string {
	var out []string
	for line := range strings.SplitSeq(string(trace), "\n") {
		ofProgram := strings.Contains(line, ": close ") || strings.Contains(line, ": fsync ") ||
			strings.Contains(line, ": unlink ") || strings.Contains(line, ": rename ")
		if !ofProgram && !strings.Contains(line, "level=INFO") && !strings.Contains(line, "level=WARN") {
			out = append(out, line[:min(len(line), notableWidth)])
		}
	}
	return strings.Join(out[max(0, len(out)-notableLines):], "\n")
}

const (
	notableLines = 60
	notableWidth = 200
)

// TestOneSeed is one run. TestSeeds builds it and runs it for each seed, in a process of its own.
func TestOneSeed(t *testing.T) { oneSeed(t, Run) }

// TestOneComeback is the same for TestNodesThatAreBackAreHealedInTime.
func TestOneComeback(t *testing.T) { oneSeed(t, RunComeback) }

func oneSeed(t *testing.T, run func(Options) Result) {
	seed, err := strconv.ParseUint(os.Getenv(replay.SeedVariable), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	cryptotest.SetGlobalRandom(t, seed)
	trace := make([]byte, 0, traceBytes) // made in each run, printed in some: what is printed changes nothing
	o := Options{Seed: seed, Dir: os.Getenv("TMPDIR"), Trace: func(line string) {
		if len(trace)+len(line) < cap(trace) {
			trace = append(append(trace, line...), '\n')
		}
	}}
	wanted := os.Getenv(replay.TraceVariable) == "1"
	const odd = 0x9e3779b97f4a7c15
	simRand = seed*odd | 1
	synctest.Test(t, func(t *testing.T) {
		r := run(o)
		if wanted {
			fmt.Printf("%s", trace)
		}
		fmt.Println(r)
		if r.Err != nil {
			t.Errorf("seed %d: %v\n%s", r.Seed, r.Err, notable(trace))
		}
	})
}
