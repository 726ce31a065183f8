package core

import (
	"fmt"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
)

// ControlWindow is how many control messages a member posts receives for, per neighbour. The shell posts as many before
// it connects a lane, and each again before it hands over what came into it.
const ControlWindow = 16

// lane is what the core knows of one neighbour. A lane has two queue pairs: one for blocks, one for control messages.
// Control messages carry state, not changes: how many blocks the neighbour may have sent in all, which control messages
// came, how far members are, whether the group failed or closed. So at most one is on its way at a time, and what
// happens meanwhile goes with the next.
//
// They too are sent only into posted receives: each says how many came the other way. The last two of a window are kept
// for messages that must say this, so that two neighbours never wait for each other.
type lane struct {
	peer   int
	blocks bool // a neighbour of the schedule: has a queue pair for blocks
	child  bool // reports to this member
	up     bool // the queue pairs are connected
	broken bool // a queue pair is in error

	sent    uint64 // blocks posted to the neighbour, in all
	credit  uint64 // blocks that the neighbour has granted, in all
	granted uint64 // blocks granted to the neighbour, in all
	offered uint64 // blocks granted in the last control message, in all
	ring    []int  // slots posted as receives, oldest first

	standing int // slot of the standing receive, see plain.go; -1 if none

	smallSent   uint64 // small messages posted to the neighbour, in all
	smallCredit uint64 // small messages that it has made room for, in all

	dirty   bool // there is something to send
	busy    bool // a control message is on its way
	ctlSent uint64
	ctlDone uint64 // control messages that the neighbour said it received
	ctlCame uint64 // control messages received
	ctlTold uint64 // control messages that the neighbour knows were received
	ends    bool   // the control message on its way reports the end of the group
	told    bool   // the neighbour knows of the end

	heard      time.Time // when something last came
	spoke      time.Time // when a control message was last sent
	peerActive time.Time // when the neighbour last said that it is active
}

// offer marks the lane for a control message with the neighbour's new credit when the neighbour may have used up half
// of the credit it knows of: one control message for several blocks, not one for each.
func (l *lane) offer() {
	used := l.granted - uint64(len(l.ring))
	if left := l.offered - used; l.offered < l.granted && 2*left <= uint64(len(l.ring)) {
		l.dirty = true
	}
}

// mustAcknowledge reports that the neighbour's window may run dry.
func (l *lane) mustAcknowledge() bool { return l.ctlCame-l.ctlTold >= ControlWindow*3/4 }

// mayAcknowledge reports that it is time to acknowledge if something goes to the neighbour anyway.
func (l *lane) mayAcknowledge() bool { return l.ctlCame-l.ctlTold >= ControlWindow/2 }

// mayControl reports whether the neighbour has room for a control message.
func (l *lane) mayControl() bool {
	out := l.ctlSent - l.ctlDone
	return out < ControlWindow-2 || out < ControlWindow && l.mustAcknowledge()
}

// control sends neighbours the control state that they need and that can be sent now.
func (c *Member) control() {
	settled := c.Ended()
	for i := range c.lanes {
		l := &c.lanes[i]
		if l.dirty && l.up && !l.busy && !l.broken && l.mayControl() {
			l.busy = true
			l.ctlSent++
			c.act(Action{Kind: ActControl, Lane: i})
		}
		settled = settled && (l.told || !c.canBeTold(l))
	}
	if settled && !c.settled {
		c.settled = true
		c.act(Action{Kind: ActSettled})
	}
}

// canBeTold reports whether a neighbour is expected to take a control message. A neighbour that sent a corrupt block or
// message is: it must hear of that before its queue pairs break, lest it suspect this member.
func (c *Member) canBeTold(l *lane) bool {
	if !l.up || l.broken {
		return false
	}
	f := c.failure
	return f == nil || f.Reason == ReasonCorrupt || !slices.Contains(f.Suspects, l.peer)
}

