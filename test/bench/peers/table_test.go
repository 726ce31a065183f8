package peers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
)

// outcome is one run: seconds until all receivers had everything, and processor seconds of all processes, 0 if unknown.
type outcome struct{ seconds, cpu float64 }

// program is one way to bring the bytes to all nodes. It moves them from memory to memory, timed inside, or from file
// to file, timed with the start of the program.
type program struct {
	name, moves string
	run         func(context.Context) (outcome, error)
}

// row is what was measured of a program.
type row struct {
	program
	seconds, perGB, idle []float64
	ratios               []float64 // its time over that of our run just before
	failures             []string
}

// table renders the rows, fastest first below ours. link may be empty.
func table(ours, link row, peers []row) string {
	slices.SortStableFunc(peers, func(a, b row) int {
		switch x, y := bench.Median(a.seconds), bench.Median(b.seconds); {
		case x < y, len(b.seconds) == 0 && len(a.seconds) > 0:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	var b strings.Builder
	fmt.Fprintf(&b, "%-31s %-6s %9s %9s %7s %7s  %-32s %8s %6s\n",
		"program", "moves", "median s", "worst s", "/iperf3", "worst", "throughput: ours to its (bounds)", "CPU s/GB", "idle")
	line := bench.Median(link.seconds)
	if len(link.seconds) > 0 {
		link.print(&b, line)
	}
	ours.print(&b, line)
	for _, r := range peers {
		r.print(&b, line)
	}
	return b.String()
}

func (r *row) print(b *strings.Builder, line float64) {
	fmt.Fprintf(b, "%-31s %-6s ", r.name, r.moves)
	if len(r.seconds) == 0 {
		fmt.Fprintf(b, "failed %d times\n", len(r.failures))
		return
	}
	median, worst := bench.Median(r.seconds), slices.Max(r.seconds)
	fmt.Fprintf(b, "%9.3f %9.3f ", median, worst)
	if line > 0 {
		fmt.Fprintf(b, "%7.3f %7.3f  ", median/line, worst/line)
	} else {
		fmt.Fprintf(b, "%7s %7s  ", "-", "-")
	}
	fmt.Fprintf(b, "%-32s %8s %5.0f%%", r.ratioText(), cpuText(bench.Median(r.perGB)), 100*slices.Min(r.idle))
	if len(r.failures) > 0 {
		fmt.Fprintf(b, "  failed %d times", len(r.failures))
	}
	b.WriteByte('\n')
}

func (r *row) ratioText() string {
	if len(r.ratios) == 0 {
		return "-"
	}
	bounds := medianBounds(r.ratios, confidence)
	return fmt.Sprintf("%.3f (%.3f to %.3f, %.1f%%)", bench.Median(r.ratios), bounds.low, bounds.high,
		100*bounds.confidence)
}

func cpuText(perGB float64) string {
	if perGB == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", perGB)
}

func TestTable(t *testing.T) {
	ours := row{program: program{name: "ours", moves: "memory"},
		seconds: []float64{2, 1, 3}, perGB: []float64{1, 2, 3}, idle: []float64{0.5, 0.25, 1}}
	link := row{program: program{name: "link", moves: "memory"}, seconds: []float64{1}, perGB: []float64{0},
		idle: []float64{1}}
	slow := row{program: program{name: "slow", moves: "file"},
		seconds: []float64{4, 6, 5}, perGB: []float64{1, 1, 1}, idle: []float64{0, 0, 0}, ratios: []float64{2, 6, 5.0 / 3}}
	quick := slow
	quick.name, quick.seconds, quick.failures = "quick", []float64{3, 3, 3}, []string{"once"}
	dead := row{program: program{name: "dead", moves: "file"}, failures: []string{"a", "b"}}
	lines := strings.Split(table(ours, link, []row{dead, slow, quick}), "\n")
	for i, want := range [][]string{
		{"program", "CPU s/GB"}, {"link", "1.000", " - "}, {"ours", "2.000", "3.000", "2.00", "25%"},
		{"quick", "failed 1 times"}, {"slow", "5.000", "6.000", "2.000 (1.667 to 6.000, 75.0%)", "1.00"},
		{"dead", "failed 2 times"},
	} {
		for _, w := range want {
			if !strings.Contains(lines[i], w) {
				t.Errorf("line %d: no %q in %q", i, w, lines[i])
			}
		}
	}
	if text := table(ours, row{}, nil); strings.Contains(text, "link") || !strings.Contains(text, " - ") {
		t.Errorf("unshaped:\n%s", text)
	}
}
