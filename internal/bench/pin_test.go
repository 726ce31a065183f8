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
	}); errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		t.Skip("no io_uring for this process:", err)
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
	for format, head := range map[Format]string{Table: "The socket is not paced", CSV: "strategy,message_bytes"} {
		var out bytes.Buffer
		if err := PinPrint(&out, format, p, results); err != nil || !strings.HasPrefix(out.String(), head) {
			t.Errorf("%v: %s", err, out.String())
		}
	}
	var out bytes.Buffer
	if err := PinPrint(&out, JSON, p, results); err != nil {
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
		"behind the pipeline up to 50":        {50, 80, 90},
		"first measured point on (1 uses)":    {101, 102, 103},
	} {
		if got := crossing(curve(cache...)); !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestPinRefusesNonsense(t *testing.T) {
	for _, p := range []PinPlan{{}, {Strategies: pin.Strategies(), Rounds: 1, Sizes: []uint64{0}}, {Strategies: pin.Strategies(), Rounds: 1, Reuses: []int{1}, ReuseSize: 2 << 30}} {
		if _, err := Pin(t.Context(), p, nil); !errors.Is(err, ErrUsage) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}