// EncodeControl writes the control message of an ActControl into buf, which has room for MaxControl bytes, and returns
// its length. It must be sent.
func (c *Member) EncodeControl(lane int, buf []byte) int {
	l := &c.lanes[lane]
	m := ControlMessage{
		epoch:    c.epoch,
		granted:  l.granted,
		received: l.ctlCame,
		active:   c.Active() || c.awaits(l),
		closed:   c.closed,
		last:     c.last,
		failure:  c.failure,
	}
	l.dirty = false
	l.offered = l.granted
	l.ctlTold = l.ctlCame
	l.spoke = c.now
	l.ends = c.Ended()
	if lane == c.parent && c.small.bytes > 0 {
		m.small, m.smallGranted = true, c.small.granted
		c.small.told = c.small.granted
	}
	b := m.appendBinary(buf[:0])
	if lane == c.parent {
		b, l.dirty = c.appendReports(b)
	}
	return len(b)
}

// appendReports appends what the parent does not know of members, as far as there is room, and whether there is more.
func (c *Member) appendReports(b []byte) ([]byte, bool) {
	for rank := range c.members {
		m := &c.members[rank]
		if !m.dirty {
			continue
		}
		if len(b)+reportSize > MaxControl {
			return b, true
		}
		b = appendReport(b, report{rank: uint32(rank), done: m.done, blocks: m.blocks})
		m.dirty = false
	}
	c.report = c.now
	return b, false
}

// ControlSent says that the neighbour's memory holds the lane's control message.
func (c *Member) ControlSent(lane int) {
	l := &c.lanes[lane]
	l.busy = false
	l.told = l.told || l.ends
	c.control()
}

// DecodeControl decodes a control message from the lane into m, for ControlReceived, and keeps nothing of b. It reports
// whether the message can be used: else the group has failed.
func (c *Member) DecodeControl(lane int, b []byte, m *ControlMessage) bool {
	err := decodeControl(b, m)
	if err == nil && m.epoch != c.epoch {
		err = fmt.Errorf("%w: control message of epoch %d", ErrCorrupt, m.epoch)
	}
	if err != nil {
		c.Fail(ReasonCorrupt, c.rank, []int{c.lanes[lane].peer}, err)
	}
	return err == nil
}

// ControlReceived takes in a control message from the lane's neighbour. Nothing of m is kept but the failure that it
// reports.
func (c *Member) ControlReceived(lane int, m *ControlMessage) {
	l := &c.lanes[lane]
	l.heard = c.now
	l.ctlCame++
	l.dirty = l.dirty || l.mustAcknowledge()
	l.ctlDone = max(l.ctlDone, min(m.received, l.ctlSent))
	l.credit = max(l.credit, m.granted)
	l.smallCredit = max(l.smallCredit, m.smallGranted)
	if m.active {
		l.peerActive = c.now
	}
	for _, r := range m.reports {
		c.learn(l.peer, r)
	}
	if m.failure != nil {
		c.Fail(m.failure.Reason, m.failure.Reporter, m.failure.Suspects, nil)
	}
	if m.closed && !c.isRoot() {
		c.closing, c.last = true, m.last
	}
	c.Pump()
}

// learn takes in a report on a member below, and passes it on: at once if a message was completed there, else
// with the next report.
func (c *Member) learn(from int, r report) {
	if int64(r.rank) >= int64(len(c.members)) || r.rank == 0 || int(r.rank) == c.rank || c.isRoot() && r.done >= c.Next() {
		c.Fail(ReasonCorrupt, c.rank, []int{from}, ErrCorrupt)
		return
	}
	m := &c.members[r.rank]
	if r.done < m.done || r.done == m.done && r.blocks <= m.blocks {
		return
	}
	newDone := r.done > m.done
	m.done, m.blocks, m.dirty = r.done, r.blocks, true
	if newDone {
		c.reportNow(int(r.rank))
	}
}

