package rdmc

import (
	"fmt"
	"slices"
	"time"
)

// Who is a straggler is told by the members that send to it, each by what it measures itself: relaying couples all members, and
// whoever lacks blocks because a member before it is slow has nothing to send and is waited for by nobody; that is why paces of receipt
// say nothing. One that makes room late because others hold it up says so in its control messages, every now and then, and is
// excused meanwhile. See docs/decisions/022.

// peerPaces are the figures of the peers that blocks are sent to, by what a lane is measured by.
func (c *core) peerPaces(of func(l *lanePace) paceSum) []PeerPace {
	var all []PeerPace
	for i := range c.lanes {
		l := &c.pace.lanes[i]
		if p := l.of(c.lanes[i].peer, of(l)); p.Bytes > 0 || p.Waiting+p.Excused > 0 {
			all = append(all, p)
		}
	}
	return all
}

// watchPace judges the peers at the end of each round. It is called every now and then while messages are under way.
func (c *core) watchPace() {
	p, round := &c.pace, c.limits.slowTime/paceRounds
	if round <= 0 || !p.turn(c.now, round) {
		return
	}
	over := c.now.Sub(p.since)
	figures := c.peerPaces(func(l *lanePace) paceSum { return l.sums[p.round] })
	slow := stragglers(figures, c.peerPaces((*lanePace).total), over, c.limits.slowFactor)
	for i := range c.lanes {
		if slices.ContainsFunc(slow, func(s Straggler) bool { return s.Rank == c.lanes[i].peer }) {
			p.lanes[i].slow++
		} else {
			p.lanes[i].slow = 0
		}
	}
	worst, found := c.worst()
	p.next(c.now)
	if found {
		c.straggles(worst)
	}
}

// worst is the slowest of those that were slow in all rounds.
func (c *core) worst() (worst Straggler, found bool) {
	p := &c.pace
	all := c.peerPaces((*lanePace).total)
	for _, s := range stragglers(all, all, c.limits.slowTime, c.limits.slowFactor) {
		l := &p.lanes[c.laneOf[s.Rank]]
		if l.slow >= paceRounds && (!found || s.PerSecond()*worst.Others < worst.PerSecond()*s.Others) {
			worst, found = s, true
		}
	}
	return worst, found
}

// straggles does what the policy says.
func (c *core) straggles(s Straggler) {
	c.pace.lanes[c.laneOf[s.Rank]].slow = 0 // told again after as much time
	if c.limits.slow == SlowIgnore || c.ended() {
		return
	}
	c.slowest = s
	c.act(action{kind: actSlow})
	if c.limits.slow == SlowEject {
		c.fail(ReasonSlow, c.rank, []int{s.Rank}, &SlowError{s})
	}
}

// heldUp reports whether this member can't make room for no fault of its own: all that it may post is posted, for blocks that have not
// come, or its buffers are full of blocks that others do not take.
func (c *core) heldUp() bool {
	if c.isRoot() || len(c.messages) == 0 {
		return false
	}
	if c.posted >= c.limits.posted {
		return true
	}
	for i := range c.slots {
		if c.slots[i].storing {
			return false
		}
	}
	return c.takeSlot() < 0
}

// excuse tells those who have no credit left that this member is held up, again before the last word on it is out of date.
func (c *core) excuse() {
	if !c.active() || !c.heldUp() {
		return
	}
	for i := range c.lanes {
		if l := &c.lanes[i]; l.blocks && len(l.ring) == 0 && c.now.Sub(l.spoke) >= excuseTime/2 {
			l.dirty = true
		}
	}
}

// sentTo says that the peer of the lane holds the block of a send.
func (c *core) sentTo(lane, i int) {
	c.pace.done(c.now, lane, c.lengthOf(&c.slots[i]))
	c.sent(i)
}

// Pace is what this member measured of those that it sends blocks to, over the last GroupConfig.SlowTime.
func (g *Group) Pace() []PeerPace {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.look()
	g.core.pace.to(g.core.now)
	return g.core.peerPaces((*lanePace).total)
}

// Stragglers are those of Pace that are slower than the others by GroupConfig.SlowFactor, with the evidence.
func (g *Group) Stragglers() []Straggler {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.look()
	c := g.core
	c.pace.to(c.now)
	if c.pace.since.IsZero() {
		return nil
	}
	rounds := time.Duration(c.pace.round)
	if c.pace.full {
		rounds = paceRounds - 1
	}
	over := rounds*c.limits.slowTime/paceRounds + c.now.Sub(c.pace.since)
	all := c.peerPaces((*lanePace).total)
	return stragglers(all, all, over, c.limits.slowFactor)
}

// slow tells the caller of a straggler. The lock is held.
func (g *Group) slow(s Straggler) {
	g.log.Info("a member is slow", "evidence", s.String())
	if g.cfg.OnSlow != nil {
		g.calls.add(func() { g.cfg.OnSlow(s) })
	}
}

func (cfg *GroupConfig) checkSlow() error {
	if cfg.Slow > SlowEject || cfg.SlowFactor <= 1 || cfg.SlowTime < 0 {
		return fmt.Errorf("%w: slow policy %d, factor %v, time %v", ErrInvalid, cfg.Slow, cfg.SlowFactor, cfg.SlowTime)
	}
	return nil
}
