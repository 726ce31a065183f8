package core

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// world runs the cores of a group in one goroutine with random, seeded delays, and checks at each delivery
// that the receiver had posted memory.
type world struct {
	rng    *rand.Rand
	nodes  []*simNode
	events eventHeap
	seq    int
	now    time.Duration
	err    error
	// delay is how long a thing takes.
	delay func(kind ActionKind) time.Duration
	// dead nodes do nothing any more; nothing reaches them.
	dead    map[int]bool
	wire    carrier // carries the blocks if set
	block   int     // block size
	clocked bool    // cores get the time before each event
	// slowSink is how much longer a store takes, by rank.
	slowSink map[int]time.Duration
	// late is how long after its time a completion of blocks is handled, by rank; they stay in order.
	late func(rank int) time.Duration
	sees func(*simNode, Action) // called for each send that is posted
	// flip corrupts the next block that this rank sends.
	flip map[int]bool
}

// carrier is a model of the links: it calls arrive when the block is over.
type carrier interface {
	add(from, to, lane, bytes int, arrive func())
}

type simNode struct {
	rank    int
	core    *Member
	placed  bool              // blocks are received where they belong: a store takes no time
	content []Trailer         // what each slot holds
	disk    map[[2]uint64]int // by message and block: how often stored
	recvs   [][]int           // by lane: slots posted
	ctl     [][]int           // by lane: buffers posted for control and small messages
	smalls  map[int]Trailer   // what the buffers of small messages hold
	handed  map[uint64]int    // small messages given to the application
	wakeAt  time.Time         // when it gets the time next
	sent    []simSend
	order   []uint64        // messages in order of their ends here, small ones when they were handed over
	lastOut []time.Duration // by lane: when the last block arrives, to keep order
	lastCtl []time.Duration
	polled  time.Duration // when the last late completion is handled
	stored  map[uint64]bool
	done    map[uint64]bool
	failed  bool
	settled bool
	closed  bool
	rereads int // blocks read back by a member
}

type event struct {
	at  time.Duration
	seq int
	run func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

const simBlock = 1000

// simStart is the time at which a world begins.
var simStart = time.Unix(0, 0)

// simSend is a block that a node posted.
type simSend struct {
	at    time.Duration
	bytes int
}

func newWorld(seed uint64, plan *schedule.Plan, limits func(rank int) Limits) *world {
	return newWorldOf(seed, plan, false, limits)
}

func newWorldOf(seed uint64, plan *schedule.Plan, plain bool, limits func(rank int) Limits) *world {
	return newWorldWith(seed, plan, plain, simBlock, limits)
}

func newWorldWith(seed uint64, plan *schedule.Plan, plain bool, block int, limits func(rank int) Limits) *world {
	w := &world{block: block, rng: rand.New(rand.NewPCG(seed, 1)), dead: map[int]bool{}, flip: map[int]bool{}}
	w.delay = func(ActionKind) time.Duration { return time.Duration(1 + w.rng.IntN(1000)) }
	for rank := range plan.Members() {
		n := &simNode{rank: rank, placed: (seed+uint64(rank))%3 == 0,
			core: New(Config{Plan: plan, Rank: rank, BlockSize: block, Epoch: 7, Unannounced: plain,
				Limits: limits(rank)}),
			disk: map[[2]uint64]int{}, stored: map[uint64]bool{}, done: map[uint64]bool{},
			smalls: map[int]Trailer{}, handed: map[uint64]int{}}
		lanes := len(n.core.lanes.all)
		n.content = make([]Trailer, len(n.core.slots.all))
		n.recvs, n.ctl = make([][]int, lanes), make([][]int, lanes)
		n.lastOut, n.lastCtl = make([]time.Duration, lanes), make([]time.Duration, lanes)
		for i := range n.ctl {
			receives := ControlWindow
			if i == n.core.parent {
				receives += len(n.core.small.ring)
			}
			for buffer := range receives {
				n.ctl[i] = append(n.ctl[i], buffer)
			}
		}
		w.nodes = append(w.nodes, n)
	}
	for _, n := range w.nodes {
		w.run(n, n.core.Pump)
		for i := range n.core.lanes.all {
			w.at(time.Duration(w.rng.IntN(500)), func() { w.run(n, func() { n.core.Connected(i) }) })
		}
	}
	return w
}

func (w *world) fault(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("at %d: "+format, append([]any{w.now}, args...)...)
	}
}

