// Package peers measures our multicast side by side with other programs that bring the same bytes from one node to
// others: Open MPI, uftp, udpcast, rsync, aria2. See README.md.
package peers

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
)

var (
	enabled = flag.Bool("peers", false, "run the comparison; needs root, installs packages")
	nodes   = flag.String("nodes", "4,8", "numbers of nodes")
	rates   = flag.String("rates", "200mbit,unshaped", "rates of the links")
	sizeMiB = flag.Int("size", 64, "MiB per message")
	rounds  = flag.Int("rounds", 6, "rounds; fewer than 6 give no bounds of 95%")
	repeat  = flag.Int("messages", 1, "messages in each run of a program that is timed inside; the median counts")
	block   = flag.String("block", bench.Auto, "our bytes per block, like 1MiB")
	only    = flag.String("only", "", "regular expression: run only these peers")
	control = flag.String("cc", "cubic,bbr", "congestion controls that the nodes give to each socket that asks for none")
)

const (
	childFlag    = "-peers-child"
	trackerFlag  = "-peers-tracker"
	confidence   = 0.95
	startTimeout = 5 * time.Minute
)

func TestMain(m *testing.M) {
	role := func() error { os.Exit(m.Run()); return nil }
	switch {
	case slices.Contains(os.Args, childFlag):
		role = func() error { return bench.RunChild(context.Background(), os.Stdin, os.Stdout, nil) }
	case slices.Contains(os.Args, trackerFlag):
		role = func() error { return serveTracker(os.Args[len(os.Args)-1]) }
	}
	if err := role(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestPeers prints a table of ratios for each number of nodes and rate. It fails where a peer that is timed as we
// are, memory to memory, is faster beyond the bounds, and where a program fails.
func TestPeers(t *testing.T) {
	if !*enabled {
		t.Skip("run by 'make bench-peers'") // not a missing piece: timing has no place in tests
	}
	if out, err := exec.Command("./setup.sh").CombinedOutput(); err != nil {
		t.Fatalf("setup.sh: %v: %s", err, out)
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := bench.ParseBlocks([]string{*block})
	if err != nil {
		t.Fatal(err)
	}
	for rate := range strings.SplitSeq(*rates, ",") {
		for number := range strings.SplitSeq(*nodes, ",") {
			n, err := strconv.Atoi(number)
			if err != nil {
				t.Fatalf("-nodes %q: %v", *nodes, err)
			}
			for cc := range strings.SplitSeq(*control, ",") {
				t.Run(fmt.Sprintf("n=%d/%s/%s", n, rate, cc), func(t *testing.T) {
					compare(t, newSite(t, n, rate, cc, blocks[0]), wanted)
				})
			}
		}
	}
}

// compare runs all programs in turns, ours before each peer.
func compare(t *testing.T, site *site, wanted *regexp.Regexp) {
	us := program{"rdmcfs", "memory", site.ours}
	var rows []row
	for _, p := range site.peers() {
		if wanted.MatchString(p.name) {
			rows = append(rows, row{program: p})
		}
	}
	ours := row{program: us}
	link := row{program: program{"iperf3, 2 nodes", "memory", site.iperf}}
	for round := range *rounds {
		if site.mbit > 0 {
			link.add(t, site, nil)
		}
		for i := range rows {
			at := (i + round) % len(rows)
			before, ok := ours.add(t, site, nil)
			if !ok {
				t.Fatalf("ours failed: %s", ours.failures[0])
			}
			rows[at].add(t, site, &before)
		}
		t.Logf("round %d of %d done", round+1, *rounds)
	}
	t.Logf("%s, %d MiB, %d rounds, our blocks %s\n%s", t.Name(), *sizeMiB, *rounds, *block, table(ours, link, rows))
	for _, r := range rows {
		if bounds := medianBounds(r.ratios, confidence); r.moves == "memory" && bounds.high < 1 {
			t.Errorf("%s is faster: its time is %.3f to %.3f of ours", r.name, bounds.low, bounds.high)
		}
		for _, failure := range r.failures {
			t.Errorf("%s: %s", r.name, failure)
		}
	}
}

// add runs the row's program once; before is our run that it is compared with.
func (r *row) add(t *testing.T, s *site, before *outcome) (outcome, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.patience())
	defer cancel()
	times, err := bench.ReadProcessorTimes()
	if err != nil {
		t.Fatal(err)
	}
	o, err := r.run(ctx)
	if err != nil {
		r.failures = append(r.failures, err.Error())
		return o, false
	}
	after, err := bench.ReadProcessorTimes()
	if err != nil {
		t.Fatal(err)
	}
	r.seconds = append(r.seconds, o.seconds)
	r.perGB = append(r.perGB, o.cpu/(float64(s.size)*float64(s.n-1)/1e9))
	r.idle = append(r.idle, after.IdleSince(times))
	if before != nil {
		r.ratios = append(r.ratios, o.seconds/before.seconds)
	}
	return o, true
}
