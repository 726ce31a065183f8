package core

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// prepare takes the next sends, in the order of the schedule, as far as their blocks are here, and pins their
// slots. Blocks that are not cached are read: at the root from the source, ahead as far as slots last; at
// another member, rarely, from its sink.
func (c *Member) prepare() {
	for !c.queue.full() {
		m, t, ok := c.steps.nextOut()
		if !ok {
			return
		}
		i := c.slots.find(m, t.Block)
		if i < 0 {
			i = c.load(m, t.Block)
		}
		if i < 0 || c.slots.at(i).state == slotPosted {
			return
		}
		s := c.slots.at(i)
		if s.pins == 0 && c.slots.pinned >= c.limits.Pins {
			return
		}
		c.slots.pin(s)
		c.queue.push(prepared{slot: i, lane: c.lanes.of[t.Peer]})
		m.queued++
		c.steps.out.step++
	}
}

// load begins to read a block into a slot, if it can be read and a slot may be used for it.
func (c *Member) load(m *message, pos uint64) int {
	if c.slots.pinned >= c.limits.Pins || !c.isRoot() && !m.have.Has(m.blocks.At(pos)) {
		return -1
	}
	i := c.slots.take()
	if i < 0 {
		return -1
	}
	s := c.slots.at(i)
	*s = slot{state: slotLoading, m: m, pos: pos}
	c.act(Action{Kind: ActLoad, Slot: i, Seq: m.seq, Block: s.block(), Length: s.length(c.block)})
	return i
}

// BlockLoaded says that slot i holds the block of an ActLoad, sealed with its trailer; or that the Source or Sink
// failed.
func (c *Member) BlockLoaded(i int, err error) {
	s := c.slots.at(i)
	s.state = slotFull
	c.slots.use(s)
	if err != nil {
		reason := ReasonSink
		if c.isRoot() {
			reason = ReasonSource
		}
		c.Fail(reason, c.rank, []int{c.rank}, err)
		return
	}
	c.Pump()
}

// send posts the prepared sends for which there is credit, in order.
func (c *Member) send() {
	c.pace.wait(c.now, -1)
	for c.queue.len > 0 {
		p := c.queue.front()
		s, l := c.slots.at(p.slot), &c.lanes.all[p.lane]
		if s.state == slotFull && c.flight >= c.limits.Sends {
			return
		}
		if s.state == slotFull && l.sent == l.credit && l.up {
			c.pace.wait(c.now, p.lane)
		}
		if s.state != slotFull || l.sent == l.credit || !l.up { // credit may come before this end is connected
			return
		}
		if !c.turn.isOpen(c.now) || !c.turn.ask(s.length(c.block), c.costs.Of(s.m.count()), c.now) {
			return
		}
		c.turn.bucket.take(s.length(c.block))
		c.queue.pop()
		c.flight++
		c.pace.post(c.now, p.lane)
		c.slots.unpin(s)
		c.slots.use(s)
		s.sending++
		s.m.queued--
		s.m.flight++
		l.sent++
		c.act(Action{Kind: ActSend, Lane: p.lane, Slot: p.slot, Seq: s.m.seq, Block: s.block(), Length: s.length(c.block),
			Blocks: uint32(s.m.count()), Size: s.m.size})
	}
}

// BlockSent says that the memory of the lane's neighbour holds the block of an ActSend of slot i.
func (c *Member) BlockSent(lane, i int) {
	c.pace.done(c.now, lane)
	s := c.slots.at(i)
	c.turn.done(s.length(c.block), c.now)
	s.sending--
	s.m.flight--
	c.flight--
	c.Pump()
}

// grant posts receives for the next receipts, in the order of the schedule, and so gives credit to their sources.
func (c *Member) grant() {
	for c.posted < c.limits.Posted {
		m, t, ok := c.steps.nextIn()
		if !ok {
			return
		}
		lane := c.lanes.of[t.Peer]
		if c.lanes.all[lane].standing >= 0 {
			c.steps.in.step++
			c.useStanding(lane, m, t.Block)
			continue
		}
		if m.nowhere || c.ahead() {
			return
		}
		i := c.slots.take()
		if i < 0 {
			return
		}
		*c.slots.at(i) = slot{m: m, pos: t.Block}
		c.posted++
		c.steps.in.step++
		c.post(lane, i)
	}
}

