package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// faultFlag makes the test binary a member process of Fault.
const faultFlag = "-bench-fault"

func smallFault(fault, victim string) FaultPlan {
	return FaultPlan{Members: 4, Size: 4<<20 + 5, Fault: fault, Victim: victim, At: 0.5, Hold: true, Detect: DefaultDetect, Rounds: 3}
}

// TestFaults kills, stops and cuts off real processes in mid-message: the survivors hear of it and get every byte,
// also after a stopped one has gone on. Times are not looked at: see test/bench/faults.
func TestFaults(t *testing.T) {
	for _, fault := range []string{FaultKill, FaultStop, FaultCut} {
		for _, victim := range []string{VictimLeaf, VictimRelay, VictimRoot} {
			t.Run(fault+" "+victim, func(t *testing.T) { checkFault(t, smallFault(fault, victim)) })
		}
	}
}

func checkFault(t *testing.T, plan FaultPlan) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, err := Fault(ctx, plan, []string{os.Args[0], faultFlag}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := errors.Join(r.Check(), r.Print(&text)); err != nil {
		t.Errorf("%v\n%s", err, &text)
	}
	t.Logf("\n%s", &text)
	switch {
	case plan.Victim == VictimRoot:
		if len(r.Ended) != plan.Members-1 || !strings.Contains(text.String(), "ended") {
			t.Errorf("%+v", r)
		}
	case len(r.Out) != 1 || r.Out[0].Rank != r.VictimRank || r.Total <= 0 || len(r.Undisturbed) != 1 || r.RatioToBound() >= r.Ratio():
		t.Errorf("%+v", r)
	case r.Groups < 2:
		t.Errorf("%d groups", r.Groups)
	}
}

func TestNoFault(t *testing.T) {
	r, err := Fault(t.Context(), smallFault(FaultNone, VictimLeaf), []string{os.Args[0], faultFlag}, nil)
	if err = errors.Join(err, r.Check()); err != nil || len(r.Undisturbed) != 3 || len(r.Out) != 0 || len(r.Verified) != 4 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestFaultPlansAreChecked(t *testing.T) {
	for text, spoil := range map[string]func(*FaultPlan){
		"--members":   func(p *FaultPlan) { p.Members = 1 },
		"--members 3": func(p *FaultPlan) { p.Members = 2 },
		"--sizes":     func(p *FaultPlan) { p.Size = 1 << 20 },
		"--fault":     func(p *FaultPlan) { p.Fault = "bribe" },
		"--victim":    func(p *FaultPlan) { p.Victim = "mayor" },
		"--at":        func(p *FaultPlan) { p.At = 1.5 },
		"--detect":    func(p *FaultPlan) { p.Detect = time.Millisecond },
		"--count":     func(p *FaultPlan) { p.Fault, p.Rounds = FaultNone, 0 },
	} {
		plan := smallFault(FaultKill, VictimLeaf)
		spoil(&plan)
		if err := plan.Check(); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestEarlyDeliveries has a delivery come before the event that is waited for, as pipes may have it.
func TestEarlyDeliveries(t *testing.T) {
	r := &faultRun{plan: smallFault(FaultNone, VictimLeaf), victim: -1, events: make(chan faultEvent, 4), held: make(map[int]string),
		ended: make(map[int]bool), timely: t.Context()}
	r.events <- faultEvent{Event: eventDelivered, Rank: 1, Message: 2, Digest: "d"}
	r.events <- faultEvent{Event: eventReached, Rank: 0}
	r.events <- faultEvent{Event: eventDelivered, Rank: 2, Message: 2, Digest: "d"}
	if err := r.await([]int{0}, time.Minute, func(e faultEvent) bool { return e.Event == eventReached }); err != nil {
		t.Fatal(err)
	}
	r.events <- faultEvent{Event: eventPublished, Message: 2, Digest: "d", Seconds: 1, Groups: 1}
	if err := r.awaitDelivery(2, []int{1, 2}); err != nil || r.held[1] != "d" || r.held[2] != "d" || r.digest != "d" || len(r.result.Undisturbed) != 1 {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestLeafAndRelay(t *testing.T) {
	for _, c := range []struct {
		algorithm      schedule.Algorithm
		n, leaf, relay int
	}{
		{schedule.Chain, 5, 4, 1},
		{schedule.Sequential, 4, 3, 1},
	} {
		plan, err := schedule.NewPlan(c.algorithm, c.n)
		if err != nil {
			t.Fatal(err)
		}
		if leaf, relay := leafAndRelay(plan); leaf != c.leaf || relay != c.relay {
			t.Errorf("%v, n=%d: leaf %d, relay %d", c.algorithm, c.n, leaf, relay)
		}
	}
}

func TestFaultResultsAreChecked(t *testing.T) {
	good := func() FaultResult {
		return FaultResult{FaultPlan: smallFault(FaultKill, VictimLeaf), VictimRank: 3, Undisturbed: []float64{10}, Total: 13,
			Told: map[int]float64{0: 0.1, 1: 0.3, 2: 0.2}, Verified: []int{0, 1, 2}, Out: []Lost{{Rank: 3}}}
	}
	if r := good(); r.Check() != nil || r.ToldLast() != 0.3 || r.Ratio() != 1.3 || r.RatioToBound() != 1 {
		t.Errorf("%v; %+v", r.Check(), r)
	}
	bad := good()
	bad.Out = append(bad.Out, Lost{Rank: 1, Reason: "silent"})
	if err := bad.Check(); err == nil || !strings.Contains(err.Error(), "rank 1 was left out by mistake: silent") {
		t.Error(err)
	}
	bad = good()
	delete(bad.Told, 2)
	if err := bad.Check(); err == nil || !strings.Contains(err.Error(), "rank 2 was never told") {
		t.Error(err)
	}
	bad = good()
	bad.Verified = slices.Delete(bad.Verified, 1, 2)
	if err := bad.Check(); !errors.Is(err, ErrDiffers) || !strings.Contains(fmt.Sprint(err), "[0 2]") {
		t.Error(err)
	}
}