func (w *world) after(d time.Duration, run func()) { w.at(w.now+d, run) }

func (w *world) at(t time.Duration, run func()) {
	w.seq++
	heap.Push(&w.events, event{at: t, seq: w.seq, run: run})
}

// drain carries out a node's actions.
func (w *world) drain(n *simNode) {
	for len(n.core.acts) > 0 {
		acts := n.core.acts
		n.core.acts = nil
		for _, a := range acts {
			w.act(n, a)
		}
	}
	w.checkBounds(n)
	w.advance(n)
}

// advance makes a core be called when its cap allows the next send.
func (w *world) advance(n *simNode) {
	at := n.core.turn.wakeAt
	if at.IsZero() || at.Equal(n.wakeAt) {
		return
	}
	n.wakeAt = at
	w.at(max(w.now, at.Sub(simStart)), func() {
		if n.core.turn.wakeAt.Equal(at) {
			n.wakeAt = time.Time{}
			w.run(n, func() { n.core.Advance(simStart.Add(w.now)) })
		}
	})
}

func (w *world) checkBounds(n *simNode) {
	c := n.core
	if c.posted > c.limits.Posted || c.slots.pinned > c.limits.Pins || c.flight > c.limits.Sends {
		w.fault("rank %d exceeds its limits: posted %d pinned %d flight %d", n.rank, c.posted, c.slots.pinned, c.flight)
	}
}

func (w *world) act(n *simNode, a Action) {
	switch a.Kind {
	case ActPostRecv:
		n.recvs[a.Lane] = append(n.recvs[a.Lane], a.Slot)
	case ActSend:
		if w.sees != nil {
			w.sees(n, a)
		}
		w.sendBlock(n, a)
	case ActLoad:
		if n.rank != 0 {
			n.rereads++
		}
		if n.rank != 0 && n.disk[[2]uint64{a.Seq, a.Block}] == 0 {
			w.fault("rank %d loads block %d that it has not stored", n.rank, a.Block)
		}
		n.content[a.Slot] = Trailer{Seq: a.Seq, Block: a.Block, Size: n.core.messages.at(a.Seq).size, Epoch: 7,
			Length: uint32(a.Length - TrailerSize)}
		w.after(w.delay(a.Kind), func() { w.run(n, func() { n.core.BlockLoaded(a.Slot, nil) }) })
	case ActIncoming:
		w.after(w.delay(a.Kind), func() { w.run(n, func() { n.core.Ready(a.Seq) }) })
	case ActStore:
		block := n.content[a.Slot]
		if n.placed {
			n.disk[[2]uint64{a.Seq, a.Block}]++
			n.core.BlockStored(a.Slot, nil)
			return
		}
		w.after(w.delay(a.Kind)+w.slowSink[n.rank], func() {
			if n.content[a.Slot] != block || block.Block != a.Block || block.Seq != a.Seq {
				w.fault("rank %d slot %d changed under a store", n.rank, a.Slot)
			}
			n.disk[[2]uint64{a.Seq, a.Block}]++
			w.run(n, func() { n.core.BlockStored(a.Slot, nil) })
		})
	case ActControl:
		w.sendControl(n, a.Lane)
	case ActSmallLoad, ActSmallHand, ActSmallSend, ActSmallPost:
		w.actSmall(n, a)
	case ActStored:
		n.stored[a.Seq] = true
	case ActDone:
		n.done[a.Seq] = true
		if n.handed[a.Seq] == 0 {
			n.order = append(n.order, a.Seq)
		}
	case ActFailed:
		n.failed = true
	case ActSettled:
		n.settled = true
	case ActClosed:
		n.closed = true
	}
}

