package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/lab/pin"
	"github.com/rdmcfs/rdmcfs/lab/uring"
)

// TestMain makes the test binary the receiving process.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == memberWord {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// TestPinMeasures runs a small plan between two processes: all strategies move the bytes, and the ones that are meant
// to register memory do so.
func TestPinMeasures(t *testing.T) {
	if err := onThread(func() error {
		d, err := uring.New(uring.Config{})
		if err == nil {
			err = d.Close()
		}
		return err
	}); os.Geteuid() != 0 && (errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM)) {
		t.Skip("no io_uring for this process; root has to have it:", err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := PinPlan{Strategies: pin.Strategies(), Sizes: []uint64{10, 300 << 10}, ReuseSize: 1 << 20, Reuses: []int{1, 4},
		Rounds: 2}
	results, err := Pin(t.Context(), p, []string{program, memberWord})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 4*len(pin.Strategies()) {
		t.Fatalf("%d results", len(results))
	}
	for _, r := range results {
		whole := r.Strategy == pin.OnDemand.String() || r.Strategy == pin.Cached.String()
		if registers := whole || r.Strategy != pin.Copy.String() && r.Size > 64<<10; registers != (r.Registering[0] > 0) ||
			registers != (r.Registering[1] > 0) ||
			r.BytesPerSec <= 0 || len(r.Seconds) != p.Rounds {
			t.Errorf("%+v", r)
		}
	}
	for format, head := range map[bench.Format]string{bench.Table: "The socket is not paced",
		bench.CSV: "paced_to_bytes_per_second,strategy,message_bytes"} {
		var out bytes.Buffer
		if err := PinPrint(&out, format, []PinRun{{p, results}}); err != nil || !strings.HasPrefix(out.String(), head) {
			t.Errorf("%v: %s", err, out.String())
		}
	}
	var out bytes.Buffer
	if err := PinPrint(&out, bench.JSON, []PinRun{{p, results}}); err != nil {
		t.Fatal(err)
	}
	var again PinResult
	if err := json.NewDecoder(&out).Decode(&again); err != nil || again.Strategy != results[0].Strategy {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestPinCrossing(t *testing.T) {
	curve := func(cache ...float64) (out []PinResult) {
		for i, rate := range cache {
			c := PinCase{Strategy: pin.Cached.String(), Reuse: []int{1, 10, 50}[i]}
			out = append(out, PinResult{PinCase: c, BytesPerSec: rate})
			c.Strategy = pin.Pipeline.String()
			out = append(out, PinResult{PinCase: c, BytesPerSec: 100})
		}
		return out
	}
	for want, cache := range map[string][]float64{
		"after 16.7 uses (between 10 and 50)": {50, 98, 102},
		"not up to 50 uses":                   {50, 80, 90},
		"first measured point on (1 uses)":    {101, 102, 103},
	} {
		if got := crossing(curve(cache...)); !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestPinCrossings: a line for each rate, the caching pipeline compared with the better of the two others, and what the
// paper found.
func TestPinCrossings(t *testing.T) {
	run := func(rate uint64, rates ...float64) PinRun {
		p := PinPlan{Strategies: []pin.Strategy{pin.Cached, pin.Pipeline, pin.CachedPipeline}, Sizes: []uint64{1},
			Reuses: []int{1, 50}, ReuseSize: 8 << 20, Rate: rate}
		out := PinRun{Plan: p}
		for i, c := range p.cases() {
			out.Results = append(out.Results, PinResult{PinCase: c, BytesPerSec: rates[i]})
		}
		return out
	}
	var out strings.Builder
	if err := PinPrint(&out, bench.Table, []PinRun{run(2e9, 9, 9, 9, 10, 20, 30, 21, 20, 42),
		run(0, 9, 9, 9, 30, 20, 15, 20, 10, 20)}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2.00 GB/s  after 9.2 uses (between 1 and 50); " +
			"caching pipeline 1.50 times the better of both at 1 uses, 2.00 at 50\n",
		"not paced  from the first measured point on (1 uses); caching pipeline 0.50 times the better of both at 1 uses, " +
			"1.00 at 50\n",
		"the paper  after 40 to 50 uses (8 MB, InfiniBand)\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, out.String())
		}
	}
}

func TestPinRefusesNonsense(t *testing.T) {
	good := PinPlan{Strategies: pin.Strategies(), Rounds: 1, Sizes: []uint64{1}}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*PinPlan){
		"nothing":            func(p *PinPlan) { *p = PinPlan{} },
		"size 0":             func(p *PinPlan) { p.Sizes = []uint64{0} },
		"no sizes":           func(p *PinPlan) { p.Sizes = nil },
		"a size of 2 GiB":    func(p *PinPlan) { p.Reuses, p.ReuseSize = []int{1}, 2<<30 },
		"too many rounds":    func(p *PinPlan) { p.Rounds = 10001 },
		"a strategy twice":   func(p *PinPlan) { p.Strategies = append(p.Strategies, pin.Copy) },
		"a rate of 1 B/s":    func(p *PinPlan) { p.Rate = 1 },
		"fragments of 1 B":   func(p *PinPlan) { p.Link.Fragment = 1 },
		"too many fragments": func(p *PinPlan) { p.Link.Depth = 65 },
	} {
		p := good
		change(&p)
		if _, err := Pin(t.Context(), p, nil); !errors.Is(err, bench.ErrUsage) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestPinCause: a process that was only killed is not the cause. The receiver's exit code counts, for instance when it
// got other bytes.
func TestPinCause(t *testing.T) {
	sender := errors.New("sender")
	if err := pinCause(sender, &receiverError{code: -1}); err != sender {
		t.Error(err)
	}
	err := pinCause(sender, &receiverError{text: "bytes differ", code: 11})
	var receiver *receiverError
	if !errors.As(err, &receiver) || receiver.code != 11 || !errors.Is(err, sender) ||
		!strings.Contains(err.Error(), "bytes differ") {
		t.Error(err)
	}
	if err := pinCause(nil, &receiverError{code: -1, err: errors.New("killed")}); err == nil ||
		!strings.Contains(err.Error(), "killed") {
		t.Error(err)
	}
}

// TestRefuses: options that make no sense are refused before anything is measured.
func TestRefuses(t *testing.T) {
	for _, c := range []struct {
		code int
		text string
		args string
	}{
		{exitcode.Usage, "1 byte to 1 GiB", "--sizes 0"},
		{exitcode.Usage, "1 byte to 1 GiB", "--sizes 2GiB"},
		{exitcode.Usage, "like 64KiB", "--sizes=-1"},
		{exitcode.Usage, "nothing to measure", "--sizes= --reuse 0"},
		{exitcode.Usage, "caching-pipeline", "--strategies hope"},
		{exitcode.Usage, "twice", "--strategies copy,copy"},
		{exitcode.Usage, "1MB or more", "--rate 0,1"},
		{exitcode.Usage, "like 64KiB", "--rate=-1GB"},
		{exitcode.Usage, "one or more", "--rate="},
		{exitcode.Usage, "makes no sense", "--depth 0"},
		{exitcode.Usage, "1 to 64", "--depth 65"},
		{exitcode.Usage, "1 to 64", "--depth=-1"},
		{exitcode.Usage, "4096 at least", "--fragment 1"},
		{exitcode.Usage, "makes no sense", "--fragment 0"},
		{exitcode.Usage, "makes no sense", "--eager 0"},
		{exitcode.Usage, "1 to 10000", "--count 0"},
		{exitcode.Usage, "1 to 10000", "--reuse=-1"},
		{exitcode.Usage, "give one of them", "--csv --json"},
	} {
		var stderr strings.Builder
		if code := run(t.Context(), strings.Fields(c.args), io.Discard, &stderr); code != c.code ||
			!strings.Contains(stderr.String(), c.text) {
			t.Errorf("%s: exit code %d, %s", c.args, code, stderr.String())
		}
	}
}
