package schedule

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	shuffled := racksOf(32, 8)
	rand.New(rand.NewPCG(1, 1)).Shuffle(32, func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	for name, c := range map[string]struct {
		in        Conditions
		small     bool
		algorithm Algorithm
		reason    string
	}{
		"tiny": {Conditions{Members: 5, Size: 64, SmallBytes: 8 << 10}, true, BinomialPipeline,
			"small message"},
		"at the bound": {Conditions{Members: 5, Size: 8 << 10, SmallBytes: 8 << 10}, true, BinomialPipeline,
			"small message"},
		"above the bound": {Conditions{Members: 5, Size: 8<<10 + 1, SmallBytes: 8 << 10}, false, BinomialPipeline,
			"circulant"},
		"no small way": {Conditions{Members: 8, Size: 64}, false, BinomialPipeline, "hypercube"},
		"empty":        {Conditions{Members: 8, SmallBytes: 10}, false, BinomialPipeline, "hypercube"},
		"two":          {Conditions{Members: 2, Size: 1 << 30}, false, BinomialPipeline, "nobody to relay"},
		"lonely":       {Conditions{Members: 1, Size: 1 << 30}, false, BinomialPipeline, "nobody to relay"},
		"racks, fast uplinks": {Conditions{Members: 32, Size: 1 << 30, Racks: shuffled}, false, BinomialPipeline,
			"not the hybrid"},
		"racks, slow uplinks": {Conditions{Members: 32, Size: 1 << 30, Racks: shuffled, Oversubscription: 8}, false,
			Hybrid, "hybrid: "},
		"one rack": {Conditions{Members: 4, Size: 1 << 30, Racks: []int{3, 3, 3, 3}, Oversubscription: 8},
			false, BinomialPipeline, "hypercube"},
		"each in its own": {Conditions{Members: 4, Size: 1 << 30, Racks: []int{0, 1, 2, 3}, Oversubscription: 8},
			false, BinomialPipeline, "hypercube"},
		"copies bound the pace": {Conditions{Members: 8, Size: 256 << 20, LinkRate: 5e9, Copies: true}, false, Chain,
			"copies from its cache"},
		"the card copies": {Conditions{Members: 8, Size: 256 << 20, LinkRate: 5e9}, false, BinomialPipeline,
			"hypercube"},
		"links bound the pace": {Conditions{Members: 8, Size: 256 << 20, LinkRate: 1.2e9, Copies: true}, false,
			BinomialPipeline, "hypercube"},
		"a slow processor": {Conditions{Members: 8, Size: 256 << 20, LinkRate: 1.2e9, LinkBusy: 0.9, Copies: true},
			false, Chain, "copies from its cache"},
		"links and processor": {Conditions{Members: 8, Size: 256 << 20, LinkRate: 1.2e9, LinkBusy: 0.3, Copies: true},
			false, BinomialPipeline, "hypercube"},
		"busy with a slow link": {Conditions{Members: 8, Size: 256 << 20, LinkRate: 0.1e9, LinkBusy: 0.9, Copies: true},
			false, BinomialPipeline, "hypercube"},
		"too short for a chain": {Conditions{Members: 100, Size: 256 << 20, LinkRate: 5e9, Copies: true}, false,
			BinomialPipeline, "circulant"},
		"no chain of two": {Conditions{Members: 2, Size: 256 << 20, LinkRate: 5e9, Copies: true}, false,
			BinomialPipeline, "nobody to relay"},
		"small in racks as well": {Conditions{Members: 32, Size: 9, SmallBytes: 9, Racks: shuffled, Oversubscription: 8},
			true, BinomialPipeline, "small"},
	} {
		got, err := Choose(c.in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Small != c.small || got.Algorithm != c.algorithm ||
			!strings.Contains(strings.Join(got.Reasons, "\n"), c.reason) {
			t.Errorf("%s: %+v", name, got)
		}
		if again, _ := Choose(c.in); !reflect.DeepEqual(again, got) {
			t.Errorf("%s: chosen differently the second time", name)
		}
		if c.small {
			continue
		}
		plan, err := NewPlan(got.Algorithm, c.in.Members)
		if got.Algorithm == Hybrid {
			plan, err = NewHybridPlan(c.in.Racks)
		}
		if err != nil || plan.Members() != c.in.Members {
			t.Errorf("%s: no plan for the choice: %v", name, err)
		}
	}
}

// TestChooseHybridWhereItIsFaster holds the choice against the simulation of racks with an uplink each.
func TestChooseHybridWhereItIsFaster(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 1))
		racks := racksOf(32, []int{4, 8, 16}[seed%3])
		rng.Shuffle(32, func(i, j int) { racks[i], racks[j] = racks[j], racks[i] })
		over := []float64{1, 1.5, 6, 16}[seed/3]
		got, err := Choose(Conditions{Members: 32, Size: 1 << 30, Racks: racks, Oversubscription: over})
		if err != nil {
			t.Fatal(err)
		}
		flat, _ := NewPlan(BinomialPipeline, 32)
		hybrid, _ := NewHybridPlan(racks)
		_, largest := shape(racks)
		slow, fast := uplinks(t, flat, racks, over/float64(largest)), uplinks(t, hybrid, racks, over/float64(largest))
		if got.Algorithm == Hybrid && fast > slow || got.Algorithm != Hybrid && slow > 1.3*fast {
			t.Errorf("racks of %d, oversubscribed %g: chose %v, where flat takes %.0f and hybrid %.0f", largest, over,
				got.Algorithm, slow, fast)
		}
	}
}