func (w *world) run(n *simNode, f func()) {
	if w.dead[n.rank] {
		return
	}
	if n.core.turn.bucket.rate > 0 || w.clocked {
		n.core.SetClock(simStart.Add(w.now))
	}
	f()
	w.drain(n)
}

func (w *world) sendBlock(n *simNode, a Action) {
	if !n.core.lanes.all[a.Lane].up {
		w.fault("rank %d sends a block on a lane that is not connected", n.rank)
	}
	n.sent = append(n.sent, simSend{w.now, a.Length})
	peer := w.nodes[n.core.lanes.all[a.Lane].peer]
	back := peer.core.lanes.of[n.rank]
	block, whole := n.content[a.Slot], n.content[a.Slot]
	if len(w.flip) == 0 && (whole.Block != a.Block || whole.Seq != a.Seq) {
		w.fault("rank %d sends block %d of %d for %d of %d", n.rank, whole.Block, whole.Seq, a.Block, a.Seq)
	}
	if w.flip[n.rank] {
		block.Block ^= 1
	}
	arrive := func() {
		if n.content[a.Slot] != whole {
			w.fault("rank %d slot %d changed under a send", n.rank, a.Slot)
		}
		if w.dead[peer.rank] || w.dead[n.rank] {
			return
		}
		if len(peer.recvs[back]) == 0 {
			w.fault("rank %d sent to %d, which posted nothing", n.rank, peer.rank)
			return
		}
		slot := peer.recvs[back][0]
		peer.recvs[back] = peer.recvs[back][1:]
		peer.content[slot] = block
		w.after(w.delay(ActPostRecv), func() { w.complete(n, func() { n.core.BlockSent(a.Lane, a.Slot) }) })
		w.complete(peer, func() { peer.core.BlockReceived(back, slot, block, nil) })
	}
	if w.wire != nil {
		w.wire.add(n.rank, peer.rank, a.Lane, a.Length, arrive)
		return
	}
	n.lastOut[a.Lane] = max(n.lastOut[a.Lane], w.now) + w.delay(a.Kind)
	w.at(n.lastOut[a.Lane], arrive)
}

// complete makes a node's poller handle a completion, later if the poller lags behind.
func (w *world) complete(n *simNode, f func()) {
	if w.late == nil {
		w.run(n, f)
		return
	}
	n.polled = max(n.polled, w.now+w.late(n.rank))
	w.at(n.polled, func() { w.run(n, f) })
}

func (w *world) sendControl(n *simNode, lane int) {
	peer := w.nodes[n.core.lanes.all[lane].peer]
	back := peer.core.lanes.of[n.rank]
	buf := make([]byte, MaxControl)
	buf = buf[:n.core.EncodeControl(lane, buf)]
	n.lastCtl[lane] = max(n.lastCtl[lane], w.now) + w.delay(ActControl)
	w.at(n.lastCtl[lane], func() {
		if w.dead[peer.rank] || w.dead[n.rank] {
			return
		}
		buffer := w.takeControl(n, peer)
		var m ControlMessage
		if err := decodeControl(buf, &m); err != nil {
			w.fault("rank %d: %v", peer.rank, err)
		}
		w.after(w.delay(ActPostRecv), func() { w.run(n, func() { n.core.ControlSent(lane) }) })
		peer.ctl[back] = append(peer.ctl[back], buffer)
		w.run(peer, func() { peer.core.ControlReceived(back, &m) })
	})
}

// takeControl uses up the oldest receive that peer has posted for control messages of n.
func (w *world) takeControl(n, peer *simNode) int {
	back := peer.core.lanes.of[n.rank]
	if len(peer.ctl[back]) == 0 {
		w.fault("rank %d sent control to %d, which posted nothing", n.rank, peer.rank)
		return 0
	}
	buffer := peer.ctl[back][0]
	peer.ctl[back] = peer.ctl[back][1:]
	return buffer
}

