package multicast

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/test/bench/links"
)

const (
	overlapRate = "200mbit"
	// batchBytes is about what a sender sends in a round of smaller messages, at most batchMax of them.
	batchBytes = 8e6
	batchMax   = 500
	// largeBytes is where the goals of rates and shares begin.
	largeBytes = 100e6
	linksGoal  = 0.90
	sharesGoal = 0.90
)

// TestOverlap is line 7 of the multicast's goals: several members send at once, each to all others. The links' share
// is the least time in which each member's link, at iperf3's rate, takes in the messages of all others, over the time
// it took.
func TestOverlap(t *testing.T) {
	measured(t)
	bytes, err := bench.ParseSizes(strings.Split(*sizes, ","))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range counts(t, 3, 4, 5, 6, 7, 8) {
		t.Run(fmt.Sprintf("n=%d", n), func(t *testing.T) { overlap(t, n, bytes) })
	}
}

func overlap(t *testing.T, n int, sizes []uint64) {
	nodes := links.New(t, n, overlapRate, "")
	pace, err := bench.IperfPace(t.Context(), nodes.Links, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "RESULT n=%d, links of %s, iperf3 %.2f MB/s, %d rounds\n", n, overlapRate, pace.Rate/1e6, *rounds)
	fmt.Fprintf(&b,
		"senders   bytes x batch  median s  together MB/s  of links (goal)       slowest/fastest (goal)  CPU s/GB  idle  "+
			"each sender's s\n")
	for _, size := range sizes {
		plan := one(n, size, bench.Auto)
		plan.Senders, plan.Rounds, plan.LinkRate = strings.Split(*senders, ","), *rounds, pace.Rate
		plan.Batch = int(max(1, min(batchBytes/size, batchMax)))
		for _, r := range run(t, nodes, plan) {
			row(t, &b, r)
		}
	}
	t.Log(b.String())
}

func row(t *testing.T, b *strings.Builder, r bench.Result) {
	t.Helper()
	ofLinks, shares := fmt.Sprintf("%.3f", r.OfLinks), fmt.Sprintf("%.3f", 1/r.Shares)
	switch {
	case r.Idle < idleMin:
		ofLinks, shares = ofLinks+" (void)", shares+" (void)"
	case r.Size >= largeBytes:
		ofLinks += fmt.Sprintf(" (%.2f %s)", linksGoal, within(t, r.OfLinks >= linksGoal))
		shares += fmt.Sprintf(" (%.2f %s)", sharesGoal, within(t, 1/r.Shares >= sharesGoal))
	}
	fmt.Fprintf(b, "%7d %9d x %3d %9.3f %14.2f  %-20s  %-22s %9.2f %4.0f%%  %.2f\n",
		r.Senders, r.Size, r.Batch, r.Median, r.BytesPerSec/1e6, ofLinks, shares, r.CPUPerGB, 100*r.Idle, r.SenderSeconds)
}
