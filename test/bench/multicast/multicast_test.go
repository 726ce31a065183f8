// Package multicast measures the multicast alone, memory to memory, between network namespaces: over shaped links
// compared with iperf3, with one slow link, and in overlapping groups. See README.md.
package multicast

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/test/bench/links"
)

var (
	enabled  = flag.Bool("multicast", false, "run the measurements; needs root, installs packages")
	nodes    = flag.String("nodes", "", "numbers of nodes; empty for those that the goals name")
	rounds   = flag.Int("rounds", 10, "runs of each case")
	controls = flag.String("cc", "bbr,cubic", "default congestion controls of the nodes")
	names    = flag.String("algorithms", "binomial-pipeline,twin,chain", "one slow link: schedules")
	sizes    = flag.String("sizes", "100MB,1MB,10KB", "overlapping groups: bytes per message")
	senders  = flag.String("senders", "one,half,all", "overlapping groups: who sends")
)

const (
	childFlag = "-multicast-child"
	// startTimeout and slowest bound a plan: the time it takes in addition to its bytes, and the bytes of its links
	// each second.
	startTimeout = 5 * time.Minute
	slowest      = 100e6 / 8
	// idleMin is the idle share of the machine below which a run says nothing about links.
	idleMin = 0.10
	// tries of a run before the machine is called busy
	tries = 2
)

func TestMain(m *testing.M) {
	if !slices.Contains(os.Args, childFlag) {
		os.Exit(m.Run())
	}
	if err := bench.RunChild(context.Background(), os.Stdin, os.Stdout, nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// measured skips the test unless measurements were asked for.
func measured(t *testing.T) {
	t.Helper()
	if !*enabled {
		t.Skip("run by 'make bench-multicast'") // not a missing piece: timing has no place in tests
	}
	if out, err := exec.Command("../../setup.sh", "bench").CombinedOutput(); err != nil {
		t.Fatalf("setup.sh: %v: %s", err, out)
	}
}

// counts are the numbers of nodes to measure: those of the flag, or the goal's.
func counts(t *testing.T, goal ...int) []int {
	t.Helper()
	if *nodes == "" {
		return goal
	}
	var out []int
	for word := range strings.SplitSeq(*nodes, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			t.Fatalf("-nodes %q: %v", *nodes, err)
		}
		out = append(out, n)
	}
	return out
}

// one is the plan of one sender's message to all nodes.
func one(n int, size uint64, algorithm string) bench.Plan {
	return bench.Plan{Members: n, Sizes: []uint64{size}, BlockSizes: []int{0}, Algorithms: []string{algorithm},
		Senders: []string{"one"}, Rounds: 1, Batch: 1, Congestion: "cubic"}
}

// patience bounds how long a plan takes, as if in each case all members sent, one after the other.
func patience(plan bench.Plan) time.Duration {
	var bytes float64
	for _, size := range plan.Sizes {
		bytes += float64(size)
	}
	bytes *= float64(plan.Rounds * plan.Batch * plan.Members * len(plan.Senders))
	return startTimeout + time.Duration(bytes/slowest*float64(time.Second))
}

// run measures a plan, in processes of its own, and returns the results of its cases.
func run(t *testing.T, nodes *links.Links, plan bench.Plan) []bench.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience(plan))
	defer cancel()
	var results []bench.Result
	if err := bench.Local(ctx, plan, []string{os.Args[0], childFlag}, nodes.Links,
		func(r bench.Result) { results = append(results, r) }); err != nil {
		t.Fatal(err)
	}
	return results
}

// valid repeats a run of one case until the machine was idle enough, some times.
func valid(t *testing.T, nodes *links.Links, plan bench.Plan) (bench.Result, bool) {
	t.Helper()
	for range tries {
		if r := run(t, nodes, plan)[0]; r.Idle >= idleMin {
			return r, true
		}
	}
	return bench.Result{}, false
}

// within returns the word for a figure that keeps its goal or misses it, and in the second case fails the test.
func within(t *testing.T, ok bool) string {
	t.Helper()
	if ok {
		return "kept"
	}
	t.Fail()
	return "MISSED"
}