// loop runs until nothing is left to happen or stop says so.
func (w *world) loop(stop func() bool) {
	for w.events.Len() > 0 && w.err == nil && !stop() {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.run()
	}
}

func (w *world) announce(a Announcement, have func(rank int) *Bitmap) {
	for _, n := range w.nodes {
		at := time.Duration(w.rng.IntN(3000))
		if n.rank == 0 {
			at = 0 // members hear of it from the root
		}
		w.after(at, func() {
			w.run(n, func() {
				var b *Bitmap
				if n.rank != 0 {
					b = have(n.rank)
					for _, r := range b.Present() {
						for i := r.First; i < r.End(); i++ {
							n.disk[[2]uint64{a.Seq, i}] += 100
						}
					}
				}
				if err := n.core.Announce(a, b); err != nil {
					w.fault("announce: %v", err)
				}
			})
		})
	}
}

// verify checks that all members stored all blocks of a message, once.
func (w *world) verify(a Announcement, have func(rank int) *Bitmap) {
	for _, n := range w.nodes {
		if !n.stored[a.Seq] || !n.done[a.Seq] {
			w.fault("rank %d: message %d of %d blocks: stored %t done %t", n.rank, a.Seq, a.Blocks.Count(), n.stored[a.Seq],
				n.done[a.Seq])
			continue
		}
		if n.rank == 0 {
			continue
		}
		h, sent := have(n.rank), BitmapOf(BlockCount(a.Size, w.block), a.Blocks)
		for b := range sent.Blocks() {
			want := 0
			if h.Has(b) {
				want = 100
			} else if sent.Has(b) {
				want = 1
			}
			if got := n.disk[[2]uint64{a.Seq, b}]; got != want {
				w.fault("rank %d: message %d block %d stored %d times, want %d", n.rank, a.Seq, b, got, want)
			}
		}
	}
}

func none(k uint64) func(int) *Bitmap {
	return func(int) *Bitmap { return NewBitmap(k) }
}

func simPlan(n int) *schedule.Plan {
	plan, err := schedule.NewPlan(schedule.BinomialPipeline, n)
	if err != nil {
		panic(err)
	}
	return plan
}

func simLimits(int) Limits {
	return Limits{Slots: 6, Posted: 3, Pins: 2, Sends: 2, Silence: time.Hour, Interval: 1}
}

// tiny makes random limits, down to the smallest.
func tiny(rng *rand.Rand) func(int) Limits {
	return func(int) Limits {
		slots := 2 + rng.IntN(5)
		return Limits{Slots: slots, Posted: 1 + rng.IntN(slots), Pins: 1 + rng.IntN(slots), Sends: 1 + rng.IntN(3),
			Silence: time.Hour, Interval: 1}
	}
}

