// Package faults measures what a failed node costs the replication of a file: n nodes on shaped links, one of them
// killed, stopped or cut off in the middle, then undisturbed files beside a busy processor. See README.md.
package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/test/bench/faults/strike"
	"github.com/rdmcfs/rdmcfs/test/bench/links"
)

var (
	enabled = flag.Bool("faults", false, "measure; needs root, installs packages")
	nodes   = flag.Int("nodes", 8, "nodes")
	rate    = flag.String("rate", "200mbit", "rate of the links, or unshaped")
	sizeMiB = flag.Int("size", 256, "MiB per file")
	detect  = flag.Duration("detect", strike.DefaultDetect, "detection bound")
	only    = flag.String("only", "", "regular expression: run only these cases, like 'stop relay'")
	rounds  = flag.Int("rounds", 20, "undisturbed files beside the load")
	loadMiB = flag.Int("load-size", 64, "MiB of each of them")
	half    = flag.String("half", "100mbit", "half of -rate, of one link")
	hogs    = flag.Int("cpu", 4, "stress-ng's processes beside them")
)

const (
	childFlag = "-faults-child"
	// goal is the most that the total time may be of the undisturbed one and the detection bound.
	goal = 1.10
)

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, childFlag) {
		if err := strike.RunMember(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestFaults(t *testing.T) {
	if !*enabled {
		t.Skip("run by 'make bench-faults'") // not a missing piece: timing has no place in tests
	}
	if out, err := exec.Command("./setup.sh").CombinedOutput(); err != nil {
		t.Fatalf("setup.sh: %v: %s", err, out)
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	matched := false
	chosen := func(name string) bool {
		is := wanted.MatchString(name)
		matched = matched || is
		return is
	}
	var rows []string
	for _, victim := range []string{strike.Leaf, strike.Relay, strike.Root} {
		for _, fault := range []string{strike.Kill, strike.Stop, strike.Cut} {
			if name := fault + " " + victim; chosen(name) {
				t.Run(name, func(t *testing.T) { rows = append(rows, row(name, measure(t, plan(fault, victim), nil))) })
			}
		}
	}
	if chosen("one link") {
		t.Run("one link", oneSlowLink)
	}
	if chosen(strike.None) {
		t.Run(strike.None, besideLoad)
	}
	if !matched {
		t.Fatalf("-only %q names no case: give a part of kill, stop or cut and leaf, relay or root, one link or none", *only)
	}
	t.Logf("%d nodes, %s, %d MiB, detection bound %v\n%s", *nodes, *rate, *sizeMiB, *detect, table(rows))
}

func plan(fault, victim string) strike.Plan {
	return strike.Plan{Members: *nodes, Size: uint64(*sizeMiB) << 20, Congestion: "cubic", Fault: fault, Victim: victim,
		At: 0.5, Detect: *detect}
}

// measure runs one case on links of its own, which a cut leaves cut, and fails where a goal is missed.
func measure(t *testing.T, plan strike.Plan, prepare func(*links.Links) error) strike.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	nodes := links.New(t, plan.Members, *rate, "")
	if prepare != nil {
		if err := prepare(nodes); err != nil {
			t.Fatal(err)
		}
	}
	r, err := strike.Run(ctx, plan, []string{os.Args[0], childFlag}, nodes)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.Print(&text); err != nil {
		t.Error(err)
	}
	t.Logf("\n%s", &text)
	judge(t, r)
	return r
}

// judge holds a result against the goals.
func judge(t *testing.T, r strike.Result) {
	t.Helper()
	if err := r.Check(); err != nil {
		t.Error(err)
	}
	if err := r.Late(); err != nil {
		t.Error(err)
	}
	if r.VictimRank > 0 && r.RatioToBound() > goal {
		t.Errorf("total %.3f of the undisturbed time and the bound, goal %.2f", r.RatioToBound(), goal)
	}
}

// oneSlowLink sends undisturbed files while the link between two nodes has half the rate: nobody may be left out.
func oneSlowLink(t *testing.T) {
	p := plan(strike.None, strike.Leaf)
	p.Rounds = 2
	measure(t, p, func(nodes *links.Links) error {
		return errors.Join(nodes.Slow(t.Context(), 1, 3, *half), nodes.Slow(t.Context(), 3, 1, *half))
	})
}

// besideLoad sends undisturbed files while stress-ng runs: nobody may be left out.
func besideLoad(t *testing.T) {
	load := exec.CommandContext(t.Context(), "stress-ng", "--cpu", fmt.Sprint(*hogs), "--quiet")
	load.Cancel = func() error { return load.Process.Signal(os.Interrupt) }
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		load.Process.Signal(os.Interrupt)
		load.Wait()
	}()
	p := plan(strike.None, strike.Leaf)
	p.Size, p.Rounds = uint64(*loadMiB)<<20, *rounds
	r := measure(t, p, nil)
	t.Logf("%d files of %d MiB beside %d processes of stress-ng: %d nodes left out; median %.2f s, worst %.2f s",
		len(r.Undisturbed), *loadMiB, *hogs, len(r.Out), bench.Median(r.Undisturbed), slices.Max(r.Undisturbed))
}

// row is a line of the table.
func row(name string, r strike.Result) string {
	total, ratio, toBound := "-", "-", "-"
	if r.VictimRank > 0 {
		total, ratio, toBound = fmt.Sprintf("%.2f", r.Total), fmt.Sprintf("%.3f", r.Ratio()),
			fmt.Sprintf("%.3f", r.RatioToBound())
	}
	return fmt.Sprintf("| %s | %d | %.2f | %.2f | %s | %s | %s | %d of %d |", name, r.VictimRank,
		bench.Median(r.Undisturbed), r.ToldLast(),
		total, ratio, toBound, len(r.Verified), r.Members-1)
}

func table(rows []string) string {
	return "| fault | rank | undisturbed s | last heard s | total s | of undisturbed | of undisturbed + bound | " +
		"verified |\n|-|-|-|-|-|-|-|-|\n" + strings.Join(rows, "\n")
}

func TestTable(t *testing.T) {
	r := strike.Result{Plan: plan(strike.Kill, strike.Leaf), VictimRank: 7, Undisturbed: []float64{22}, Total: 24,
		Told: map[int]float64{0: 0.25}, Verified: []int{0, 1, 2, 3, 4, 5, 6}}
	r.Members = 8
	if got := row("kill leaf", r); got != "| kill leaf | 7 | 22.00 | 0.25 | 24.00 | 1.091 | 0.960 | 7 of 7 |" {
		t.Error(got)
	}
	r.VictimRank, r.Verified = 0, nil
	if got := row("kill root", r); got != "| kill root | 0 | 22.00 | 0.25 | - | - | - | 0 of 7 |" {
		t.Error(got)
	}
}
