package multicast

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/test/bench/links"
)

// shape is a message over links of a rate, with the goals for its time over iperf3's.
type shape struct {
	nodes  int
	rate   string
	size   uint64
	median float64
}

const (
	worstGoal  = 1.10
	spreadGoal = 0.02
)

func shapeOf(n int) shape {
	if n > 8 {
		return shape{n, "100mbit", 64 << 20, 1.05}
	}
	return shape{n, "200mbit", 128 << 20, 1.02}
}

// TestLinks is line 3 of the multicast's goals: its time over iperf3's for the same bytes, which runs in turns with
// it and whose best time counts.
func TestLinks(t *testing.T) {
	measured(t)
	for _, n := range counts(t, 4, 8, 16) {
		for congestion := range strings.SplitSeq(*controls, ",") {
			t.Run(fmt.Sprintf("n=%d/%s", n, congestion), func(t *testing.T) { shapeOf(n).measure(t, congestion) })
		}
	}
}

func (s shape) measure(t *testing.T, congestion string) {
	nodes := links.New(t, s.nodes, s.rate, congestion)
	var times, wires, spreads, idles, cpus []float64
	void := 0
	for range *rounds {
		wire, err := nodes.Iperf(t.Context(), 0, 1, s.size, "")
		if err != nil {
			t.Fatal(err)
		}
		r, ok := valid(t, nodes, one(s.nodes, s.size, bench.Auto))
		if !ok {
			void++
			continue
		}
		wires = append(wires, wire.Seconds())
		times = append(times, r.Median)
		spreads = append(spreads, r.Spread)
		idles = append(idles, r.Idle)
		cpus = append(cpus, r.CPUPerGB)
		t.Logf("%.3f s / iperf3 %.3f s = %.3f, blocks of %d, members within %.1f%%, %.2f CPU s/GB, idle %.0f%%",
			r.Median, wire.Seconds(), r.Median/wire.Seconds(), r.BlockSize, 100*r.Spread, r.CPUPerGB, 100*r.Idle)
	}
	if len(times) == 0 {
		t.Fatal("every run was void: the machine is busy")
	}
	link := slices.Min(wires)
	median, worst, spread := bench.Median(times)/link, slices.Max(times)/link, slices.Max(spreads)
	t.Logf("RESULT n=%d, %d MiB at %s, machine's default %s, %d runs, %d void\n"+
		"median  %.3f  goal %.2f  %s\nworst   %.3f  goal %.2f  %s\nspread  %.2f%%  goal %.0f%%  %s (median %.2f%%)\n"+
		"iperf3 %.3f to %.3f s, %.2f CPU s/GB, idle %.0f%% or more",
		s.nodes, s.size>>20, s.rate, congestion, len(times), void,
		median, s.median, within(t, median <= s.median), worst, worstGoal, within(t, worst <= worstGoal),
		100*spread, 100*spreadGoal, within(t, spread <= spreadGoal), 100*bench.Median(spreads),
		link, slices.Max(wires), bench.Median(cpus), 100*slices.Min(idles))
}