// TestSimNoDeadlock runs random groups, messages, delays and pools as small as can be, and a closing barrier.
func TestSimNoDeadlock(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		if err := simOnce(seed, false); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// TestSimLatePollers runs random groups as TestSimNoDeadlock does, with pollers that are late.
func TestSimLatePollers(t *testing.T) {
	seeds := uint64(600)
	if testing.Short() {
		seeds = 100
	}
	for seed := range seeds {
		if err := simOnce(seed, true); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// lag makes some of a world's pollers late.
func (w *world) lag(rng *rand.Rand) {
	late := make([]time.Duration, len(w.nodes))
	w.late = func(rank int) time.Duration { return late[rank] }
	for rank := range late {
		if rng.IntN(3) == 0 {
			late[rank] = time.Duration(rng.IntN(20_000))
		}
	}
}

// simOnce runs one such group, with late pollers if late is set.
func simOnce(seed uint64, late bool) error {
	rng := rand.New(rand.NewPCG(seed, 2))
	n := 1 + rng.IntN(20)
	algorithm := schedule.Algorithms()[rng.IntN(len(schedule.Algorithms()))]
	plan, err := schedule.NewPlan(algorithm, n)
	if algorithm == schedule.Hybrid {
		racks := make([]int, n)
		for rank := range racks {
			racks[rank] = rng.IntN(4)
		}
		plan, err = schedule.NewHybridPlan(racks)
	}
	if errors.Is(err, schedule.ErrInvalid) {
		return nil // a hypercube of this size
	}
	plain := rng.IntN(3) == 0
	w := newWorldOf(seed, plan, plain, tiny(rng))
	if late {
		w.lag(rng)
	}
	messages := 1 + rng.IntN(4)
	var all []Announcement
	for i := range messages {
		size := uint64(rng.IntN(40*simBlock) + 1)
		all = append(all, Announcement{Seq: uint64(i + 1), Size: size, Blocks: AllBlocks(BlockCount(size, simBlock))})
	}
	for _, a := range all {
		if plain {
			w.run(w.nodes[0], func() { w.nodes[0].core.Announce(a, nil) })
			continue
		}
		w.announce(a, none(BlockCount(a.Size, simBlock)))
	}
	w.after(4000, func() { w.run(w.nodes[0], func() { w.nodes[0].core.CloseWhenDone() }) })
	w.loop(func() bool { return false })
	for _, a := range all {
		w.verify(a, none(BlockCount(a.Size, simBlock)))
	}
	for _, node := range w.nodes {
		if !node.closed || !node.settled {
			w.fault("rank %d: closed %t settled %t", node.rank, node.closed, node.settled)
		}
	}
	if w.err != nil {
		return fmt.Errorf("%v n=%d plain %t: %w", algorithm, n, plain, w.err)
	}
	return nil
}

// TestSimResume moves only the blocks that some member lacks, and stores each once.
func TestSimResume(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 3))
		plan, _ := schedule.NewPlan(schedule.BinomialPipeline, 2+rng.IntN(12))
		w := newWorld(seed, plan, tiny(rng))
		k := uint64(1 + rng.IntN(60))
		haves := make([]*Bitmap, plan.Members())
		for rank := range haves {
			haves[rank] = NewBitmap(k)
			for b := range k {
				if rng.IntN(3) > 0 || rank == 0 {
					haves[rank].Set(b)
				}
			}
		}
		have := func(rank int) *Bitmap { return haves[rank].Clone() }
		a := Announcement{Seq: 1, Size: k*simBlock - 1, Blocks: blockset.MissingIn(k, haves).Present()}
		w.announce(a, have)
		w.loop(func() bool { return false })
		w.verify(a, have)
		if w.err != nil {
			t.Fatalf("seed %d n=%d k=%d: %v", seed, plan.Members(), k, w.err)
		}
	}
}

// TestSimFailureIsToldToAll kills a member at a random time; its neighbours' queue pairs break. All others must
// fail, with the dead member as the suspect, and settle.
func TestSimFailureIsToldToAll(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 4))
		n := 3 + rng.IntN(14)
		plan, _ := schedule.NewPlan(schedule.BinomialPipeline, n)
		w := newWorld(seed, plan, tiny(rng))
		const k = 50
		w.announce(Announcement{Seq: 1, Size: k * simBlock, Blocks: AllBlocks(k)}, none(k))
		victim := rng.IntN(n)
		w.after(time.Duration(3000+rng.IntN(5000)), func() {
			w.dead[victim] = true
			for _, node := range w.nodes {
				if lane := node.core.lanes.of[victim]; lane >= 0 {
					w.after(w.delay(ActControl), func() { w.run(node, func() { node.core.Broken(lane, nil) }) })
				}
			}
		})
		w.loop(func() bool { return false })
		for _, node := range w.nodes {
			if node.rank == victim {
				continue
			}
			if f := node.core.failure; f == nil || !slices.Equal(f.Suspects, []int{victim}) || !node.failed || !node.settled {
				t.Fatalf("seed %d n=%d victim %d: rank %d failure %+v settled %t", seed, n, victim, node.rank, f, node.settled)
			}
		}
		if w.err != nil {
			t.Fatalf("seed %d: %v", seed, w.err)
		}
	}
}

