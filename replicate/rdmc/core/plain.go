package core

import "fmt"

// Plain use: messages are not announced out of band. The first block that reaches a member carries the size of its
// message; its immediate value is the number of blocks.
//
// For it each lane has a standing receive, posted behind the receives of all messages that are known. The next
// message's first transfer on the lane consumes it: grant finds it there and posts no other. Messages may become known
// on different lanes in another order than they were sent; a block of a later message then waits in its slot. Standing
// receives use slots of their own, so that what member.go says of finite pools holds.

// stand posts standing receives, as soon as all known messages have got theirs.
func (c *Member) stand() {
	if !c.plain || c.isRoot() || c.steps.in.seq != c.messages.Next() {
		return
	}
	for lane := range c.lanes.all {
		l := &c.lanes.all[lane]
		if l.standing >= 0 || !l.blocks {
			continue
		}
		i := c.slots.take()
		if i < 0 {
			return
		}
		*c.slots.at(i) = slot{}
		l.standing = i
		c.post(lane, i)
	}
}

// useStanding gives the lane's standing receive to the message's next block from there, which may have come already.
func (c *Member) useStanding(lane int, m *message, pos uint64) {
	l := &c.lanes.all[lane]
	i := l.standing
	l.standing = -1
	s := c.slots.at(i)
	s.m, s.pos = m, pos
	if s.state == slotEarly {
		c.accept(lane, i, s.early)
	} else {
		c.posted++
	}
}

// arriveEarly keeps the first block of a message on a lane, and begins the message if it is not known.
func (c *Member) arriveEarly(lane, i int, got Trailer) {
	s := c.slots.at(i)
	s.state, s.early = slotEarly, got
	if got.Seq >= c.steps.in.seq && (got.Seq < c.messages.Next() || c.messages.early[got.Seq] != nil) {
		return // grant will find it
	}
	a := Announcement{Seq: got.Seq, Size: got.Size}
	err := a.Validate(c.block)
	if err == nil && (got.Seq < c.steps.in.seq || got.Epoch != c.epoch || got.Size == 0 ||
		got.Seq-c.messages.Next() >= MaxQueued) {
		err = fmt.Errorf("%w: unexpected block %+v", ErrCorrupt, got)
	}
	if err != nil {
		c.Fail(ReasonCorrupt, c.rank, []int{c.lanes.all[lane].peer}, err)
		return
	}
	blocks := BlockCount(got.Size, c.block)
	a.Blocks = AllBlocks(blocks)
	if err := c.Announce(a, NewBitmap(blocks)); err != nil {
		c.Fail(ReasonCorrupt, c.rank, []int{c.lanes.all[lane].peer}, err)
	}
}
