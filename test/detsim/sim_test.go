package detsim

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/detsim/replay"
)

var (
	seedsFlag = flag.Uint64("sim.seeds", 0, "how many seeds TestSeeds runs (0: as many as CI)")
	fromFlag  = flag.Uint64("sim.from", 1, "the first seed of TestSeeds")
	seedFlag  = flag.Uint64("sim.seed", 0, "run this seed alone; with -v its trace is printed")
)

const (
	seedsUsual = 500
	shortShare = 20

	comebackSeeds = 20
)

// TestSeeds runs clusters of real daemons in which everything goes wrong, one for each seed, and holds them against
// the guarantees.
func TestSeeds(t *testing.T) {
	program := build(t)
	if *seedFlag != 0 {
		out, err := run(t, program, *seedFlag, testing.Verbose())
		t.Logf("%s", out)
		if err != nil {
			t.Fatalf("seed %d: %v", *seedFlag, err)
		}
		return
	}
	seeds := *seedsFlag
	if seeds == 0 {
		seeds = seedsUsual
		if testing.Short() {
			seeds /= shortShare
		}
	}
	eachSeed(t, seeds, func(seed uint64) {
		out, err := run(t, program, seed, false)
		if first, _, _ := strings.Cut(out, "\n"); testing.Verbose() {
			fmt.Println(first)
		}
		if err != nil {
			t.Errorf("seed %d: %v\n%s\n  replay: go test ./test/detsim -run TestSeeds -sim.seed=%d -v", seed, err,
				lastLines(out), seed)
		}
	})
}

// eachSeed does something with a number of seeds, as many at a time as there are processors.
func eachSeed(t *testing.T, seeds uint64, do func(seed uint64)) {
	var next atomic.Uint64
	next.Store(*fromFlag)
	var workers sync.WaitGroup
	for range runtime.NumCPU() {
		workers.Go(func() {
			for seed := next.Add(1) - 1; seed < *fromFlag+seeds && !(t.Failed() && failFast()); seed = next.Add(1) - 1 {
				do(seed)
			}
		})
	}
	workers.Wait()
}

// failFast reports whether one failing seed is enough.
func failFast() bool {
	f := flag.Lookup("test.failfast")
	return f != nil && f.Value.String() == "true"
}

// TestSameSeedSameTrace holds that a seed says everything: each run of it is the same, event by event.
func TestSameSeedSameTrace(t *testing.T) {
	program := build(t)
	eachSeed(t, 3, func(seed uint64) {
		first := ""
		for range 3 {
			out, err := run(t, program, seed, false)
			line, _, _ := strings.Cut(out, "\n")
			if err != nil && !strings.HasPrefix(line, "seed ") {
				t.Errorf("seed %d: %v: %s", seed, err, lastLines(out))
				return
			}
			if first == "" {
				first = line
			} else if line != first {
				t.Errorf("two runs of one seed:\n%s\n%s", first, line)
			}
		}
	})
}

// G6: nodes that were gone, alone or two at a time, are up and owed nothing within two seconds of their return, plus
// the time that their lines need.
func TestNodesThatAreBackAreHealedInTime(t *testing.T) {
	program := build(t)
	seeds := uint64(comebackSeeds)
	if testing.Short() {
		seeds /= shortShare
	}
	eachSeed(t, seeds, func(seed uint64) {
		if out, err := runTest(t, program, "TestOneComeback", "back", seed, testing.Verbose()); err != nil {
			t.Errorf("seed %d: %v\n%s", seed, err, lastLines(out))
		}
	})
}

// build makes the program that replays.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "detsim.test")
	if err := replay.Build(".", program); err != nil {
		t.Fatal(err)
	}
	return program
}

// run runs one seed. All of its files are in memory if the machine can do that.
func run(t *testing.T, program string, seed uint64, verbose bool) (string, error) {
	t.Helper()
	return runTest(t, program, "TestOneSeed", "sim", seed, verbose)
}

// runTest runs one seed of a test, in a directory of its own name: runs of two tests at the same time do not share one.
func runTest(t *testing.T, program, test, name string, seed uint64, verbose bool) (string, error) {
	t.Helper()
	dir := filepath.Join(memory(), fmt.Sprintf("rdmcfs-%s-%d", name, seed)) // its length counts: the same each time
	defer alone(t, dir).Close()
	_ = os.RemoveAll(dir) // what a run that was killed has left; MkdirAll or the run itself says if it is still there
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	out, err := replay.Output(replay.Command(t.Context(), program, fmt.Sprint(seed), dir, verbose, "-test.run=^"+test+"$",
		"-test.timeout=0"))
	return string(out), err
}

// alone waits until no other process runs the same seed: that would use the same directory.
func alone(t *testing.T, dir string) net.Listener {
	t.Helper()
	for {
		l, err := net.Listen("unix", "@"+dir)
		if err == nil {
			return l
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

func memory() string {
	const shm = "/dev/shm"
	if st, err := os.Stat(shm); err == nil && st.IsDir() {
		return shm
	}
	return os.TempDir()
}

// lastLines returns the end of the output, which says what went wrong.
func lastLines(out string) string {
	const most = 16000
	return out[max(0, len(out)-most):]
}
