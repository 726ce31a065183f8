package core

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// maxQueued bounds the messages that are announced and not finished: at the root, which sends no more. A member may
// still have to end some that are over for the root, and takes queuedBehind more.
const (
	MaxQueued    = 4096
	queuedBehind = MaxQueued
)

// message is one message as the core sees it.
type message struct {
	seq    uint64
	size   uint64
	blocks indexed
	sched  schedule.Schedule

	sends, receives schedule.Span // steps of this member

	have     *Bitmap // stored here, by block; nil at the root
	received uint64  // blocks that came
	stored   uint64  // blocks to move that are stored here
	queued   int     // sends prepared and not posted
	flight   int     // sends posted and not completed
	sentAll  bool    // all sends have been prepared
	told     bool    // actStored was given
	small    bool    // sent by small.go, not by the schedule
	place    uint64  // of a small message at a member: its count
	nowhere  bool    // not known yet where its blocks go: no receives are posted for it
}

// count is the number of blocks to move.
func (m *message) count() uint64 { return m.blocks.count }

// cursor is a place in the order of all steps of all messages.
type cursor struct{ seq, step uint64 }

// Announce queues a message; at the root it has the number Next. have is what is stored here already, nil at the root;
// it belongs to the member from now on. Other members may hear of messages in any order. ErrInvalid is returned if the
// message was announced before, or if too many are queued.
func (c *Member) Announce(a Announcement, have *Bitmap) error {
	m := &message{seq: a.Seq, size: a.Size, blocks: index(a.Blocks), have: have}
	m.sched = c.plan.Message(m.seq, m.count())
	m.sends, m.receives = m.sched.Sends(c.rank), m.sched.Receives(c.rank)
	if !c.isRoot() {
		m.stored = overlap(have, a.Blocks)
	}
	if _, twice := c.early[a.Seq]; twice || a.Seq < c.Next() {
		return fmt.Errorf("%w: message %d was announced before", ErrInvalid, a.Seq)
	}
	bound := MaxQueued
	if !c.isRoot() {
		bound += queuedBehind
	}
	if len(c.messages)+len(c.early) >= bound {
		return fmt.Errorf("%w: %d messages are queued", ErrInvalid, bound)
	}
	c.enqueue(m)
	c.Pump()
	return nil
}

// enqueue begins the message, and the messages that wait for it, or keeps it until all before it are known.
func (c *Member) enqueue(m *message) {
	if m.seq != c.Next() {
		c.early[m.seq] = m
		return
	}
	c.begin(m)
	for m := c.early[c.Next()]; m != nil; m = c.early[c.Next()] {
		delete(c.early, m.seq)
		c.begin(m)
	}
}

// Next is the number of the next message to begin.
func (c *Member) Next() uint64 { return c.first + uint64(len(c.messages)) }

// begin makes the message part of the order of transfers.
func (c *Member) begin(m *message) {
	if len(c.messages) == 0 {
		c.wake()
	}
	c.push(m)
	switch {
	case c.isRoot():
	case m.small && !c.small.inOrder:
		c.small.give(m) // Incoming is called in order of beginnings
	case c.plain && !m.small:
		m.nowhere = true
		c.act(Action{Kind: ActIncoming, Seq: m.seq, Size: m.size})
	}
	c.storedAll(m)
}

// Ready says that it is known where the blocks of a message go that ActIncoming has named.
func (c *Member) Ready(seq uint64) {
	if m := c.message(seq); m != nil {
		m.nowhere = false
		c.Pump()
	}
}

// push appends to messages, whose array is used again and again.
func (c *Member) push(m *message) {
	if n := len(c.messages); n == cap(c.messages) && cap(c.backing) > 2*n {
		whole := c.backing[:cap(c.backing)]
		copy(whole, c.messages)
		clear(whole[n:])
		c.messages = whole[:n]
	}
	moved := len(c.messages) == cap(c.messages)
	c.messages = append(c.messages, m)
	if moved {
		c.backing = c.messages
	}
}

