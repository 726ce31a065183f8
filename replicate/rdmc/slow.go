package rdmc

import (
	"fmt"
	"math"
	"time"
)

// How the root learns who is slow. Each member measures those that it sends to (pace.go), and in each round tells
// them how fast they take its blocks; each makes one account of what it heard and of its own sends, which goes to the
// root along the tree of reports; the root compares all (straggler.go), and asks about who stands out by sending in
// pulses (slowpulse.go). One that makes room late because others hold it up says so in its control messages, every
// now and then, and is excused meanwhile. See docs/decisions/022.

// slowCount is what the root knows of a member.
type slowCount struct {
	rounds  int       // in which it stood out, in a row
	heard   time.Time // its last figures
	suspect Straggler // what the root asks about
}

// roundOver reports whether it is time to end a round.
func (c *core) roundOver(now time.Time) bool {
	round := c.limits.slowTime / paceRounds
	return round > 0 && !c.ended() && c.pace.over(now, round)
}

// readGauge has the core know what the device measured, when a round is over. The lock is held.
func (g *Group) readGauge(now time.Time) {
	c, e := g.core, g.engine
	if c.limits.slow == SlowIgnore || !c.roundOver(now) {
		return
	}
	c.link = e.got.Load()
	if e.gauge != nil {
		if _, got, ok := e.gauge.Carried(); ok {
			c.link = got
		}
	}
}

// watchPace ends a round in time. It is called every now and then while messages are under way.
func (c *core) watchPace() {
	p, round := &c.pace, c.limits.slowTime/paceRounds
	if !c.roundOver(c.now) {
		return
	}
	p.to(c.now)
	c.pulsesOver()
	if over := c.now.Sub(p.since); c.limits.slow != SlowIgnore && !p.void && over < 2*round && len(c.messages) > 0 {
		c.tellPaces(over)
		c.account(over)
	}
	p.next(c.now)
	c.before, c.gotBefore = c.link, p.got
}

// tellPaces has the peers told how they were.
func (c *core) tellPaces(over time.Duration) {
	for i := range c.lanes {
		l := &c.pace.lanes[i]
		if l.tell(l.sums[c.pace.round], over) {
			c.lanes[i].tells, c.lanes[i].dirty = true, true
		}
	}
}

// account makes this member's own figures of the round, for the root, from what its peers told.
func (c *core) account(over time.Duration) {
	f := figures{rate: perSecond(c.pace.got-c.gotBefore, over), elsewhere: elsewhere(c.link-c.before, c.pace.got-c.gotBefore)}
	f.pulse = c.pace.pulse.take()
	for i := range c.lanes {
		l := &c.pace.lanes[i]
		if l.fresh == 0 || l.heard.pace == 0 {
			continue
		}
		if f.peers = min(f.peers+1, 254); f.peers == 1 || l.heard.busy < f.busy {
			f.busy, f.wait = l.heard.busy, l.heard.wait
		}
		f.pace = max(f.pace, l.heard.pace)
	}
	c.learnFigures(c.rank, f)
}

func perSecond(bytes uint64, over time.Duration) uint32 {
	return uint32(min(float64(bytes)/max(over, 1).Seconds()/paceUnit, math.MaxUint32))
}

// elsewhere reports whether a link carried much more than the group's bytes.
func elsewhere(link, own uint64) bool { return link > own+own*slowElsewhere/100 }

// learnFigures takes a member's figures in: to be passed on, or at the root to be judged, unless it ignores them.
func (c *core) learnFigures(rank int, f figures) {
	if c.isRoot() && c.limits.slow == SlowIgnore {
		return
	}
	m := &c.members[rank]
	m.figures = f
	if !c.isRoot() {
		m.figuresDirty = true
		c.lanes[c.parent].dirty = true
		return
	}
	if c.now.Sub(m.slow.heard) > c.limits.slowTime {
		m.slow.rounds = 0
	}
	m.slow.heard = c.now
	if rank == 0 {
		return
	}
	if rank == c.pulses.suspect {
		if c.proven(&m.slow.suspect) {
			c.answered(1)
			c.straggles(m.slow.suspect)
		}
		return
	}
	s, slow := worst(c.freshFigures(), c.limits.slowFactor, c.block)
	if !slow || s.Rank != rank {
		m.slow.rounds = 0
		return
	}
	m.slow.rounds++
	s.Over = c.limits.slowTime
	switch {
	case s.doubtful && m.slow.rounds >= paceRounds-pulseProofs:
		m.slow.suspect = s
		c.ask(rank)
	case !s.doubtful && m.slow.rounds >= paceRounds:
		m.slow.rounds = 0 // told again after as much time
		c.straggles(s)
	}
}

// freshFigures are those of all members, by rank; empty ones where none came of late.
func (c *core) freshFigures() []figures {
	all := make([]figures, len(c.members))
	for rank := range c.members {
		if m := &c.members[rank]; c.now.Sub(m.slow.heard) <= c.limits.slowTime/2 {
			all[rank] = m.figures
		}
	}
	return all
}

// straggles does what the policy says.
func (c *core) straggles(s Straggler) {
	if c.limits.slow == SlowIgnore || c.ended() {
		return
	}
	c.slowest = s
	c.act(action{kind: actSlow})
	if c.limits.slow == SlowEject {
		c.fail(ReasonSlow, c.rank, []int{s.Rank}, &SlowError{s})
	}
}

// dirtyFigures are those that the parent does not know, as many as a message holds, and whether there are more.
func (c *core) dirtyFigures() (list []memberFigures, more bool) {
	for rank := range c.members {
		m := &c.members[rank]
		if !m.figuresDirty {
			continue
		}
		if len(list) == maxFigures {
			return list, true
		}
		list = append(list, memberFigures{uint32(rank), m.figures})
		m.figuresDirty = false
	}
	return list, false
}

// heldUp reports whether this member can't make room for no fault of its own: all that it may post is posted, for
// blocks that have not come, or its buffers are full of blocks that others do not take.
func (c *core) heldUp() bool {
	if c.isRoot() || len(c.messages) == 0 {
		return false
	}
	if c.posted >= c.limits.posted || c.ahead() {
		return true
	}
	for i := range c.slots {
		if c.slots[i].storing {
			return false
		}
	}
	return c.takeSlot() < 0
}

// excuse tells those who have no credit left that this member is held up, again before the last word on it is out of
// date.
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

// slow tells the caller of a straggler. The lock is held.
func (g *Group) slow(s Straggler) {
	g.log.Info("a member is slow", "evidence", s.String())
	if g.cfg.OnSlow != nil {
		g.calls.add(func() { g.cfg.OnSlow(s) })
	}
}

// SlowPolicy says what happens when a member is found to be a straggler.
type SlowPolicy uint8

// The policies.
const (
	// SlowIgnore does nothing: members do not tell each other their figures.
	SlowIgnore SlowPolicy = iota
	// SlowReport calls GroupConfig.OnSlow.
	SlowReport
	// SlowEject calls it too, and fails the group with ReasonSlow and the straggler as the suspect, for the caller to
	// go on without it.
	SlowEject
)

// Defaults of the policy: a loaded machine is no straggler.
const (
	DefaultSlowFactor = 8
	DefaultSlowTime   = 10 * time.Second
)

func (cfg *GroupConfig) checkSlow() error {
	if cfg.Slow > SlowEject || !(cfg.SlowFactor > 1) || cfg.SlowTime < 0 {
		return fmt.Errorf("%w: slow policy %d, factor %v, time %v", ErrInvalid, cfg.Slow, cfg.SlowFactor, cfg.SlowTime)
	}
	return nil
}