// TestChooseBlocks: small where a link is slow or unknown, by the link's pace above that, within the message's length.
func TestChooseBlocks(t *testing.T) {
	for _, c := range []struct {
		size  uint64
		link  float64
		block int
		why   string
	}{
		{1 << 30, 0, 64 << 10, "not known"}, {1 << 30, 25e6, 64 << 10, "slow"}, {1 << 30, 250e6, 64 << 10, "slow"},
		{1 << 30, 300e6, 256 << 10, "millisecond"}, {1 << 30, 1e9, 512 << 10, "millisecond"},
		{1 << 30, 1e300, 1 << 20, "millisecond"},
		{32 << 20, 5e9, 1 << 20, "millisecond"}, {32<<20 - 1, 5e9, 512 << 10, "millisecond"},
		{1 << 20, 5e9, 64 << 10, "millisecond"},
		{64 << 10, 5e9, 64 << 10, "no longer than one"}, {1, 0, 64 << 10, "no longer than one"},
	} {
		got, err := Choose(Conditions{Members: 8, Size: c.size, LinkRate: c.link})
		if err != nil || got.BlockSize != c.block || !strings.Contains(strings.Join(got.Reasons, "\n"), c.why) {
			t.Errorf("%d bytes, link of %g: %+v, %v", c.size, c.link, got, err)
		}
	}
}

// TestChooseLongBlocks: without a known pace blocks grow with the message as far as the caller lets them.
func TestChooseLongBlocks(t *testing.T) {
	for _, c := range []struct {
		size   uint64
		max    int
		block  int
		window int
	}{
		{1 << 20, 256 << 10, 64 << 10, 64}, {128<<20 + 65535, 256 << 10, 64 << 10, 64},
		{128<<20 + 65536, 256 << 10, 128 << 10, 64},
		{256<<20 + 131072, 256 << 10, 256 << 10, 32}, {1 << 40, 256 << 10, 256 << 10, 32}, {1 << 40, 2 << 20, 2 << 20, 16},
		{1 << 40, 0, 64 << 10, 64}, {1 << 40, 100 << 10, 64 << 10, 64},
	} {
		got, err := Choose(Conditions{Members: 4, Size: c.size, BlockMax: c.max, WindowBytes: 8 << 20})
		if err != nil || got.BlockSize != c.block || got.Window != c.window || len(got.Reasons) != 3 {
			t.Errorf("%d bytes, blocks of %d at most: %+v, %v", c.size, c.max, got, err)
		}
	}
}

