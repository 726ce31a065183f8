package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/internal/units"
	"github.com/rdmcfs/rdmcfs/lab/pin"
)

// paperCrossing is how often a buffer of 8 MB had to be used until the cache was as fast as the pipeline (Woodall et
// al., section 6.1).
const paperCrossing = "40 to 50"

// PinRun is a plan and what was measured of it.
type PinRun struct {
	Plan    PinPlan
	Results []PinResult
}

// PinPrint prints runs, one for each rate, as tables, CSV, or a line of JSON for each point.
func PinPrint(w io.Writer, format bench.Format, runs []PinRun) error {
	switch format {
	case bench.JSON:
		encoder := json.NewEncoder(w)
		for _, run := range runs {
			for _, r := range run.Results {
				if err := encoder.Encode(r); err != nil {
					return err
				}
			}
		}
		return nil
	case bench.CSV:
		return pinCSV(w, runs)
	}
	var b strings.Builder
	for _, run := range runs {
		pinText(&b, run.Plan, run.Results)
	}
	pinCrossings(&b, runs)
	_, err := io.WriteString(w, b.String())
	return err
}

// pinText prints the tables of one rate.
func pinText(b *strings.Builder, p PinPlan, results []PinResult) {
	link := "The socket is not paced: the processors that register are also what carries the bytes."
	if p.Rate > 0 {
		link = fmt.Sprintf("The socket is paced to %s.", units.Rate(float64(p.Rate)))
	}
	fmt.Fprintf(b, "%s Fragments of %s, %d at a time.\n", link, units.Exact(uint64(p.Link.Fragment)), p.Link.Depth)
	n := len(p.Sizes) * len(p.Strategies)
	if n > 0 {
		fmt.Fprintf(b, "Each buffer used once; median of %d rounds.\n\n", p.Rounds)
		pinTable(b, "size", results[:n], len(p.Strategies), func(r *PinResult) string { return units.Exact(r.Size) })
	}
	if len(p.Reuses) > 0 {
		fmt.Fprintf(b, "\nMessages of %s, by the number of uses of a buffer.\n\n", units.Exact(p.ReuseSize))
		pinTable(b, "uses", results[n:], len(p.Strategies), func(r *PinResult) string { return strconv.Itoa(r.Reuse) })
	}
	fmt.Fprintln(b)
}

// pinCrossings prints for each rate after how many uses the cache is as fast as the pipeline, and what the paper found.
func pinCrossings(b *strings.Builder, runs []PinRun) {
	if len(runs) == 0 || len(runs[0].Plan.Reuses) == 0 {
		return
	}
	fmt.Fprintf(b, "The cache is as fast as the pipeline, messages of %s:\n\n", units.Exact(runs[0].Plan.ReuseSize))
	for _, run := range runs {
		rate := "not paced"
		if run.Plan.Rate > 0 {
			rate = units.Rate(float64(run.Plan.Rate))
		}
		after := run.Results[len(run.Plan.Sizes)*len(run.Plan.Strategies):]
		fmt.Fprintf(b, "%12s  %s; %s\n", rate, crossing(after), cachingAhead(after))
	}
	fmt.Fprintf(b, "%12s  after %s uses (8 MB, InfiniBand)\n", "the paper", paperCrossing)
}

// pinTable prints a row for each point: the rate of each strategy, and how long each end registered for a message.
func pinTable(b *strings.Builder, head string, results []PinResult, strategies int, name func(*PinResult) string) {
	fmt.Fprintf(b, "%8s", head)
	for _, r := range results[:strategies] {
		fmt.Fprintf(b, "  %16s", r.Strategy)
	}
	fmt.Fprintf(b, "   registering per message, sender+receiver\n")
	for len(results) > 0 {
		row := results[:strategies]
		results = results[strategies:]
		fmt.Fprintf(b, "%8s", name(&row[0]))
		for i := range row {
			fmt.Fprintf(b, "  %16s", units.Rate(row[i].BytesPerSec))
		}
		fmt.Fprint(b, "  ")
		for i := range row {
			fmt.Fprintf(b, " %s+%s", units.Seconds(row[i].Registering[0]), units.Seconds(row[i].Registering[1]))
		}
		fmt.Fprintln(b)
	}
}

// crossing says after how many uses the cache is as fast as the pipeline.
func crossing(results []PinResult) string {
	cache, pipeline := pinCurve(results, pin.Cached), pinCurve(results, pin.Pipeline)
	if len(cache) == 0 || len(pipeline) == 0 {
		return "cache and pipeline were not both measured"
	}
	last := 0
	for i := range cache {
		if cache[i].BytesPerSec < pipeline[i].BytesPerSec {
			last = i + 1
		}
	}
	switch last {
	case 0:
		return fmt.Sprintf("from the first measured point on (%d uses)", cache[0].Reuse)
	case len(cache):
		return fmt.Sprintf("not up to %d uses", cache[last-1].Reuse)
	}
	// By how much the cache is ahead, taken as linear in 1/uses between the points on both sides.
	ahead := func(i int) float64 { return cache[i].BytesPerSec - pipeline[i].BytesPerSec }
	a, b := 1/float64(cache[last-1].Reuse), 1/float64(cache[last].Reuse)
	at := a + (b-a)*ahead(last-1)/(ahead(last-1)-ahead(last))
	return fmt.Sprintf("after %.1f uses (between %d and %d)", 1/at, cache[last-1].Reuse, cache[last].Reuse)
}

// cachingAhead compares the caching pipeline with the better of cache and pipeline, at the fewest and the most uses.
func cachingAhead(results []PinResult) string {
	caching, cache, pipeline := pinCurve(results, pin.CachedPipeline), pinCurve(results, pin.Cached),
		pinCurve(results, pin.Pipeline)
	if len(caching) == 0 || len(cache) == 0 || len(pipeline) == 0 {
		return "the caching pipeline was not measured beside both"
	}
	ratio := func(i int) float64 {
		return caching[i].BytesPerSec / max(cache[i].BytesPerSec, pipeline[i].BytesPerSec)
	}
	end := len(caching) - 1
	return fmt.Sprintf("caching pipeline %.2f times the better of both at %d uses, %.2f at %d", ratio(0), caching[0].Reuse,
		ratio(end), caching[end].Reuse)
}

func pinCurve(results []PinResult, s pin.Strategy) (out []PinResult) {
	for _, r := range results {
		if r.Strategy == s.String() {
			out = append(out, r)
		}
	}
	return out
}

func pinCSV(w io.Writer, runs []PinRun) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"paced_to_bytes_per_second", "strategy", "message_bytes", "uses_of_a_buffer", "median_seconds",
		"bytes_per_second", "giving_up_seconds",
		"sender_registering_seconds", "receiver_registering_seconds"})
	number := func(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }
	for _, run := range runs {
		for _, r := range run.Results {
			_ = out.Write([]string{strconv.FormatUint(r.Rate, 10), r.Strategy, strconv.FormatUint(r.Size, 10),
				strconv.Itoa(r.Reuse),
				number(bench.Median(r.Seconds)), number(r.BytesPerSec), number(r.GivingUp), number(r.Registering[0]),
				number(r.Registering[1])})
		}
	}
	out.Flush()
	return out.Error()
}
