package strike

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/internal/units"
)

// Print writes the result for people.
func (r Result) Print(w io.Writer) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	what := "undisturbed"
	if r.VictimRank >= 0 {
		what = fmt.Sprintf("%s %s, rank %d, at %.0f%%", r.Fault, r.Victim, r.VictimRank, 100*r.At)
	}
	line("run", "%d nodes, a file of %s: %s; detection bound %v", r.Members, units.Exact(r.Size), what, r.Detect)
	line("undisturbed", "%s, median of %d", units.Seconds(bench.Median(r.Undisturbed)), len(r.Undisturbed))
	if r.VictimRank >= 0 {
		line("heard", "%s; the last after %s, bound %v", rankTimes(r.Told), units.Seconds(r.ToldLast()), r.Detect)
	}
	if r.VictimRank > 0 {
		line("total", "%s: %.3f of undisturbed, %.3f of undisturbed and the bound; %d groups", units.Seconds(r.Total),
			r.Ratio(), r.RatioToBound(), r.Groups)
	}
	if r.VictimRank == 0 {
		line("ended", "%s", rankTimes(r.Ended))
	} else {
		line("verified", "all bytes, at ranks %v", r.Verified)
	}
	line("out", "%s", r.outText())
	if r.VictimHas {
		line("victim", "has the file nevertheless")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Result) outText() string {
	if len(r.Out) == 0 {
		return "nobody"
	}
	var all []string
	for _, lost := range r.Out {
		all = append(all, fmt.Sprintf("rank %d: %s", lost.Rank, lost.Reason))
	}
	return strings.Join(all, "; ")
}

// rankTimes lists times by rank.
func rankTimes(times map[int]float64) string {
	var all []string
	for _, rank := range slices.Sorted(maps.Keys(times)) {
		all = append(all, fmt.Sprintf("%d: %s", rank, units.Seconds(times[rank])))
	}
	return strings.Join(all, ", ")
}
