package share

import (
	"time"

	"github.com/rdmcfs/rdmcfs/internal/units"
)

// A group that others wait for must be worth the wait. A group whose neighbour is slow or has stopped takes just as
// long when others stand back, and they would leave the link idle for nothing. So the arbiter compares two paces of all
// completions: the pace while some group waits with nothing outstanding, and the pace while none does.

// progress moves the meters on.
func (a *Arbiter) progress(now time.Time) {
	if a.at.IsZero() {
		a.at = now
	}
	passed := now.Sub(a.at)
	if passed <= 0 {
		return
	}
	a.at = now
	for _, s := range a.all {
		if s.flight == 0 {
			continue
		}
		if s.lap += passed; a.starving > 0 {
			s.lapHeld += passed
			s.heldFor += passed
		}
	}
	switch {
	case a.flying == 0:
	case a.starving > 0:
		a.held.time += passed
	default:
		if a.free.time += passed; a.free.time > forgetAfter {
			a.free.time /= 2
			a.free.bytes /= 2
		}
	}
}

// count adds a completion to the meters, by the times in which it was under way.
func (a *Arbiter) count(s *Share, bytes int64) {
	held := int64(0)
	if s.lap > 0 {
		held = int64(float64(bytes) * float64(s.lapHeld) / float64(s.lap))
	}
	s.lap, s.lapHeld = 0, 0
	a.free.bytes += bytes - held
	a.held.bytes += held
}

// grain is what one send of each busy group is, in bytes: figures over less than some of it say nothing.
func (a *Arbiter) grain() (bytes float64) {
	for _, s := range a.all {
		if s.isBusy() {
			bytes += float64(s.largest)
		}
	}
	return bytes
}

// pace is what all complete in a second while nobody starves, or 0 if it is not known.
func (a *Arbiter) pace() float64 {
	if a.free.time < freeTime || float64(a.free.bytes) < sampleGrains/2*a.grain() {
		return 0
	}
	return units.PerSecond(a.free.bytes, a.free.time)
}

// judge looks at the groups that are under way while others starve, once there is enough to draw a conclusion from.
func (a *Arbiter) judge(now time.Time) {
	pace := a.pace()
	switch {
	case a.starving == 0 || a.held.time < sampleTime || pace == 0 && a.held.time < guessAfter:
		return
	case pace > 0 && a.held.time.Seconds()*pace < sampleGrains*a.grain():
		return
	}
	bad := worthPart*units.PerSecond(a.held.bytes, a.held.time) < pace
	for _, s := range a.all {
		switch {
		case s.flight == 0 || s.slow || 2*s.heldFor < a.held.time:
		case pace == 0:
			s.findSlow(now, 0)
			s.backoff, s.until = 0, now // until the next tick, to learn the pace
		case bad && !s.doubted && s.backoff == 0:
			s.doubted = true // all may have been held up by something else: once more
		case bad:
			s.findSlow(now, a.held.time)
		default:
			s.doubted, s.backoff = false, 0
		}
		s.heldFor = 0
	}
	a.held = meter{}
}

// findSlow makes nobody wait for the group for a while, after others have waited for so long.
func (s *Share) findSlow(now time.Time, waited time.Duration) {
	s.backoff = max(min(max(2*s.backoff, retryAfter), retryMax), 16*waited)
	s.slow, s.moved, s.doubted = true, false, false
	s.until = now.Add(s.backoff)
}

// Tick finds the groups whose neighbour has stopped, and gives the groups that were slow another chance. It is called
// every now and then.
func (a *Arbiter) Tick(now time.Time) {
	if now.Sub(a.ticked) >= TickInterval {
		a.ticks++
		a.ticked = now
	}
	if a.busy < 2 {
		return
	}
	a.progress(now)
	patience := a.patience()
	for _, s := range a.all {
		switch {
		case s.slow && now.After(s.until) && (s.moved || s.flight == 0):
			s.slow = false
			s.tag = a.lowest(s, s.tag)
		case !s.slow && s.flight > 0 && a.starving > 0 && s.lapHeld >= patience:
			s.findSlow(now, s.lapHeld)
			s.heldFor = 0
		}
	}
	a.look()
}

// patience is for how long nothing of a group may complete while others starve.
func (a *Arbiter) patience() time.Duration {
	pace := a.pace()
	if pace == 0 {
		return unknownAfter
	}
	return max(stoppedAfter, time.Duration(sampleGrains*a.grain()/pace*float64(time.Second)))
}
