package rdmc

import "time"

// Whether who stands out is slow. Token buckets let an idle link pass a burst at any pace, so at full pace who is the
// slowest by a little looks as if all queued up for a slow link. So the root asks: for a short while it sends in
// pulses, at a pace that the group has shown it keeps, with pauses in which all catch up. Within a pulse members take
// blocks at the pace of their own links, until windows are full; the first blocks, which bursts carry, do not count.
// See docs/decisions/022.

// Constants of the pulses.
const (
	// pulseBlocks is how many blocks a pulse has: less than windows hold, so that who is quick gets ahead; a prime,
	// so that pulses meet all phases of the schedule.
	pulseBlocks = 11
	pulseSlack  = 1.3 // the time of a pulse with its pause, by what its blocks took before
	pulseRounds = 4   // of pulses, in which a straggler is proven or cleared; the first is not all pulses
	pulseLeast  = 4   // pulses, if rounds are too short for that
	pulseProofs = 2   // rounds in a row that prove it
	pulseThird  = 3   // the part of the others that must have been quicker: those whom a slow relay feeds are not
	pulseRest   = 16  // SlowTime without pulses after someone was cleared, unless the group gets slower
	pulseShare  = 2.5 // the part of SlowFactor beyond 1 by which others must have been quicker: they soon wait for who is slow
	pulseMost   = 1.5 // and at the most
	// burstBytes and burstTime, at the pace of the group, are the block size from which bursts do not count: what
	// shapers let pass at any pace is no larger.
	burstBytes = 256 << 10
	burstTime  = 10 * time.Millisecond
)

// bursts reports whether bursts may carry blocks of a size, so that sources of who is not slow have next to nothing
// to do.
func (f *figures) bursts(block int) bool {
	return float64(block) < max(burstBytes, burstTime.Seconds()*float64(f.rate)*paceUnit)
}

// pulsePace is how fast a member takes blocks within pulses, since it was last told. Outside of pulses it is the
// group's pace.
type pulsePace struct {
	first time.Time // arrival of the pulse's first block
	sum   time.Duration
	bytes int64
	took  time.Duration
}

// arrived says that the n-th block of a message has come, from 0. The measure is the time from the mean arrival of
// the second and the third block to that of the sixth to the eighth, which is that of four and a half.
func (p *pulsePace) arrived(now time.Time, n uint64, bytes int) {
	after := now.Sub(p.first)
	switch n % pulseBlocks {
	case 0:
		p.first, p.sum = now, 0
	case 1, 2:
		p.sum -= 3 * after
	case 5, 6, 7:
		p.sum += 2 * after
	case 8:
		if p.sum > 0 {
			p.took += p.sum
			p.bytes += int64(bytes) * 27 // sum is six times the time of four and a half blocks
		}
	}
}

// take is the pace in paceUnit, 0 if no pulse has ended, and begins anew.
func (p *pulsePace) take() uint32 {
	if p.took == 0 {
		return 0
	}
	pace := perSecond(uint64(p.bytes), p.took)
	p.bytes, p.took = 0, 0
	return pace
}

// pulses is the root's question about a member, and its answer.
type pulses struct {
	suspect int       // 0 for none
	until   time.Time // when it is cleared
	proofs  int       // rounds in a row
	period  time.Duration
	seq     uint64    // the message that is sent in pulses
	limit   uint64    // blocks of it that may be sent
	next    time.Time // when the next pulse may go; zero before the last one was sent
	rest    time.Time // no pulses before
	cleared float64   // the group's pace when the last one was asked about
}

// ask has the root send in pulses to learn of a suspect, if it does not know yet.
func (c *core) ask(suspect int) {
	p := &c.pulses
	pace := median(known(c.freshFigures(), suspect, func(f *figures) float64 { return float64(f.rate) }))
	again := c.now.After(p.rest) || pace*c.limits.slowFactor < p.cleared
	if p.suspect != 0 || pace == 0 || !again {
		return
	}
	period := c.pulsePeriod(pace)
	*p = pulses{suspect: suspect, period: period, until: c.now.Add(max(pulseRounds*c.limits.slowTime/paceRounds, pulseLeast*period)), cleared: pace}
}

// answered ends the pulses, for so many times SlowTime.
func (c *core) answered(rest time.Duration) {
	for rank := range c.members {
		c.members[rank].slow.rounds = 0 // figures are of pulses
	}
	c.pulses = pulses{rest: c.now.Add(rest * c.limits.slowTime), cleared: c.pulses.cleared}
}

// pulsePeriod is the time of a pulse with its pause, where blocks come at a pace in paceUnit.
func (c *core) pulsePeriod(pace float64) time.Duration {
	seconds := pulseBlocks * float64(c.block) / (pace * paceUnit) * pulseSlack
	return time.Duration(seconds * float64(time.Second))
}

// pulsesOver ends pulses that have proven nothing in time.
func (c *core) pulsesOver() {
	if c.pulses.suspect != 0 && c.now.After(c.pulses.until) {
		c.answered(pulseRest)
	}
}

// inPulse reports whether the root may send the block at a position of a message now; if not, the shell is asked to
// call advance when it may.
func (c *core) inPulse(seq, pos uint64) bool {
	p := &c.pulses
	if p.suspect == 0 {
		return true
	}
	if p.seq != seq {
		p.seq, p.limit, p.next = seq, (pos/pulseBlocks+1)*pulseBlocks, time.Time{}
	}
	switch {
	case pos < p.limit:
		return true
	case p.next.IsZero():
		p.next = c.now.Add(p.period)
	case !c.now.Before(p.next):
		p.limit += pulseBlocks
		p.next = c.now.Add(p.period)
		return true
	}
	c.wakeBy(p.next)
	return false
}

// proof is how much quicker than a straggler others are in pulses. A pulse does not show all of it.
func (c *core) proof() float64 { return min(1+(c.limits.slowFactor-1)/pulseShare, pulseMost) }

// proven reports whether pulses have shown that the suspect is slow, when its figures of a round have come.
func (c *core) proven(s *Straggler) bool {
	p := &c.pulses
	all := c.freshFigures()
	own, others := inPulses(all, p.suspect)
	if own == 0 {
		return false // no pulse ended
	}
	if own > p.cleared*c.limits.slowFactor {
		c.answered(pulseRest) // it was slow, and is no more
		return false
	}
	p.period = min(p.period, c.pulsePeriod(own))
	if all[p.suspect].elsewhere || own*c.proof() >= others {
		p.proofs = 0
		return false
	}
	s.Pulse, s.OthersPulse = own*paceUnit, others*paceUnit
	p.proofs++
	return p.proofs >= pulseProofs
}

// inPulses is a member's pace in pulses and the one that a third of the others had or exceeded, in paceUnit; 0 if it
// is not known.
func inPulses(all []figures, rank int) (own, others float64) {
	list := known(all, rank, func(f *figures) float64 { return float64(f.pulse) })
	if len(list) == 0 {
		return 0, 0
	}
	return float64(all[rank].pulse), list[len(list)-1-(len(list)-1)/pulseThird]
}

// median is that of an ordered list, the lower one of two, and 0 of an empty one.
func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	return list[(len(list)-1)/2]
}
