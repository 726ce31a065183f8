package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma/pin"
	"github.com/rdmcfs/rdmcfs/rdma/pin/uring"
)

// pinMemberArg makes the test binary the receiving process.
const pinMemberArg = "-pin-member"

// TestPinMeasures runs a small plan between two processes: all strategies move the bytes, and those that register do.
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
	p := PinPlan{Strategies: pin.Strategies(), Sizes: []uint64{10, 300 << 10}, ReuseSize: 1 << 20, Reuses: []int{1, 4}, Rounds: 2}
	results, err := Pin(t.Context(), p, []string{program, pinMemberArg})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 4*len(pin.Strategies()) {
		t.Fatalf("%d results", len(results))
	}
	for _, r := range results {
		whole := r.Strategy == pin.OnDemand.String() || r.Strategy == pin.Cached.String()
		if registers := whole || r.Strategy != pin.Copy.String() && r.Size > 64<<10; registers != (r.Registering[0] > 0) || registers != (r.Registering[1] > 0) ||
			r.BytesPerSec <= 0 || len(r.Seconds) != p.Rounds {
			t.Errorf("%+v", r)
		}
	}
	for format, head := range map[Format]string{Table: "The socket is not paced", CSV: "paced_to_bytes_per_second,strategy,message_bytes"} {
		var out bytes.Buffer
		if err := PinPrint(&out, format, []PinRun{{p, results}}); err != nil || !strings.HasPrefix(out.String(), head) {
			t.Errorf("%v: %s", err, out.String())
		}
	}
	var out bytes.Buffer
	if err := PinPrint(&out, JSON, []PinRun{{p, results}}); err != nil {
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

// TestPinCrossings: a line for each rate, the caching pipeline beside the better of both, and what the paper found.
func TestPinCrossings(t *testing.T) {
	run := func(rate uint64, rates ...float64) PinRun {
		p := PinPlan{Strategies: []pin.Strategy{pin.Cached, pin.Pipeline, pin.CachedPipeline}, Sizes: []uint64{1}, Reuses: []int{1, 50}, ReuseSize: 8 << 20, Rate: rate}
		out := PinRun{Plan: p}
		for i, c := range p.cases() {
			out.Results = append(out.Results, PinResult{PinCase: c, BytesPerSec: rates[i]})
		}
		return out
	}
	var out strings.Builder
	if err := PinPrint(&out, Table, []PinRun{run(2e9, 9, 9, 9, 10, 20, 30, 21, 20, 42), run(0, 9, 9, 9, 30, 20, 15, 20, 10, 20)}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2.00 GB/s  after 9.2 uses (between 1 and 50); caching pipeline 1.50 times the better of both at 1 uses, 2.00 at 50\n",
		"not paced  from the first measured point on (1 uses); caching pipeline 0.50 times the better of both at 1 uses, 1.00 at 50\n",
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
		if _, err := Pin(t.Context(), p, nil); !errors.Is(err, ErrUsage) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestPinCause: who only was killed is no cause, and the receiver's exit code counts, as where it got other bytes.
func TestPinCause(t *testing.T) {
	sender := errors.New("sender")
	if err := pinCause(sender, &childError{code: -1}); err != sender {
		t.Error(err)
	}
	err := pinCause(sender, &childError{rank: 1, text: "bytes differ", code: 11})
	if code, ok := ExitCode(err); !ok || code != 11 || !errors.Is(err, sender) || !strings.Contains(err.Error(), "bytes differ") {
		t.Error(err)
	}
	if err := pinCause(nil, &childError{rank: 1, code: -1, err: errors.New("killed")}); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Error(err)
	}
}
