package rdmc

import (
	"math"
	"time"
)

// Constants of the measurement.
const (
	paceRounds  = 4 // in GroupConfig.SlowTime; a straggler is one in each
	paceSamples = 4 // blocks without which a round says nothing
	paceFresh   = 2 // rounds for which a peer's word is good
	excuseTime  = 150 * time.Millisecond
	paceUnit    = 1024 // of paces in messages, in bytes a second
)

// pace measures how fast a member's peers take its blocks. It is a part of the core: values in, values out.
type pace struct {
	at    time.Time
	lanes []lanePace
	waits int // lane whose credit the next send waits for, or -1
	round int // the present place in sums
	since time.Time
	void  bool   // this member was not running for a part of the round
	got   uint64 // bytes of blocks, in all
	pulse pulsePace
}

// lanePace is a peer's part.
type lanePace struct {
	flight int
	excuse time.Time // until when it is excused
	run    paceRun   // since told was made
	sums   [paceRounds]paceSum
	told   laneFigures // what the peer is told of its part, of the last round that had enough blocks
	age    int         // rounds since
	heard  laneFigures // what the peer told of this member
	fresh  int         // rounds for which that is good
}

// paceRun is blocks and the time that was spent on them: with one or more on its way, or waited for.
type paceRun struct {
	bytes  int64
	blocks uint32
	took   time.Duration
}

type paceSum struct {
	bytes                     int64
	sending, waiting, excused time.Duration
}

func (r *paceRun) perSecond() float64 { return float64(r.bytes) / max(r.took, 1).Seconds() }

func (p *pace) open(lanes int) {
	p.lanes, p.waits = make([]lanePace, lanes), -1
}

// to moves the times on.
func (p *pace) to(now time.Time) {
	passed := now.Sub(p.at)
	p.at = now
	if passed <= 0 || passed > time.Hour {
		return // the first time
	}
	for i := range p.lanes {
		l := &p.lanes[i]
		s := &l.sums[p.round]
		switch {
		case l.flight > 0:
			s.sending += passed
			l.run.took += passed
		case i == p.waits:
			excused := min(max(passed-now.Sub(l.excuse), 0), passed)
			s.excused += excused
			s.waiting += passed - excused
			l.run.took += passed - excused
		}
	}
}

// post says that a block is on its way.
func (p *pace) post(now time.Time, lane int) {
	p.to(now)
	p.lanes[lane].flight++
}

// done says that it is there.
func (p *pace) done(now time.Time, lane, bytes int) {
	p.to(now)
	l := &p.lanes[lane]
	l.flight--
	l.sums[p.round].bytes += int64(bytes)
	l.run.bytes += int64(bytes)
	l.run.blocks++
}

// wait says whose credit the next send waits for, -1 if for nobody's.
func (p *pace) wait(now time.Time, lane int) {
	if p.waits != lane {
		p.to(now)
		p.waits = lane
	}
}

// excused says that the peer has just told that it is held up itself, or that it is not.
func (p *pace) excused(now time.Time, lane int, held bool) {
	p.to(now)
	if held {
		p.lanes[lane].excuse = now.Add(excuseTime)
	} else {
		p.lanes[lane].excuse = time.Time{}
	}
}

// over reports whether a round has lasted so long.
func (p *pace) over(now time.Time, round time.Duration) bool {
	if p.since.IsZero() {
		p.since = now
	}
	return now.Sub(p.since) >= round
}

// next begins a round.
func (p *pace) next(now time.Time) {
	p.round = (p.round + 1) % paceRounds
	p.since, p.void = now, false
	for i := range p.lanes {
		l := &p.lanes[i]
		l.sums[p.round] = paceSum{}
		l.fresh = max(l.fresh-1, 0)
	}
}

// tell makes what the lane's peer is told at the end of a round that took so long, and reports whether there is
// anything.
func (l *lanePace) tell(s paceSum, over time.Duration) bool {
	if l.run.blocks >= paceSamples {
		l.told.pace, l.age = uint32(min(l.run.perSecond()/paceUnit, math.MaxUint32)), 0
		l.run = paceRun{}
	} else if l.age++; l.age > paceRounds {
		l.told, l.run = laneFigures{}, paceRun{}
	}
	l.told.busy, l.told.wait = percent(s.sending+s.waiting, over), percent(s.waiting, over)
	return l.told.pace > 0
}

func percent(part, of time.Duration) uint8 {
	if of <= 0 {
		return 0
	}
	return uint8(min(100*part/of, 100))
}
