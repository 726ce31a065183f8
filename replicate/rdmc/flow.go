package rdmc

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// prepare takes the next sends, in the order of the schedule, as far as their blocks are here, and pins their
// slots. Blocks that are not cached are read: at the root from the source, ahead as far as slots last; at
// another member, rarely, from its sink.
func (c *core) prepare() {
	for !c.queue.full() {
		m, t, ok := c.nextOut()
		if !ok {
			return
		}
		i := c.find(m, t.Block)
		if i < 0 {
			i = c.load(m, t.Block)
		}
		if i < 0 || c.slots[i].state == slotPosted {
			return
		}
		s := &c.slots[i]
		if s.pins == 0 && c.pinned >= c.limits.pins {
			return
		}
		c.pin(s)
		c.queue.push(prepared{slot: i, lane: c.laneOf[t.Peer]})
		m.queued++
		c.out.step++
	}
}

// load begins to read a block into a slot, if it can be read and a slot may be used for it.
func (c *core) load(m *message, pos uint64) int {
	if c.pinned >= c.limits.pins || !c.isRoot() && !m.have.Has(m.blocks.At(pos)) {
		return -1
	}
	i := c.takeSlot()
	if i < 0 {
		return -1
	}
	s := &c.slots[i]
	*s = slot{state: slotLoading, m: m, pos: pos}
	c.act(action{kind: actLoad, slot: i, seq: m.seq, block: c.blockOf(s), length: c.lengthOf(s)})
	return i
}

// loaded says that a load has ended.
func (c *core) loaded(i int, err error) {
	s := &c.slots[i]
	s.state = slotFull
	c.use(s)
	if err != nil {
		reason := ReasonSink
		if c.isRoot() {
			reason = ReasonSource
		}
		c.fail(reason, c.rank, []int{c.rank}, err)
		return
	}
	c.pump()
}

// send posts the prepared sends for which there is credit, in order.
func (c *core) send() {
	c.pace.wait(c.now, -1)
	for c.queue.len > 0 {
		p := c.queue.front()
		s, l := &c.slots[p.slot], &c.lanes[p.lane]
		if s.state == slotFull && c.flight >= c.limits.sends {
			return
		}
		if s.state == slotFull && l.sent == l.credit && l.up {
			c.pace.wait(c.now, p.lane)
		}
		if s.state != slotFull || l.sent == l.credit || !l.up { // credit may come before this end is connected
			return
		}
		if !c.maySend() || !c.myTurn(c.lengthOf(s), c.costs.of(s.m.count())) {
			return
		}
		c.bucket.take(c.lengthOf(s))
		c.queue.pop()
		c.flight++
		c.pace.post(c.now, p.lane)
		c.unpin(s)
		c.use(s)
		s.sending++
		s.m.queued--
		s.m.flight++
		l.sent++
		c.act(action{kind: actSend, lane: p.lane, slot: p.slot, seq: s.m.seq, block: c.blockOf(s), length: c.lengthOf(s),
			blocks: uint32(s.m.count())})
	}
}

// sent says that the memory of the lane's neighbour holds the block of a send.
func (c *core) sent(lane, i int) {
	c.pace.done(c.now, lane)
	s := &c.slots[i]
	c.sendDone(c.lengthOf(s))
	s.sending--
	s.m.flight--
	c.flight--
	c.pump()
}

// grant posts receives for the next receipts, in the order of the schedule, and so gives credit to their sources.
func (c *core) grant() {
	for c.posted < c.limits.posted {
		m, t, ok := c.nextIn()
		if !ok {
			return
		}
		lane := c.laneOf[t.Peer]
		if c.lanes[lane].standing >= 0 {
			c.in.step++
			c.useStanding(lane, m, t.Block)
			continue
		}
		if m.nowhere || c.ahead() {
			return
		}
		i := c.takeSlot()
		if i < 0 {
			return
		}
		c.slots[i] = slot{m: m, pos: t.Block}
		c.posted++
		c.in.step++
		c.post(lane, i)
	}
}

// chainLead is how many blocks that came may wait to be sent on in a chain, more than the one that is next.
const chainLead = 2

// ahead reports whether blocks come here faster than they are sent on. In a chain there is no use in that: the
// members behind wait, and a block has left the cache, or its slot, when its turn comes. (In the pipeline it is the
// slack that makes up for a slow link.) It does not stop the first transfer that is not complete: of the blocks
// before its own only the last is not sent on.
func (c *core) ahead() bool {
	if c.plan.Algorithm() != schedule.Chain || c.isRoot() || c.rank == len(c.members)-1 {
		return false
	}
	from, to := &c.lanes[c.laneOf[c.rank-1]], &c.lanes[c.laneOf[c.rank+1]]
	return from.granted-uint64(len(from.ring)) > to.sent+1+chainLead
}

// post makes a slot the lane's newest receive, which gives its source one more credit.
func (c *core) post(lane, i int) {
	l := &c.lanes[lane]
	c.slots[i].state = slotPosted
	l.ring = append(l.ring, i)
	l.granted++
	l.offer()
	a := action{kind: actPostRecv, lane: lane, slot: i}
	if s := &c.slots[i]; s.m != nil {
		a.seq, a.block, a.length = s.m.seq, c.blockOf(s), c.lengthOf(s)
	}
	c.act(a)
}

// received says that the lane's oldest receive, of the slot, has a block, and what the block says of itself; a non-nil
// err says that the block failed its check.
func (c *core) received(lane, i int, got trailer, err error) {
	l := &c.lanes[lane]
	l.heard = c.now
	if c.ended() {
		return
	}
	s := &c.slots[i]
	if len(l.ring) == 0 || l.ring[0] != i {
		c.fail(ReasonCorrupt, c.rank, []int{l.peer}, fmt.Errorf("rdmc: slot %d was received out of order", i))
		return
	}
	l.ring = append(l.ring[:0], l.ring[1:]...)
	l.offer()
	if err != nil {
		c.fail(ReasonCorrupt, c.rank, []int{l.peer}, err)
		return
	}
	if s.m == nil {
		c.arriveEarly(lane, i, got)
	} else {
		c.posted--
		c.accept(lane, i, got)
	}
	c.pump()
}

// accept takes in a block that came into a slot, if it is the one that the schedule says.
func (c *core) accept(lane, i int, got trailer) {
	s := &c.slots[i]
	want := trailer{seq: s.m.seq, block: c.blockOf(s), size: s.m.size, epoch: c.epoch,
		length: uint32(c.lengthOf(s) - trailerSize)}
	if got != want {
		c.fail(ReasonCorrupt, c.rank, []int{c.lanes[lane].peer}, fmt.Errorf("%w: got %+v, want %+v", ErrCorrupt, got, want))
		return
	}
	s.state = slotFull
	c.use(s)
	s.m.received++
	if !s.m.have.Has(want.block) {
		s.storing = true
		c.act(action{kind: actStore, slot: i, seq: s.m.seq, block: want.block, length: c.lengthOf(s)})
	}
}

// stored says that the sink has a slot's block.
func (c *core) stored(i int, err error) {
	s := &c.slots[i]
	s.storing = false
	if err != nil {
		c.fail(ReasonSink, c.rank, []int{c.rank}, err)
		return
	}
	s.m.have.Set(c.blockOf(s))
	s.m.stored++
	own := &c.members[c.rank]
	if s.m.seq == own.done+1 {
		own.blocks = s.m.stored
		own.dirty = true
	}
	c.storedAll(s.m)
	c.pump()
}
