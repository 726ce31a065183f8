package slow

import (
	"fmt"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/units"
	"github.com/rdmcfs/rdmcfs/meta/id"
)

// Puts is how the bytes of a small content go to its members, and when their votes came. Each byte counts once.
type Puts struct {
	bytes int64 // of the content, for each member
	began time.Time
	beat  bool // bytes went since Progressed was last called
	lanes map[id.Node]*putLane
	votes []time.Duration // since it began, in order
}

// putLane is how the bytes for one member go, with what is queued ahead of them.
type putLane struct {
	going    bool  // they have had room in the queue
	left     int64 // the least that was left so far; below 0: they wait for room
	now      int64 // what is left: more than the least while they are sent again; below 0: they wait for room
	looked   bool  // Slow has looked at them, as they go now: most was left then, and puts had been confined for so long
	most     int64
	confined time.Duration
}

// NewPuts begins to watch the puts of a content of so many bytes.
func NewPuts(now time.Time, bytes int64) *Puts {
	return &Puts{bytes: bytes, began: now, lanes: make(map[id.Node]*putLane)}
}

// Began is when the puts began.
func (w *Puts) Began() time.Time { return w.began }

// Moved notes that bytes for a member went, and how many are left; below 0: all, they wait for room. Bytes that are
// sent again count when they come to where the first had come.
func (w *Puts) Moved(n id.Node, left int64) {
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
func (w *Puts) UnderWay(open map[id.Node]bool) bool {
	for n, l := range w.lanes {
		if open[n] && l.now != 0 {
			return true
		}
	}
	return false
}

// Arrived reports whether a member's machine has acknowledged all bytes for it.
func (w *Puts) Arrived(n id.Node) bool {
	l := w.lanes[n]
	return l != nil && l.going && l.now == 0
}

// Slow says why a member is slow: the rest of its bytes takes part times as long, at its pace, as the median of the
// votes took, and longer than floor. open are the members whose votes are missing, this one among them. confined is for
// how long puts were under way to no others; only that time counts, and all bytes count, also bytes that are sent
// again. If several open members share this node's link, they must together be part times as slow as what went to the
// members that voted. A pace is measured for as long as that median, and for a quarter of floor: a connection that was
// crowded out a moment ago takes a while to find its pace. Slow returns "" if the member is not slow, or if that is not
// known.
func (w *Puts) Slow(
	n id.Node, open []id.Node, confined time.Duration, part float64, floor time.Duration,
) string {
	l := w.lanes[n]
	if l == nil || l.now <= 0 || len(w.votes) == 0 {
		return ""
	}
	l.look(confined)
	spent, others := confined-l.confined, w.votes[(len(w.votes)-1)/2]
	if spent < max(floor/4, others) || l.most == l.now {
		return ""
	}
	rest := time.Duration(float64(spent) * float64(l.now) / float64(l.most-l.now))
	if rest <= max(floor, time.Duration(part*float64(others))) {
		return ""
	}
	if len(open) > 1 && w.together(open, confined)*part*others.Seconds() >= w.voted(others) {
		return ""
	}
	return fmt.Sprintf("it takes %v more at its pace, the others took %v", rest.Round(100*time.Millisecond),
		others.Round(100*time.Millisecond))
}

// look begins to measure a lane, if it has not begun.
func (l *putLane) look(confined time.Duration) {
	if !l.looked || confined < l.confined {
		l.looked, l.confined, l.most = true, confined, l.now
	}
}

// together is what goes to these members, in bytes a second.
func (w *Puts) together(open []id.Node, confined time.Duration) (pace float64) {
	for _, n := range open {
		if l := w.lanes[n]; l != nil && l.looked && l.now >= 0 {
			pace += units.PerSecond(l.most-l.now, confined-l.confined)
		}
	}
	return pace
}

// voted is how many bytes went at least to the members that voted within some time, which a clock may show as nothing.
func (w *Puts) voted(within time.Duration) (bytes float64) {
	for _, v := range w.votes {
		if v <= within {
			bytes += float64(w.bytes)
		}
	}
	return bytes
}

// Crowded says why a member is slow whose bytes still wait for room in a full queue, where only the bytes before them
// move: they have waited part times as long as the median of the votes took, and longer than floor. It returns "" if
// the member is not slow.
func (w *Puts) Crowded(now time.Time, n id.Node, part float64, floor time.Duration) string {
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

// Sharing knows which members puts of this node are under way to: they share its link, whose parts may be very unequal.
type Sharing struct {
	to     map[id.Node]int
	clocks map[*Clock]bool
}

// Clock counts for how long puts were under way to some members and to no others.
type Clock struct {
	open  []id.Node
	since time.Time // counted from then on
	spent time.Duration
}

// Begin counts a put; the caller calls End after it.
func (p *Sharing) Begin(n id.Node, now time.Time) {
	if p.to == nil {
		p.to = make(map[id.Node]int)
	}
	if p.to[n] == 0 {
		p.change(now)
	}
	p.to[n]++
}

// End counts the end of a put.
func (p *Sharing) End(n id.Node, now time.Time) {
	if p.to[n] == 1 {
		p.change(now)
		delete(p.to, n)
		return
	}
	p.to[n]--
}

// change makes the clocks count the time of the set of members that changes now.
func (p *Sharing) change(now time.Time) {
	for c := range p.clocks {
		c.spent, c.since = p.read(c, now), now
	}
}

// read is what a clock shows.
func (p *Sharing) read(c *Clock, now time.Time) time.Duration {
	if len(p.to) == 0 {
		return c.spent
	}
	for n := range p.to {
		if !slices.Contains(c.open, n) {
			return c.spent
		}
	}
	return c.spent + now.Sub(c.since)
}

// Confined is for how long puts were under way to some of these members and to no others, since the clock was first
// read for them. The caller calls Stop at the end.
func (p *Sharing) Confined(c *Clock, open []id.Node, now time.Time) time.Duration {
	if !p.clocks[c] || !slices.Equal(c.open, open) {
		*c = Clock{open: slices.Clone(open), since: now}
		if p.clocks == nil {
			p.clocks = make(map[*Clock]bool)
		}
		p.clocks[c] = true
	}
	return p.read(c, now)
}

// Stop forgets a clock.
func (p *Sharing) Stop(c *Clock) { delete(p.clocks, c) }
