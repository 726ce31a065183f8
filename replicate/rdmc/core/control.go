package core

import (
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
)

// ControlWindow is how many control messages a member posts receives for, per neighbour. The shell posts as many before
// it connects a lane, and each again before it hands over what came into it.
const ControlWindow = 16

// control sends neighbours the control state that they need and that can be sent now.
func (c *Member) control() {
	settled := c.Ended()
	for i := range c.lanes.all {
		l := &c.lanes.all[i]
		if l.dirty && l.up && !l.busy && !l.broken && l.mayControl() {
			l.busy = true
			l.ctlSent++
			c.act(Action{Kind: ActControl, Lane: i})
		}
		settled = settled && (l.told || !l.canBeTold(c.failure))
	}
	if settled && !c.settled {
		c.settled = true
		c.act(Action{Kind: ActSettled})
	}
}

// EncodeControl writes the control message of an ActControl into buf, which has room for MaxControl bytes, and returns
// its length. It must be sent.
func (c *Member) EncodeControl(lane int, buf []byte) int {
	l := &c.lanes.all[lane]
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
		b, l.dirty = c.reports.append(b, c.now)
	}
	return len(b)
}

// ControlSent says that the neighbour's memory holds the lane's control message.
func (c *Member) ControlSent(lane int) {
	l := &c.lanes.all[lane]
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
		c.Fail(ReasonCorrupt, c.rank, []int{c.lanes.all[lane].peer}, err)
	}
	return err == nil
}

// ControlReceived takes in a control message from the lane's neighbour. Nothing of m is kept but the failure that it
// reports.
func (c *Member) ControlReceived(lane int, m *ControlMessage) {
	l := &c.lanes.all[lane]
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
	if int64(r.rank) >= int64(len(c.reports.members)) || r.rank == 0 || int(r.rank) == c.rank ||
		c.isRoot() && r.done >= c.messages.Next() {
		c.Fail(ReasonCorrupt, c.rank, []int{from}, ErrCorrupt)
		return
	}
	m := &c.reports.members[r.rank]
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
	c.reports.members[rank].dirty = true
	c.reports.members[rank].blocks = 0
	if m := c.messages.at(c.reports.members[rank].done + 1); m != nil && rank == c.rank {
		c.reports.members[rank].blocks = m.stored
	}
	if c.parent >= 0 {
		c.lanes.all[c.parent].dirty = true
	}
}

// close ends the group well: everything was delivered to all members, also where a neighbour ended before this
// member heard how its last sends went.
func (c *Member) close() {
	if c.Ended() {
		return
	}
	c.closed = true
	for _, m := range c.messages.list {
		if m.told && m.seq <= c.last {
			c.act(Action{Kind: ActDone, Seq: m.seq})
		}
	}
	for i := range c.lanes.all {
		c.lanes.all[i].dirty = true
	}
	c.act(Action{Kind: ActClosed})
	c.control()
}

// CloseWhenDone closes the group, at the root, when all its messages have ended. No message may be announced after it.
func (c *Member) CloseWhenDone() {
	c.closing, c.last = true, c.messages.Next()-1
	c.Pump()
}

// Connected says that the lane's queue pairs can send.
func (c *Member) Connected(lane int) {
	l := &c.lanes.all[lane]
	l.up, l.dirty = true, true
	l.heard, c.quiet = c.now, c.now
	c.Pump()
}

// NotConnected says that the lane's queue pairs could not be connected.
func (c *Member) NotConnected(lane int) { c.lanes.all[lane].broken = true }

// AwaitEnd says, at a member, that the application waits for the end of the group: silence counts until then.
func (c *Member) AwaitEnd() {
	if c.waiting || c.Ended() {
		return
	}
	if !c.Active() {
		c.lanes.wake(c.now)
	}
	c.waiting = true
	for i := range c.lanes.all {
		c.lanes.all[i].dirty = true
	}
	c.control()
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
	for i := range c.lanes.all {
		c.lanes.all[i].heard = c.lanes.all[i].heard.Add(lag - lagMax)
	}
}

// Tick passes the time, and looks for silent neighbours and for reports that are due. It reports whether it has to be
// called again, share.TickInterval later, even if nothing happens.
func (c *Member) Tick(now time.Time) bool {
	c.SetClock(now)
	if c.parent >= 0 && c.reports.isDue(c.now, c.limits.Interval) {
		c.lanes.all[c.parent].dirty = true
	}
	c.graceOver()
	attentive := c.Active() || len(c.lost) > 0 && !c.Ended() || c.Ended() && !c.settled
	for i := range c.lanes.all {
		l := &c.lanes.all[i]
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
	return l.child && !c.Ended() && c.reports.members[l.peer].done < c.reports.members[c.rank].done
}