func overlap(have *Bitmap, blocks Ranges) uint64 {
	if have.Count() == 0 {
		return 0
	}
	return have.countIn(blocks)
}

// message is the message with the number, or nil if it has not begun. It has not finished.
func (c *Member) message(seq uint64) *message {
	if i := seq - c.first; i < uint64(len(c.messages)) {
		return c.messages[i]
	}
	return nil
}

// Have is what is stored here of a message that has not finished, or nil. It is the member's own, which changes it.
func (c *Member) Have(seq uint64) *Bitmap {
	if m := c.message(seq); m != nil {
		return m.have
	}
	if m := c.early[seq]; m != nil {
		return m.have
	}
	return nil
}

// nextIn moves the cursor of receipts to the next step that brings something.
func (c *Member) nextIn() (*message, schedule.Transfer, bool) {
	for m := c.message(c.in.seq); m != nil; m = c.message(c.in.seq) {
		for c.in.step = max(c.in.step, m.receives.First); c.in.step < m.receives.End; c.in.step++ {
			if t, ok := m.sched.Incoming(c.rank, c.in.step); ok {
				return m, t, true
			}
		}
		c.in = cursor{seq: m.seq + 1}
	}
	return nil, schedule.Transfer{}, false
}

// nextOut moves the cursor of sends to the next step that sends something.
func (c *Member) nextOut() (*message, schedule.Transfer, bool) {
	for m := c.message(c.out.seq); m != nil; m = c.message(c.out.seq) {
		if c.costs.Leaf && m.count() >= schedule.PartBlocks {
			c.out.step = m.sends.End // of 2^32 blocks, to go over them takes longer than a neighbour may be silent
		}
		for c.out.step = max(c.out.step, m.sends.First); c.out.step < m.sends.End; c.out.step++ {
			if t, ok := m.sched.Outgoing(c.rank, c.out.step); ok {
				return m, t, true
			}
		}
		m.sentAll = true
		c.out = cursor{seq: m.seq + 1}
	}
	return nil, schedule.Transfer{}, false
}

// storedAll notifies the shell and the parent, once, when all blocks to move are stored here.
func (c *Member) storedAll(m *message) {
	if m.told || !c.isRoot() && m.stored < m.count() {
		return
	}
	m.told = true
	c.act(Action{Kind: ActStored, Seq: m.seq})
	own := &c.members[c.rank]
	for n := c.message(own.done + 1); n != nil && n.told; n = c.message(own.done + 1) {
		own.done = n.seq
	}
	c.reportNow(c.rank)
}

// retire ends the messages that are finished, oldest first.
func (c *Member) retire() {
	for len(c.messages) > 0 && c.finished(c.messages[0]) {
		m := c.messages[0]
		c.messages[0] = nil
		c.messages = c.messages[1:]
		c.first++
		c.quiet = c.now
		c.act(Action{Kind: ActDone, Seq: m.seq})
		if m.small {
			c.small.spare = append(c.small.spare, m)
		} else {
			c.slots.drop(m)
		}
	}
	if c.in.seq < c.first {
		c.in = cursor{seq: c.first}
	}
	if c.out.seq < c.first {
		c.out = cursor{seq: c.first}
	}
	if c.closing && (len(c.messages) == 0 || c.first > c.last) {
		c.close()
	}
}

// finished reports whether nothing is left to do here for the message and, at the root, at any member.
func (c *Member) finished(m *message) bool {
	if !m.sentAll || m.queued > 0 || m.flight > 0 || !m.told {
		return false
	}
	if c.isRoot() {
		return c.deliveredTo() >= m.seq
	}
	return m.received == m.count()
}

// deliveredTo is the last message that all members have stored.
func (c *Member) deliveredTo() uint64 {
	low := c.first + uint64(len(c.messages))
	for _, m := range c.members[1:] {
		low = min(low, m.done)
	}
	return low
}
