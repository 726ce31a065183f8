package rdmc

import (
	"fmt"
	"slices"
	"time"
)

// SlowPolicy says what happens when a member is found to be a straggler.
type SlowPolicy uint8

// The policies.
const (
	// SlowIgnore does nothing; Group.Pace and Group.Stragglers tell all the same.
	SlowIgnore SlowPolicy = iota
	// SlowReport calls GroupConfig.OnSlow.
	SlowReport
	// SlowEject calls it too, and fails the group with ReasonSlow and the straggler as the suspect, for the caller to go on without it.
	SlowEject
)

// Defaults of the policy: a loaded machine is no straggler.
const (
	DefaultSlowFactor = 8
	DefaultSlowTime   = 10 * time.Second
)

// Constants of the measurement.
const (
	paceRounds   = 4 // in GroupConfig.SlowTime; a straggler is one in each
	paceEvidence = 8 // part of a round that must have been spent on a peer to judge it
	excuseTime   = 150 * time.Millisecond
)

// PeerPace is what a member measured of one that it sends blocks to, over the last GroupConfig.SlowTime.
type PeerPace struct {
	Rank  int
	Bytes uint64 // of blocks, with their trailers, that it took
	// Sending is the time with a block on its way there. While blocks were on their way to several peers it counts in parts, as they
	// shared the link.
	Sending time.Duration
	// Waiting is the time in which the next block was ready and the peer had no room for it.
	Waiting time.Duration
	// Excused is the time of such waiting for which the peer had said that it was held up by others itself.
	Excused time.Duration
}

// PerSecond is the pace, in bytes a second, by the time spent on the peer and not excused. It is 0 if there was none.
func (p PeerPace) PerSecond() float64 {
	if took := p.Sending + p.Waiting; took > 0 {
		return float64(p.Bytes) / took.Seconds()
	}
	return 0
}

// Straggler is a peer that is much slower than the others that a member sends to.
type Straggler struct {
	PeerPace
	// Others is the median pace of the others, in bytes a second; the lower one of two.
	Others float64
	// Over is how long it was measured.
	Over time.Duration
}

// String is the evidence in a sentence.
func (s Straggler) String() string {
	why := "its link or its processor is slow"
	if s.Waiting > s.Sending {
		why = "it makes room late"
	}
	return fmt.Sprintf("member %d takes %.3g MB a second, the others %.3g, over %v (blocks on their way for %v, waited for room for %v): %s",
		s.Rank, s.PerSecond()/1e6, s.Others/1e6, s.Over.Round(time.Millisecond), s.Sending.Round(time.Millisecond), s.Waiting.Round(time.Millisecond), why)
}

// SlowError is the cause of a GroupError with ReasonSlow, at the member that measured it.
type SlowError struct{ Straggler Straggler }

// Error is the evidence.
func (e *SlowError) Error() string { return "rdmc: " + e.Straggler.String() }

// pace measures how fast a member's peers take its blocks. It is a part of the core: values in, values out.
type pace struct {
	at     time.Time
	lanes  []lanePace
	flying int // lanes with a send outstanding
	waits  int // lane whose credit the next send waits for, or -1
	round  int // the present place in sums
	since  time.Time
	full   bool // all of sums were used
}

// lanePace is a peer's part.
type lanePace struct {
	flight int
	bytes  int64     // outstanding
	excuse time.Time // until when it is excused
	sums   [paceRounds]paceSum
	slow   int // rounds in which it was slow, in a row
}

type paceSum struct {
	bytes                     int64
	sending, waiting, excused time.Duration
}

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
		if l.flight > 0 {
			s.sending += passed / time.Duration(p.flying)
		}
		if i == p.waits {
			excused := min(max(passed-now.Sub(l.excuse), 0), passed)
			s.excused += excused
			s.waiting += passed - excused
		}
	}
}

// post says that a block is on its way.
func (p *pace) post(now time.Time, lane, bytes int) {
	p.to(now)
	l := &p.lanes[lane]
	if l.flight == 0 {
		p.flying++
	}
	l.flight++
	l.bytes += int64(bytes)
}

// done says that it is there.
func (p *pace) done(now time.Time, lane, bytes int) {
	p.to(now)
	l := &p.lanes[lane]
	if l.flight--; l.flight == 0 {
		p.flying--
	}
	l.bytes -= int64(bytes)
	l.sums[p.round].bytes += int64(bytes)
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

// turn ends a round after so much time, and reports whether it did.
func (p *pace) turn(now time.Time, round time.Duration) bool {
	p.to(now)
	if p.since.IsZero() {
		p.since = now
	}
	return now.Sub(p.since) >= round
}

// next begins a round.
func (p *pace) next(now time.Time) {
	p.round = (p.round + 1) % paceRounds
	p.full = p.full || p.round == 0
	p.since = now
	for i := range p.lanes {
		p.lanes[i].sums[p.round] = paceSum{}
	}
}

// of is a sum as figures. What is on its way counts as if it were there, so that nobody looks slower than he is.
func (l *lanePace) of(rank int, s paceSum) PeerPace {
	return PeerPace{Rank: rank, Bytes: uint64(s.bytes + l.bytes), Sending: s.sending, Waiting: s.waiting, Excused: s.excused}
}

// total is the sum of all rounds.
func (l *lanePace) total() (t paceSum) {
	for _, s := range l.sums {
		t.bytes += s.bytes
		t.sending += s.sending
		t.waiting += s.waiting
		t.excused += s.excused
	}
	return t
}

// stragglers are those of the figures, measured over a time, that are slower than the median of the others by the factor. The others go
// by figures that may be over more time, as there is little to send to them while a straggler holds all up. One that there was
// hardly anything to send to is none: nobody lost time with it.
func stragglers(figures, all []PeerPace, over time.Duration, factor float64) (found []Straggler) {
	for _, p := range figures {
		var others []float64
		for _, o := range all {
			if o.Rank != p.Rank && o.Bytes > 0 && o.PerSecond() > 0 {
				others = append(others, o.PerSecond())
			}
		}
		if len(others) == 0 || (p.Sending+p.Waiting)*paceEvidence < over {
			continue
		}
		slices.Sort(others)
		median := others[(len(others)-1)/2]
		if p.PerSecond()*factor < median {
			found = append(found, Straggler{PeerPace: p, Others: median, Over: over})
		}
	}
	return found
}
