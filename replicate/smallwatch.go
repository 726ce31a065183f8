package replicate

import (
	"fmt"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// smallWatch is how the bytes of a small content go to its members, and when their votes came. Each byte counts once.
type smallWatch struct {
	clock Clock
	began time.Time

	mu    sync.Mutex
	beat  bool // bytes went since progressed was last called
	lanes map[meta.NodeID]*smallLane
	votes []time.Duration // since it began, in order
}

// smallLane is how the bytes for one member go, with what is queued ahead of them, since they were first looked at.
type smallLane struct {
	since      time.Time // zero as long as they wait for room in the queue
	most, left int64
}

func newSmallWatch(clock Clock) *smallWatch {
	return &smallWatch{clock: clock, began: clock.Now(), lanes: make(map[meta.NodeID]*smallLane)}
}

// moved notes that bytes for a member went, and how many are left; below 0: all, they wait for room.
func (w *smallWatch) moved(n meta.NodeID, left int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lanes[n]
	if l == nil {
		l = &smallLane{}
		w.lanes[n] = l
	}
	if l.since.IsZero() && left >= 0 {
		l.since, l.most = w.clock.Now(), left
	}
	l.left, w.beat = left, true
}

// voted notes a vote.
func (w *smallWatch) voted(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.votes = append(w.votes, now.Sub(w.began))
}

// progressed reports whether bytes went since it was last asked.
func (w *smallWatch) progressed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	beat := w.beat
	w.beat = false
	return beat
}

// underWay reports whether bytes for one of these members are on their way.
func (w *smallWatch) underWay(open map[meta.NodeID]bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, l := range w.lanes {
		if open[n] && l.left != 0 {
			return true
		}
	}
	return false
}

// slow tells why a member is slow that nobody shares this node's link with since a time: the rest of its bytes takes part times
// as long, at its pace since then, as the median of the votes took, and longer than floor. "" if it is not slow, or if that is not known.
func (w *smallWatch) slow(now time.Time, alone meta.NodeID, since time.Time, part float64, floor time.Duration) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lanes[alone]
	if l == nil || l.left <= 0 || len(w.votes) == 0 {
		return ""
	}
	if l.since.Before(since) { // what went before went beside others
		l.since, l.most = now, l.left
	}
	spent := now.Sub(l.since)
	if spent < floor/4 || l.most == l.left {
		return ""
	}
	others := w.votes[(len(w.votes)-1)/2]
	rest := time.Duration(float64(spent) * float64(l.left) / float64(l.most-l.left))
	if rest <= max(floor, time.Duration(part*float64(others))) {
		return ""
	}
	return fmt.Sprintf("it takes %v more at its pace, the others took %v", rest.Round(100*time.Millisecond), others.Round(100*time.Millisecond))
}

// crowded tells why a member is slow whose bytes still wait for room in a full queue, of which only what went before them moves: they
// have waited part times as long as the median of the votes took, and longer than floor. "" if it is not slow.
func (w *smallWatch) crowded(now time.Time, n meta.NodeID, part float64, floor time.Duration) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lanes[n]
	if l == nil || l.left >= 0 || len(w.votes) == 0 {
		return ""
	}
	waited, others := now.Sub(w.began), w.votes[(len(w.votes)-1)/2]
	if waited <= max(floor, time.Duration(part*float64(others))) {
		return ""
	}
	return fmt.Sprintf("its queue has been full for %v, the others took %v", waited.Round(100*time.Millisecond), others.Round(100*time.Millisecond))
}

// putting counts the members that puts of this node are under way to: with several they share its link, whose parts may be very unequal.
type putting struct {
	mu    sync.Mutex
	to    map[meta.NodeID]int
	since time.Time // when the set of members last changed
}

// begin counts a put; the caller calls end behind it.
func (p *putting) begin(n meta.NodeID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to == nil {
		p.to = make(map[meta.NodeID]int)
	}
	if p.to[n]++; p.to[n] == 1 {
		p.since = now
	}
}

func (p *putting) end(n meta.NodeID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to[n]--; p.to[n] == 0 {
		delete(p.to, n)
		p.since = now
	}
}

// alone is the one member that puts are under way to, and since when; 0 if there are several or none.
func (p *putting) alone() (meta.NodeID, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := range p.to {
		if len(p.to) == 1 {
			return n, p.since
		}
	}
	return 0, time.Time{}
}