// chainLead is how many blocks that came may wait to be sent on in a chain, more than the one that is next.
const chainLead = 2

// ahead reports whether blocks come here faster than they are sent on. In a chain there is no use in that: the
// members behind wait, and a block has left the cache, or its slot, when its turn comes. (In the pipeline it is the
// slack that makes up for a slow link.) It does not stop the first transfer that is not complete: of the blocks
// before its own only the last is not sent on.
func (c *Member) ahead() bool {
	if c.plan.Algorithm() != schedule.Chain || c.isRoot() || c.rank == len(c.reports.members)-1 {
		return false
	}
	from, to := &c.lanes.all[c.lanes.of[c.rank-1]], &c.lanes.all[c.lanes.of[c.rank+1]]
	return from.granted-uint64(len(from.ring)) > to.sent+1+chainLead
}

// post makes a slot the lane's newest receive, which gives its source one more credit.
func (c *Member) post(lane, i int) {
	l := &c.lanes.all[lane]
	c.slots.at(i).state = slotPosted
	l.ring = append(l.ring, i)
	l.granted++
	l.offer()
	a := Action{Kind: ActPostRecv, Lane: lane, Slot: i}
	if s := c.slots.at(i); s.m != nil {
		a.Seq, a.Block, a.Length = s.m.seq, s.block(), s.length(c.block)
	}
	c.act(a)
}

// BlockReceived says that the lane's oldest receive, of slot i, has a block, and what the block says of itself; a
// non-nil err says that the block failed its check, and fails the group.
func (c *Member) BlockReceived(lane, i int, got Trailer, err error) {
	l := &c.lanes.all[lane]
	l.heard = c.now
	if c.Ended() {
		return
	}
	s := c.slots.at(i)
	if len(l.ring) == 0 || l.ring[0] != i {
		c.Fail(ReasonCorrupt, c.rank, []int{l.peer}, fmt.Errorf("rdmc: slot %d was received out of order", i))
		return
	}
	l.ring = append(l.ring[:0], l.ring[1:]...)
	l.offer()
	if err != nil {
		c.Fail(ReasonCorrupt, c.rank, []int{l.peer}, err)
		return
	}
	if s.m == nil {
		c.arriveEarly(lane, i, got)
	} else {
		c.posted--
		c.accept(lane, i, got)
	}
	c.Pump()
}

// accept takes in a block that came into a slot, if it is the one that the schedule says.
func (c *Member) accept(lane, i int, got Trailer) {
	s := c.slots.at(i)
	want := Trailer{Seq: s.m.seq, Block: s.block(), Size: s.m.size, Epoch: c.epoch,
		Length: uint32(s.length(c.block) - TrailerSize)}
	if got != want {
		c.Fail(ReasonCorrupt, c.rank, []int{c.lanes.all[lane].peer},
			fmt.Errorf("%w: got %+v, want %+v", ErrCorrupt, got, want))
		return
	}
	s.state = slotFull
	c.slots.use(s)
	s.m.received++
	if !s.m.have.Has(want.Block) {
		s.storing = true
		c.act(Action{Kind: ActStore, Slot: i, Seq: s.m.seq, Block: want.Block, Length: s.length(c.block)})
	}
}

// BlockStored says that the sink has the block of an ActStore of slot i, or has failed.
func (c *Member) BlockStored(i int, err error) {
	s := c.slots.at(i)
	s.storing = false
	if err != nil {
		c.Fail(ReasonSink, c.rank, []int{c.rank}, err)
		return
	}
	s.m.have.Set(s.block())
	s.m.stored++
	own := &c.reports.members[c.rank]
	if s.m.seq == own.done+1 {
		own.blocks = s.m.stored
		own.dirty = true
	}
	c.storedAll(s.m)
	c.Pump()
}