// TestSimSilence stops a member without breaking its queue pairs.
func TestSimSilence(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 5))
		n := 2 + rng.IntN(10)
		plan, _ := schedule.NewPlan(schedule.BinomialPipeline, n)
		w := newWorld(seed, plan, func(int) Limits {
			return Limits{Slots: 6, Posted: 3, Pins: 2, Sends: 2, Silence: 20_000, Interval: 1000}
		})
		const k = 1000
		w.announce(Announcement{Seq: 1, Size: k * simBlock, Blocks: AllBlocks(k)}, none(k))
		victim := 1 + rng.IntN(n-1)
		w.after(30_000, func() { w.dead[victim] = true })
		start := time.Unix(0, 0)
		for at := time.Duration(0); at < 100_000; at += 1000 {
			w.after(at, func() {
				for _, node := range w.nodes {
					w.run(node, func() { node.core.Tick(start.Add(w.now)) })
				}
			})
		}
		w.loop(func() bool { return false })
		for _, node := range w.nodes {
			f := node.core.failure
			if node.rank != victim && (f == nil || f.Reason != ReasonSilent || !slices.Equal(f.Suspects, []int{victim})) {
				t.Fatalf("seed %d n=%d victim %d: rank %d: %+v", seed, n, victim, node.rank, f)
			}
		}
		if w.err != nil {
			t.Fatalf("seed %d: %v", seed, w.err)
		}
	}
}

// TestSimCorruptBlockIsNotRelayed: a member sends a wrong block. Its receiver refuses it, and all are notified.
func TestSimCorruptBlockIsNotRelayed(t *testing.T) {
	plan, _ := schedule.NewPlan(schedule.BinomialPipeline, 6)
	w := newWorld(1, plan, tiny(rand.New(rand.NewPCG(1, 6))))
	const k = 20
	w.announce(Announcement{Seq: 1, Size: k * simBlock, Blocks: AllBlocks(k)}, none(k))
	w.flip[2] = true
	w.loop(func() bool { return false })
	for _, node := range w.nodes {
		if f := node.core.failure; f == nil || f.Reason != ReasonCorrupt || !slices.Equal(f.Suspects, []int{2}) {
			t.Fatalf("rank %d: %+v", node.rank, f)
		}
	}
}

// TestSimProgress holds that the root learns of each member's blocks, through the tree.
func TestSimProgress(t *testing.T) {
	plan, _ := schedule.NewPlan(schedule.BinomialPipeline, 13)
	w := newWorld(1, plan, func(int) Limits {
		return Limits{Slots: 8, Posted: 4, Pins: 2, Sends: 2, Silence: time.Hour, Interval: 500}
	})
	const k = 300
	w.announce(Announcement{Seq: 1, Size: k * simBlock, Blocks: AllBlocks(k)}, none(k))
	start := time.Unix(0, 0)
	for at := time.Duration(0); at < 60_000; at += 250 {
		w.after(at, func() {
			for _, node := range w.nodes {
				w.run(node, func() { node.core.Tick(start.Add(w.now)) })
			}
		})
	}
	w.loop(func() bool { return w.now > 55_000 })
	if w.nodes[0].done[1] {
		t.Fatal("the message ended too early for this test")
	}
	for rank := 1; rank < 13; rank++ {
		have := w.nodes[rank].core.messages.list[0].stored
		told := w.nodes[0].core.reports.members[rank].blocks
		if told == 0 || told > have || have-told > 20 {
			t.Errorf("rank %d has %d blocks, the root knows of %d", rank, have, told)
		}
	}
}