// TestChooseAsAsked: what the caller has chosen stays, whatever else is known.
func TestChooseAsAsked(t *testing.T) {
	asked := Conditions{Members: 5, Size: 64, SmallBytes: 100, LinkRate: 1e9, Algorithm: Chain, BlockSize: 40, Window: 3}
	got, err := Choose(asked)
	if err != nil || got.Small || got.Algorithm != Chain || got.BlockSize != 40 || got.Window != 3 ||
		strings.Count(strings.Join(got.Reasons, "\n"), "as asked for") != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	asked.Algorithm, asked.Racks = Hybrid, []int{0, 0, 1, 1, 1}
	if got, err = Choose(asked); err != nil || got.Algorithm != Hybrid {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAlgorithmAsText(t *testing.T) {
	for _, a := range Algorithms() {
		text, err := a.MarshalText()
		var got Algorithm
		if err != nil || got.UnmarshalText(text) != nil || got != a {
			t.Errorf("%v: %q, %v", a, text, err)
		}
	}
	if _, err := Algorithm(0).MarshalText(); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func TestChooseInvalid(t *testing.T) {
	for _, c := range []Conditions{{}, {Members: MaxMembers + 1}, {Members: 3, Racks: []int{1}},
		{Members: 3, Oversubscription: -1},
		{Members: 4, Racks: []int{1, 1, 2, 2}, Oversubscription: math.NaN()},
		{Members: 3, LinkRate: -1}, {Members: 3, LinkRate: math.NaN()}, {Members: 3, BlockSize: -1}, {Members: 3, Window: -1},
		{Members: 3, BlockMax: -1}, {Members: 3, WindowBytes: -1},
		{Members: 3, Algorithm: 99}, {Members: 3, Algorithm: Hypercube}, {Members: 3, Algorithm: Hybrid}} {
		if _, err := Choose(c); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestChooseCalls: each member is called where the copies are no more on the root's link than one copy, what is queued
// before it, and what a session of the group is worth.
func TestChooseCalls(t *testing.T) {
	for _, c := range []struct {
		members int
		size    uint64
		bound   int
		queued  uint64
		calls   bool
	}{
		{1, 1 << 20, 1 << 20, 0, true}, {2, 1 << 20, 1 << 20, 0, true}, // nobody else, or no copy is saved
		{3, 256 << 10, 1 << 20, 0, true}, {3, 256<<10 + 1, 1 << 20, 0, false},
		{4, 128 << 10, 1 << 20, 0, true}, {4, 128<<10 + 1, 1 << 20, 0, false},
		{8, 43 << 10, 1 << 20, 0, false}, {8, 42 << 10, 1 << 20, 0, true},
		{8, 1 << 20, 1 << 20, 0, false}, {8, 1 << 20, 1 << 20, 6 << 20, true}, {8, 1 << 20, 1 << 20, 5 << 20, false},
		{8, 1 << 20, 1 << 20, math.MaxInt64, true},
		{2, 1<<20 + 1, 1 << 20, 0, false}, {3, 1, 0, 0, false}, // not for calls
		{MaxMembers, 1, 1, 0, true},
	} {
		got, err := Choose(Conditions{Members: c.members, Size: c.size, CallBytes: c.bound, Queued: c.queued})
		if err != nil || got.Calls != c.calls {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
		switch first := got.Reasons[0]; {
		case c.calls && (len(got.Reasons) != 1 || !strings.HasPrefix(first, "calls: ") || got.BlockSize != 0):
			t.Errorf("%+v: %+v", c, got)
		case !c.calls && c.size <= uint64(c.bound) && !strings.HasPrefix(first, "not by calls: "):
			t.Errorf("%+v: %+v", c, got)
		case !c.calls && (got.BlockSize == 0 || got.Window == 0 || got.Algorithm != BinomialPipeline):
			t.Errorf("%+v: %+v", c, got)
		}
	}
	got, err := Choose(Conditions{Members: 2, Size: 1, CallBytes: 9, Algorithm: Chain})
	if err != nil || got.Calls || got.Algorithm != Chain {
		t.Errorf("an algorithm was asked for: %+v, %v", got, err)
	}
	for _, c := range []Conditions{{Members: 3, CallBytes: -1}, {CallBytes: 1}} {
		if _, err := Choose(c); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
