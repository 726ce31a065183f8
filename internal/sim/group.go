package sim

import (
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// group is a multicast group with one message: the fabric between real rdmc cores.
type group struct {
	w       *world
	plan    *schedule.Plan
	members []meta.NodeID // root first
	size    int64
	blocks  rdmc.Ranges
	ends    []*endpoint
	order   map[[2]int]int64 // when the last thing from rank to rank arrives
}

// endpoint is one member's end, and the memory of its slots.
type endpoint struct {
	g        *group
	l        *life
	rank     int
	c        *rdmc.Stepped
	blob     *blob
	slots    []content.Hash
	recvs    map[int][]int // by peer: slots posted
	closed   bool
	done     bool
	onStored func()
	onDone   func()
	onFailed func(suspects []meta.NodeID)
}

const (
	groupSlots   = 6
	groupSilence = 2 * time.Second
)

// newGroup makes a group for the blocks of an epoch.
func (w *world) newGroup(members []meta.NodeID, size int64, blocks []byte) *group {
	plan, err := schedule.NewPlan(schedule.BinomialPipeline, len(members))
	if err != nil {
		w.fail("plan for %d members: %v", len(members), err)
		return nil
	}
	g := &group{w: w, plan: plan, members: members, size: size, ends: make([]*endpoint, len(members)), order: map[[2]int]int64{}}
	count := rdmc.BlockCount(uint64(size), content.BlockBytes)
	set := rdmc.NewBitmap(count)
	for i := range count {
		if blocks[i/8]&(1<<(i%8)) != 0 {
			set.Set(i)
		}
	}
	g.blocks = set.Present()
	return g
}

// join makes a member's end and connects it with those that are there.
func (g *group) join(l *life, rank int, b *blob) *endpoint {
	if g.ends[rank] != nil {
		return nil
	}
	ep := &endpoint{g: g, l: l, rank: rank, blob: b, slots: make([]content.Hash, groupSlots), recvs: map[int][]int{}}
	ep.c = rdmc.NewStepped(rdmc.SteppedConfig{
		Plan: g.plan, Rank: rank, BlockSize: content.BlockBytes, Epoch: 1, Slots: groupSlots,
		Silence: groupSilence, Interval: 100 * time.Millisecond, Grace: 200 * time.Millisecond,
	})
	g.ends[rank] = ep
	l.endpoints = append(l.endpoints, ep)
	var have *rdmc.Bitmap
	if rank != 0 {
		have = rdmc.NewBitmap(uint64(len(b.have)))
		for i, h := range b.have {
			if h {
				have.Set(uint64(i))
			}
		}
	}
	ep.run(func() {
		ep.c.Tick(g.w.time())
		if err := ep.c.Announce(rdmc.Announcement{Seq: 1, Size: uint64(g.size), Blocks: g.blocks}, have); err != nil {
			g.w.fail("announce to rank %d: %v", rank, err)
		}
	})
	for _, peer := range ep.c.Peers() {
		if other := g.ends[peer]; other != nil {
			g.connect(ep, other)
		}
	}
	g.w.after(100*time.Millisecond, l, ep.tick)
	return ep
}

func (g *group) connect(a, b *endpoint) {
	wait := g.w.latency()
	g.w.after(wait, a.l, func() { a.run(func() { a.c.Connected(b.rank) }) })
	g.w.after(wait, b.l, func() { b.run(func() { b.c.Connected(a.rank) }) })
}

func (ep *endpoint) tick() {
	if ep.closed {
		return
	}
	ep.run(func() { ep.c.Tick(ep.g.w.time()) })
	ep.g.w.after(100*time.Millisecond, ep.l, ep.tick)
}

// run steps the core and carries out what it says.
func (ep *endpoint) run(f func()) {
	if ep.closed || !ep.l.alive {
		return
	}
	f()
	for steps := ep.c.Take(); len(steps) > 0; steps = ep.c.Take() {
		for _, st := range steps {
			if ep.closed || !ep.l.alive {
				return
			}
			ep.perform(st)
		}
	}
}

func (ep *endpoint) perform(st rdmc.Step) {
	w := ep.g.w
	switch st.Kind {
	case rdmc.StepPostRecv:
		ep.recvs[st.Peer] = append(ep.recvs[st.Peer], st.Slot)
	case rdmc.StepSend:
		ep.send(st)
	case rdmc.StepLoad:
		w.after(w.between(50*time.Microsecond, time.Millisecond), ep.l, func() {
			ep.slots[st.Slot] = ep.blob.leaves[st.Block]
			ep.run(func() { ep.c.Loaded(st.Slot, nil) })
		})
	case rdmc.StepStore:
		ep.store(st)
	case rdmc.StepControl:
		ep.control(st.Peer)
	case rdmc.StepStored:
		if ep.onStored != nil {
			ep.onStored()
		}
	case rdmc.StepDone:
		ep.done = true
		if ep.onDone != nil {
			ep.onDone()
		}
	case rdmc.StepFailed:
		if ep.onFailed != nil {
			ranks, _ := ep.c.Failure()
			var suspects []meta.NodeID
			for _, r := range ranks {
				if r > 0 {
					suspects = append(suspects, ep.g.members[r])
				}
			}
			ep.onFailed(suspects)
		}
	}
}

// store writes a block, if the transfer still may.
func (ep *endpoint) store(st rdmc.Step) {
	w := ep.g.w
	leaf := ep.slots[st.Slot]
	w.after(w.between(50*time.Microsecond, 3*time.Millisecond), ep.l, func() {
		if ep.closed {
			return
		}
		if ep.blob.state != content.Partial {
			w.fail("%s: block %d written into a finished content", ep.l.m.name, st.Block)
			return
		}
		ep.blob.leaves[st.Block], ep.blob.have[st.Block] = leaf, true
		ep.run(func() { ep.c.Stored(st.Slot, nil) })
	})
}

// arrive makes fn happen at a peer, in the order of what is sent; a lost connection breaks at both ends.
func (ep *endpoint) arrive(peer int, cost time.Duration, fn func(*endpoint)) {
	g, w := ep.g, ep.g.w
	key := [2]int{ep.rank, peer}
	at := max(g.order[key], w.now) + int64(w.latency()+cost)
	g.order[key] = at
	w.after(time.Duration(at-w.now), nil, func() {
		other := g.ends[peer]
		switch {
		case other == nil || other.closed || !other.l.alive || ep.closed || !ep.l.alive:
		case w.isCut(ep.l.m, other.l.m) || w.isCut(other.l.m, ep.l.m):
			w.after(w.brokenAfter(), ep.l, func() { ep.run(func() { ep.c.Broken(peer, errLink) }) })
			w.after(w.brokenAfter(), other.l, func() { other.run(func() { other.c.Broken(ep.rank, errLink) }) })
		default:
			w.after(0, other.l, func() { fn(other) })
		}
	})
}

// send moves the bytes of a slot.
func (ep *endpoint) send(st rdmc.Step) {
	w := ep.g.w
	carried, leaf := ep.c.Carries(st), ep.slots[st.Slot]
	other := w.find(ep.g.members[st.Peer])
	drag := time.Duration(1 + max(ep.l.m.drag, other.drag))
	ep.arrive(st.Peer, drag*w.between(time.Millisecond, 15*time.Millisecond), func(other *endpoint) {
		ring := other.recvs[ep.rank]
		if len(ring) == 0 {
			w.fail("rank %d sent to %d, which posted nothing", ep.rank, other.rank)
			return
		}
		slot := ring[0]
		other.recvs[ep.rank] = ring[1:]
		other.slots[slot] = leaf
		w.after(w.latency(), ep.l, func() { ep.run(func() { ep.c.Sent(st.Slot) }) })
		other.run(func() { other.c.Received(ep.rank, slot, carried) })
	})
}

func (ep *endpoint) control(peer int) {
	w := ep.g.w
	message := ep.c.Control(peer)
	ep.arrive(peer, 0, func(other *endpoint) {
		w.after(w.latency(), ep.l, func() { ep.run(func() { ep.c.ControlSent(peer) }) })
		other.run(func() {
			if err := other.c.Hear(ep.rank, message); err != nil {
				w.fail("control message of rank %d: %v", ep.rank, err)
			}
		})
	})
}

// cut breaks the connections of an end that is no more.
func (ep *endpoint) cut() {
	if ep.closed {
		return
	}
	ep.closed = true
	w := ep.g.w
	for _, peer := range ep.c.Peers() {
		if other := ep.g.ends[peer]; other != nil && !other.closed && other.l.alive {
			w.after(w.latency(), other.l, func() { other.run(func() { other.c.Broken(ep.rank, errLink) }) })
		}
	}
}

// leave ends a member's part. After a good end the others are given time to hear of it.
func (ep *endpoint) leave() {
	if ep.done {
		ep.g.w.after(time.Second, ep.l, ep.cut)
		return
	}
	ep.cut()
}
