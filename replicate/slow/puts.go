package slow

import (
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// Puts is how the bytes of a small content go to its members, and when their votes came. Each byte counts once.
type Puts struct {
	began time.Time
	beat  bool // bytes went since Progressed was last called
	lanes map[meta.NodeID]*putLane
	votes []time.Duration // since it began, in order
}

// putLane is how the bytes for one member go, with what is queued ahead of them.
type putLane struct {
	going  bool  // they have had room in the queue
	left   int64 // the least that was left so far; below 0: they wait for room
	now    int64 // what is left: more than the least while they are sent again; below 0: they wait for room
	looked bool  // Slow has looked at them, as they go now: most was left then, the member had been alone for so long
	most   int64
	alone  time.Duration
}

// NewPuts begins to watch the puts of a content.
func NewPuts(now time.Time) *Puts {
	return &Puts{began: now, lanes: make(map[meta.NodeID]*putLane)}
}

// Began is when the puts began.
func (w *Puts) Began() time.Time { return w.began }

// Moved notes that bytes for a member went, and how many are left; below 0: all, they wait for room. Bytes that are
// sent again count when they come to where the first had come.
func (w *Puts) Moved(n meta.NodeID, left int64) {
	l := w.lanes[n]
	if l == nil {
		l = &putLane{}
		w.lanes[n] = l
	}
	if l.going && (left < 0 || left > l.now) {
		l.looked = false // they are sent again, over another connection: its pace is not known yet
	}
	l.now = left
	if l.going && (left < 0 || left >= l.left) {
		return
	}
	l.going = l.going || left >= 0
	l.left, w.beat = left, true
}

// Voted notes a vote.
func (w *Puts) Voted(now time.Time) {
	w.votes = append(w.votes, now.Sub(w.began))
}

// Progressed reports whether bytes went since it was last asked.
func (w *Puts) Progressed() bool {
	beat := w.beat
	w.beat = false
	return beat
}

// UnderWay reports whether bytes for one of these members are on their way.
func (w *Puts) UnderWay(open map[meta.NodeID]bool) bool {
	for n, l := range w.lanes {
		if open[n] && l.now != 0 {
			return true
		}
	}
	return false
}

// Slow tells why a member is slow: the rest of its bytes takes part times as long, at its pace, as the median of the
// votes took, and longer than floor. alone is for how long puts were under way to no other member; only that time
// counts, and all bytes, also those that are sent again. Its pace is measured for as long as that median, and for a
// quarter of floor: a connection that was crowded out a moment ago takes a while to find its pace. "" if it is not
// slow, or if that is not known.
func (w *Puts) Slow(n meta.NodeID, alone time.Duration, part float64, floor time.Duration) string {
	l := w.lanes[n]
	if l == nil || l.now <= 0 || len(w.votes) == 0 {
		return ""
	}
	if !l.looked {
		l.looked, l.alone, l.most = true, alone, l.now
	}
	spent, others := alone-l.alone, w.votes[(len(w.votes)-1)/2]
	if spent < max(floor/4, others) || l.most == l.now {
		return ""
	}
	rest := time.Duration(float64(spent) * float64(l.now) / float64(l.most-l.now))
	if rest <= max(floor, time.Duration(part*float64(others))) {
		return ""
	}
	return fmt.Sprintf("it takes %v more at its pace, the others took %v", rest.Round(100*time.Millisecond),
		others.Round(100*time.Millisecond))
}

// Crowded tells why a member is slow whose bytes still wait for room in a full queue, of which only what went before
// them moves: they have waited part times as long as the median of the votes took, and longer than floor. "" if it is
// not slow.
func (w *Puts) Crowded(now time.Time, n meta.NodeID, part float64, floor time.Duration) string {
	l := w.lanes[n]
	if l == nil || l.left >= 0 || len(w.votes) == 0 {
		return ""
	}
	waited, others := now.Sub(w.began), w.votes[(len(w.votes)-1)/2]
	if waited <= max(floor, time.Duration(part*float64(others))) {
		return ""
	}
	return fmt.Sprintf("its queue has been full for %v, the others took %v", waited.Round(100*time.Millisecond),
		others.Round(100*time.Millisecond))
}

// Alone counts the members that puts of this node are under way to: with several they share its link, whose parts
// may be very unequal.
type Alone struct {
	to    map[meta.NodeID]int
	since time.Time                     // when the set of members last changed
	alone map[meta.NodeID]time.Duration // for how long a member was the only one, until then
}

// Begin counts a put; the caller calls End behind it.
func (p *Alone) Begin(n meta.NodeID, now time.Time) {
	if p.to == nil {
		p.to, p.alone = make(map[meta.NodeID]int), make(map[meta.NodeID]time.Duration)
	}
	if p.to[n] == 0 {
		p.change(now)
	}
	p.to[n]++
}

// End counts the end of a put.
func (p *Alone) End(n meta.NodeID, now time.Time) {
	if p.to[n] == 1 {
		p.change(now)
		delete(p.to, n)
		return
	}
	p.to[n]--
}

// change counts the time of the set of members that changes now.
func (p *Alone) change(now time.Time) {
	if len(p.to) == 1 {
		for n := range p.to {
			p.alone[n] += now.Sub(p.since)
		}
	}
	p.since = now
}

// For is for how long, in all, a member was the only one that puts were under way to. Other puts may come and go
// meanwhile.
func (p *Alone) For(n meta.NodeID, now time.Time) time.Duration {
	if len(p.to) == 1 && p.to[n] > 0 {
		return p.alone[n] + now.Sub(p.since)
	}
	return p.alone[n]
}
