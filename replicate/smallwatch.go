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

// slow are the members whose bytes take part times as long, at their pace so far, as the median of the votes took, and longer than floor.
func (w *smallWatch) slow(now time.Time, open map[meta.NodeID]bool, part float64, floor time.Duration) map[meta.NodeID]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	spent := now.Sub(w.began)
	if len(w.votes) == 0 || spent < floor/4 {
		return nil
	}
	others := w.votes[(len(w.votes)-1)/2]
	limit := max(floor, time.Duration(part*float64(others)))
	out := make(map[meta.NodeID]string)
	for n, l := range w.lanes {
		if !open[n] || l.left <= 0 || l.most == l.left {
			continue
		}
		rest := time.Duration(float64(now.Sub(l.since)) * float64(l.left) / float64(l.most-l.left))
		if whole := spent + rest; whole > limit {
			out[n] = fmt.Sprintf("it takes %v at its pace, the others took %v", whole.Round(100*time.Millisecond), others.Round(100*time.Millisecond))
		}
	}
	return out
}