// reportNow marks a member to be reported to the parent without delay.
func (c *Member) reportNow(rank int) {
	c.members[rank].dirty = true
	c.members[rank].blocks = 0
	if m := c.message(c.members[rank].done + 1); m != nil && rank == c.rank {
		c.members[rank].blocks = m.stored
	}
	if c.parent >= 0 {
		c.lanes[c.parent].dirty = true
	}
}

// close ends the group well: everything was delivered to all members, also where a neighbour ended before this
// member heard how its last sends went.
func (c *Member) close() {
	if c.Ended() {
		return
	}
	c.closed = true
	for _, m := range c.messages {
		if m.told && m.seq <= c.last {
			c.act(Action{Kind: ActDone, Seq: m.seq})
		}
	}
	for i := range c.lanes {
		c.lanes[i].dirty = true
	}
	c.act(Action{Kind: ActClosed})
	c.control()
}

// CloseWhenDone closes the group, at the root, when all its messages have ended. No message may be announced after it.
func (c *Member) CloseWhenDone() {
	c.closing, c.last = true, c.Next()-1
	c.Pump()
}

// Connected says that the lane's queue pairs can send.
func (c *Member) Connected(lane int) {
	l := &c.lanes[lane]
	l.up, l.dirty = true, true
	l.heard, c.quiet = c.now, c.now
	c.Pump()
}

// NotConnected says that the lane's queue pairs could not be connected.
func (c *Member) NotConnected(lane int) { c.lanes[lane].broken = true }

// AwaitEnd says, at a member, that the application waits for the end of the group: silence counts until then.
func (c *Member) AwaitEnd() {
	if c.waiting || c.Ended() {
		return
	}
	if !c.Active() {
		c.wake()
	}
	c.waiting = true
	for i := range c.lanes {
		c.lanes[i].dirty = true
	}
	c.control()
}

// wake begins a time of activity: silence counts from now.
func (c *Member) wake() {
	for i := range c.lanes {
		c.lanes[i].heard = c.now
	}
}

// lagMax is the most silence that one look at the clock adds. Ticks come every share.TickInterval: a member that looks
// later than this was not running itself, and holds the time that it has not watched against nobody.
const lagMax = 2 * share.TickInterval

// SetClock sets the time, before the member is told what happened at that time. It moves the time of silence on only by
// what was watched.
func (c *Member) SetClock(now time.Time) {
	lag := now.Sub(c.now)
	c.now = now
	if lag <= lagMax {
		return
	}
	for i := range c.lanes {
		c.lanes[i].heard = c.lanes[i].heard.Add(lag - lagMax)
	}
}

// Tick passes the time, and looks for silent neighbours and for reports that are due. It reports whether it has to be
// called again, share.TickInterval later, even if nothing happens.
func (c *Member) Tick(now time.Time) bool {
	c.SetClock(now)
	c.reportInTime()
	c.graceOver()
	attentive := c.Active() || len(c.lost) > 0 && !c.Ended() || c.Ended() && !c.settled
	for i := range c.lanes {
		l := &c.lanes[i]
		watching := c.Active() || c.awaits(l)
		watched := watching || now.Sub(l.peerActive) < c.limits.Silence
		attentive = attentive || watched
		if watched && now.Sub(l.spoke) >= c.limits.Silence/4 {
			l.dirty = true
		}
		if watching && l.up && now.Sub(l.heard) > c.limits.Silence {
			c.Fail(ReasonSilent, c.rank, []int{l.peer}, nil)
		}
	}
	c.control()
	return attentive
}

// awaits reports whether a neighbour that reports to this member lacks a message that is done here. No other member may
// miss the neighbour: the root need not be next to it, and the others are done too.
func (c *Member) awaits(l *lane) bool {
	return l.child && !c.Ended() && c.members[l.peer].done < c.members[c.rank].done
}

// reportInTime sends reports that are due.
func (c *Member) reportInTime() {
	if c.parent < 0 || c.now.Sub(c.report) < c.limits.Interval {
		return
	}
	for rank := range c.members {
		if c.members[rank].dirty {
			c.lanes[c.parent].dirty = true
			return
		}
	}
}
