package strike

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// memberFlag makes the test binary a member process of Run.
const memberFlag = "-strike-member"

func TestMain(m *testing.M) {
	if !slices.Contains(os.Args, memberFlag) {
		os.Exit(m.Run())
	}
	if err := RunMember(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func smallFault(fault, victim string) Plan {
	return Plan{Members: 4, Size: 4<<20 + 5, Fault: fault, Victim: victim, At: 0.5, Hold: true, Detect: DefaultDetect,
		Rounds: 3}
}

// TestFaults kills, stops and cuts off real processes in mid-message: the survivors hear of it and get every byte,
// also after a stopped one has gone on. Times are not looked at: see test/bench/faults.
func TestFaults(t *testing.T) {
	for _, fault := range []string{Kill, Stop, Cut} {
		for _, victim := range []string{Leaf, Relay, Root} {
			t.Run(fault+" "+victim, func(t *testing.T) { checkFault(t, smallFault(fault, victim)) })
		}
	}
}

func checkFault(t *testing.T, plan Plan) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, err := Run(ctx, plan, []string{os.Args[0], memberFlag}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := errors.Join(r.Check(), r.Print(&text)); err != nil {
		t.Errorf("%v\n%s", err, &text)
	}
	t.Logf("\n%s", &text)
	switch {
	case plan.Victim == Root:
		if len(r.Ended) != plan.Members-1 || !strings.Contains(text.String(), "ended") {
			t.Errorf("%+v", r)
		}
	case len(r.Out) != 1 || r.Out[0].Rank != r.VictimRank || r.Total <= 0 || len(r.Undisturbed) != 1 ||
		r.RatioToBound() >= r.Ratio():
		t.Errorf("%+v", r)
	case r.Groups < 2:
		t.Errorf("%d groups", r.Groups)
	}
}

func TestNoFault(t *testing.T) {
	r, err := Run(t.Context(), smallFault(None, Leaf), []string{os.Args[0], memberFlag}, nil)
	if err = errors.Join(err, r.Check()); err != nil || len(r.Undisturbed) != 3 || len(r.Out) != 0 ||
		len(r.Verified) != 4 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestFaultPlansAreChecked(t *testing.T) {
	for text, spoil := range map[string]func(*Plan){
		"-nodes 2 to":    func(p *Plan) { p.Members = 1 },
		"-nodes 3":       func(p *Plan) { p.Members = 2 },
		"-size":          func(p *Plan) { p.Size = 1 << 20 },
		`fault "bribe"`:  func(p *Plan) { p.Fault = "bribe" },
		`victim "mayor"`: func(p *Plan) { p.Victim = "mayor" },
		"at 1.5":         func(p *Plan) { p.At = 1.5 },
		"-detect":        func(p *Plan) { p.Detect = time.Millisecond },
		"-rounds":        func(p *Plan) { p.Fault, p.Rounds = None, 0 },
	} {
		plan := smallFault(Kill, Leaf)
		spoil(&plan)
		if err := plan.Check(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestEarlyDeliveries: a delivery comes before the event that is waited for, as can happen with pipes.
func TestEarlyDeliveries(t *testing.T) {
	r := &trial{plan: smallFault(None, Leaf), victim: -1, events: make(chan event, 4), held: make(map[int]string),
		ended: make(map[int]bool), timely: t.Context()}
	r.events <- event{Event: eventDelivered, Rank: 1, Message: 2, Digest: "d"}
	r.events <- event{Event: eventReached, Rank: 0}
	r.events <- event{Event: eventDelivered, Rank: 2, Message: 2, Digest: "d"}
	if err := r.await([]int{0}, time.Minute, func(e event) bool { return e.Event == eventReached }); err != nil {
		t.Fatal(err)
	}
	r.events <- event{Event: eventPublished, Message: 2, Digest: "d", Seconds: 1, Groups: 1}
	if err := r.awaitDelivery(2, []int{1, 2}); err != nil || r.held[1] != "d" || r.held[2] != "d" || r.digest != "d" ||
		len(r.result.Undisturbed) != 1 {
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
	good := func() Result {
		return Result{Plan: smallFault(Kill, Leaf), VictimRank: 3, Undisturbed: []float64{10}, Total: 13,
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
	if err := bad.Check(); !errors.Is(err, bench.ErrDiffers) || !strings.Contains(fmt.Sprint(err), "[0 2]") {
		t.Error(err)
	}
}
