package core

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
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
	blocks blockset.Index
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
func (m *message) count() uint64 { return m.blocks.Count() }

// Announce queues a message; at the root it has the number Next. have is what is stored here already, nil at the root;
// it belongs to the member from now on. Other members may hear of messages in any order. ErrInvalid is returned if the
// message was announced before, or if too many are queued.
func (c *Member) Announce(a Announcement, have *Bitmap) error {
	m := &message{seq: a.Seq, size: a.Size, blocks: a.Blocks.Index(), have: have}
	m.sched = c.plan.Message(m.seq, m.count())
	m.sends, m.receives = m.sched.Sends(c.rank), m.sched.Receives(c.rank)
	if !c.isRoot() {
		m.stored = overlap(have, a.Blocks)
	}
	if _, twice := c.messages.early[a.Seq]; twice || a.Seq < c.messages.Next() {
		return fmt.Errorf("%w: message %d was announced before", ErrInvalid, a.Seq)
	}
	bound := MaxQueued
	if !c.isRoot() {
		bound += queuedBehind
	}
	if c.messages.Queued() >= bound {
		return fmt.Errorf("%w: %d messages are queued", ErrInvalid, bound)
	}
	c.enqueue(m)
	c.Pump()
	return nil
}

// enqueue begins the message, and the messages that wait for it, or keeps it until all before it are known.
func (c *Member) enqueue(m *message) {
	if m.seq != c.messages.Next() {
		c.messages.early[m.seq] = m
		return
	}
	c.begin(m)
	for m := c.messages.early[c.messages.Next()]; m != nil; m = c.messages.early[c.messages.Next()] {
		delete(c.messages.early, m.seq)
		c.begin(m)
	}
}

// begin makes the message part of the order of transfers.
func (c *Member) begin(m *message) {
	if len(c.messages.list) == 0 {
		c.lanes.wake(c.now)
	}
	c.messages.push(m)
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
	if m := c.messages.at(seq); m != nil {
		m.nowhere = false
		c.Pump()
	}
}

func overlap(have *Bitmap, blocks Ranges) uint64 {
	if have.Count() == 0 {
		return 0
	}
	return have.CountIn(blocks)
}

// storedAll notifies the shell and the parent, once, when all blocks to move are stored here.
func (c *Member) storedAll(m *message) {
	if m.told || !c.isRoot() && m.stored < m.count() {
		return
	}
	m.told = true
	c.act(Action{Kind: ActStored, Seq: m.seq})
	own := &c.reports.members[c.rank]
	for n := c.messages.at(own.done + 1); n != nil && n.told; n = c.messages.at(own.done + 1) {
		own.done = n.seq
	}
	c.reportNow(c.rank)
}

// retire ends the messages that are finished, oldest first.
func (c *Member) retire() {
	for len(c.messages.list) > 0 && c.finished(c.messages.list[0]) {
		m := c.messages.pop()
		c.quiet = c.now
		c.act(Action{Kind: ActDone, Seq: m.seq})
		if m.small {
			c.small.spare = append(c.small.spare, m)
		} else {
			c.slots.drop(m)
		}
	}
	c.steps.startAt(c.messages.first)
	if c.closing && (len(c.messages.list) == 0 || c.messages.first > c.last) {
		c.close()
	}
}

// finished reports whether nothing is left to do here for the message and, at the root, at any member.
func (c *Member) finished(m *message) bool {
	if !m.sentAll || m.queued > 0 || m.flight > 0 || !m.told {
		return false
	}
	if c.isRoot() {
		return c.reports.delivered(c.messages.Next()) >= m.seq
	}
	return m.received == m.count()
}
