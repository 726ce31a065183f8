package core

import (
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// universe runs several groups (worlds) on the same machines and links, in one virtual time. Each machine has an
// arbiter, as an engine has one, for its ends of all groups.
type universe struct {
	net      *simNet
	worlds   []*world
	arbiters []*share.Arbiter
	places   [][]int // by world and rank: the machine
	now      time.Duration
	ticked   time.Duration
}

// simNet carries blocks between machines, each of which sends and receives no more than its links allow. Those of a
// lane go one after another. Lanes share a link fairly, as TCP's do in the long run, or, with fifo, one block after
// another in the order of posting, as on a link with a deep queue.
type simNet struct {
	u       *universe
	out, in []float64          // bytes a second, by machine
	pair    map[[2]int]float64 // by machines: less than the links of both
	fifo    bool
	flows   []*netFlow // in order of posting
	last    time.Duration
	next    time.Duration // of the next arrival
}

type netFlow struct {
	from, to int
	lane     [3]int // world, rank and lane
	left     float64
	rate     float64
	fixed    bool
	arrive   func()
}

// netPort is the net as one world sees it.
type netPort struct {
	net   *simNet
	world int
}

func (p netPort) add(from, to, lane, bytes int, arrive func()) {
	place := p.net.u.places[p.world]
	p.net.progress()
	p.net.flows = append(p.net.flows, &netFlow{from: place[from], to: place[to], lane: [3]int{p.world, from, lane},
		left: float64(bytes), arrive: arrive})
	p.net.share()
}

func (n *simNet) progress() {
	for _, f := range n.flows {
		f.left -= f.rate * (n.u.now - n.last).Seconds()
	}
	n.last = n.u.now
}

// heads are the flows that move now.
func (n *simNet) heads() (heads []*netFlow) {
	for _, f := range n.flows {
		f.rate, f.fixed = 0, false
		if !slices.ContainsFunc(heads, func(h *netFlow) bool { return h.lane == f.lane || n.fifo && h.from == f.from }) {
			heads = append(heads, f)
		}
	}
	return heads
}

// share gives each moving flow its max-min fair rate, and finds the next arrival.
func (n *simNet) share() {
	heads := n.heads()
	for range heads {
		least, link := math.Inf(1), []*netFlow(nil)
		consider := func(capacity float64, on func(f *netFlow) bool) {
			var open []*netFlow
			for _, f := range heads {
				if on(f) && f.fixed {
					capacity -= f.rate
				} else if on(f) {
					open = append(open, f)
				}
			}
			if rate := capacity / float64(len(open)); len(open) > 0 && rate < least {
				least, link = rate, open
			}
		}
		for machine := range n.out {
			consider(n.out[machine], func(f *netFlow) bool { return f.from == machine })
			consider(n.in[machine], func(f *netFlow) bool { return f.to == machine })
		}
		for pair, capacity := range n.pair {
			consider(capacity, func(f *netFlow) bool { return f.from == pair[0] && f.to == pair[1] })
		}
		for _, f := range link {
			f.rate, f.fixed = max(least, 1), true
		}
	}
	n.next = math.MaxInt64
	for _, f := range heads {
		n.next = min(n.next, n.u.now+time.Duration(math.Ceil(1e9*max(f.left, 0)/f.rate)))
	}
}

// arrivals takes out what has arrived.
func (n *simNet) arrivals() {
	n.progress()
	var done []func()
	n.flows = slices.DeleteFunc(n.flows, func(f *netFlow) bool {
		over := f.left < 1e-3
		if over {
			done = append(done, f.arrive)
		}
		return over
	})
	n.share()
	for _, d := range done {
		d()
	}
}

func newUniverse(machines int, bytesPerSec float64) *universe {
	u := &universe{}
	u.net = &simNet{u: u, pair: map[[2]int]float64{}, next: math.MaxInt64}
	for range machines {
		u.net.out, u.net.in = append(u.net.out, bytesPerSec), append(u.net.in, bytesPerSec)
		u.arbiters = append(u.arbiters, &share.Arbiter{})
	}
	return u
}

// simGate is a core's gate to the arbiter of its machine.
type simGate struct {
	share   share.Share
	u       *universe
	arbiter *share.Arbiter
}

func (g *simGate) Ask(bytes int, cost int64, now time.Time) bool {
	return g.arbiter.Ask(&g.share, bytes, cost, now)
}
func (g *simGate) Done(bytes int, now time.Time) { g.arbiter.Done(&g.share, bytes, now) }
func (g *simGate) Rest(now time.Time)            { g.arbiter.Rest(&g.share, now) }

// group adds a group over the machines, the root's first.
func (u *universe) group(seed uint64, block int, class share.Priority, limits func(int) Limits,
	machines ...int) *world {
	plan, err := schedule.NewPlan(schedule.BinomialPipeline, len(machines))
	if err != nil {
		panic(err)
	}
	w := newWorldWith(seed, plan, false, block, limits)
	w.now, w.clocked = u.now, true
	w.wire = netPort{u.net, len(u.worlds)}
	w.delay = func(ActionKind) time.Duration { return time.Duration(20_000 + w.rng.IntN(60_000)) }
	u.worlds, u.places = append(u.worlds, w), append(u.places, machines)
	for rank, machine := range machines {
		n := w.nodes[rank]
		n.core.now = simStart
		n.placed = false
		g := &simGate{u: u, arbiter: u.arbiters[machine]}
		g.share.Class = class.Class()
		g.share.Wake = func() { w.run(n, n.core.Pump) }
		g.arbiter.Add(&g.share)
		n.core.turn.gate = g
	}
	return w
}

// message begins one message at all members, or at the root alone.
func (u *universe) message(w *world, seq, size uint64, members bool) {
	a := Announcement{Seq: seq, Size: size, Blocks: AllBlocks(BlockCount(size, w.block))}
	for _, n := range w.nodes {
		if n.rank > 0 && !members {
			continue
		}
		var have *Bitmap
		if n.rank > 0 {
			have = NewBitmap(BlockCount(size, w.block))
		}
		w.run(n, func() {
			if err := n.core.Announce(a, have); err != nil {
				w.fault("announce: %v", err)
			}
		})
	}
	u.turns()
}

func (u *universe) turns() {
	for _, a := range u.arbiters {
		for s := a.Next(); s != nil; s = a.Next() {
			s.Wake()
		}
	}
}

// run goes on until a time, or until stop says so, and returns the first error.
func (u *universe) run(until time.Duration, stop func() bool) error {
	for !stop() {
		next, from := u.net.next, -1
		for i, w := range u.worlds {
			if w.err != nil {
				return w.err
			}
			if len(w.events) > 0 && w.events[0].at < next {
				next, from = w.events[0].at, i
			}
		}
		tick := u.ticked + share.TickInterval
		if min(next, tick) > until {
			u.set(until)
			return nil
		}
		if tick <= next {
			u.set(tick)
			u.tick()
			continue
		}
		u.set(next)
		if from < 0 {
			u.net.arrivals()
		} else {
			heap.Pop(&u.worlds[from].events).(event).run()
		}
		u.turns()
	}
	return nil
}

func (u *universe) set(now time.Duration) {
	u.now = max(now, u.now)
	for _, w := range u.worlds {
		w.now = u.now
	}
}

func (u *universe) tick() {
	u.ticked = u.now
	for _, w := range u.worlds {
		for _, n := range w.nodes {
			w.run(n, func() { n.core.Tick(simStart.Add(u.now)) })
		}
	}
	for _, a := range u.arbiters {
		a.Tick(simStart.Add(u.now))
	}
	u.turns()
}

func never() bool { return false }
