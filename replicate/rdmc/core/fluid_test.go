package core

import (
	"math"
	"math/bits"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// fluid carries blocks over links that are shared fairly: each rank sends at most one block per unit of time in all,
// and receives at most one. A lane carries its blocks one after another.
type fluid struct {
	w     *world
	lanes [][][]*flow // by sender and lane: in order
	round int         // counts changes, to drop events that are out of date
	last  time.Duration
	unit  time.Duration
}

type flow struct {
	from, to int
	left     float64 // of the block
	rate     float64
	arrive   func()
}

func (f *fluid) add(from, to, lane, _ int, arrive func()) {
	f.progress()
	f.lanes[from][lane] = append(f.lanes[from][lane], &flow{from: from, to: to, left: 1, arrive: arrive})
	f.share()
}

// progress moves all flows on to the present.
func (f *fluid) progress() {
	passed := float64(f.w.now-f.last) / float64(f.unit)
	f.last = f.w.now
	for _, fl := range f.heads() {
		fl.left -= passed * fl.rate
	}
}

func (f *fluid) heads() []*flow {
	var heads []*flow
	for _, lanes := range f.lanes {
		for _, q := range lanes {
			if len(q) > 0 {
				heads = append(heads, q[0])
			}
		}
	}
	return heads
}

// share gives each flow the smaller of its fair shares at both ends and plans the next arrival.
func (f *fluid) share() {
	f.round++
	heads := f.heads()
	out, in := make([]float64, len(f.lanes)), make([]float64, len(f.lanes))
	for _, fl := range heads {
		out[fl.from]++
		in[fl.to]++
	}
	first := math.Inf(1)
	for _, fl := range heads {
		fl.rate = min(1/out[fl.from], 1/in[fl.to])
		first = min(first, max(fl.left, 0)/fl.rate)
	}
	if len(heads) == 0 {
		return
	}
	round := f.round
	f.w.after(time.Duration(math.Ceil(first*float64(f.unit))), func() {
		if round == f.round {
			f.arrivals()
		}
	})
}

func (f *fluid) arrivals() {
	f.progress()
	var done []func()
	for _, lanes := range f.lanes {
		for i, q := range lanes {
			if len(q) > 0 && q[0].left < 1e-6 {
				done = append(done, q[0].arrive)
				lanes[i] = q[1:]
			}
		}
	}
	f.share()
	for _, d := range done {
		d()
	}
}

func runFluid(t *testing.T, a schedule.Algorithm, n int, k uint64, limits Limits) float64 {
	plan, err := schedule.NewPlan(a, n)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(1, plan, func(int) Limits { return limits })
	f := &fluid{w: w, lanes: make([][][]*flow, n), unit: 1_000_000}
	for rank := range f.lanes {
		f.lanes[rank] = make([][]*flow, len(w.nodes[rank].core.lanes.all))
	}
	w.wire = f
	w.delay = func(kind ActionKind) time.Duration { return 5000 }
	am := Announcement{Seq: 1, Size: k * simBlock, Blocks: AllBlocks(k)}
	w.announce(am, none(k))
	w.loop(func() bool { return w.nodes[0].done[1] })
	if w.err != nil {
		t.Fatal(w.err)
	}
	return float64(w.now) / float64(f.unit)
}

// TestFluidOrder holds what docs/decisions/001 found: when a member does one send at a time, links that are shared
// fairly carry the hypercube in its optimal time, plus what control messages take. Several sends at a time bring
// blocks out of the order of the schedule, which costs many block times; how many is only printed.
func TestFluidOrder(t *testing.T) {
	const k = 64
	for _, n := range []int{4, 8, 16} {
		for _, sends := range []int{1, 2, 4} {
			l := Limits{Slots: 16, Posted: 4, Pins: 4, Sends: sends, Silence: time.Hour, Interval: time.Hour}
			took := runFluid(t, schedule.BinomialPipeline, n, k, l)
			t.Logf("n=%d k=%d, %d sends at a time: %.1f block times more than k", n, k, sends, took-k)
			if optimum := float64(k - 1 + bits.Len(uint(n-1))); sends == 1 && took > optimum+1 {
				t.Errorf("n=%d: %.1f block times, want %.0f", n, took, optimum)
			}
		}
	}
}
