package replicate

import (
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/slow"
)

// putWatch is slow.Puts for several goroutines: connections report how the bytes go while a poll looks at them.
type putWatch struct {
	mu   sync.Mutex
	puts *slow.Puts
}

func newPutWatch(now time.Time, bytes int) *putWatch {
	return &putWatch{puts: slow.NewPuts(now, int64(bytes))}
}

func (w *putWatch) began() time.Time { return w.puts.Began() } // it does not change

func (w *putWatch) moved(n meta.NodeID, left int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.puts.Moved(n, left)
}

func (w *putWatch) voted(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.puts.Voted(now)
}

func (w *putWatch) progressed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.puts.Progressed()
}

func (w *putWatch) arrived(n meta.NodeID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.puts.Arrived(n)
}

func (w *putWatch) underWay(open map[meta.NodeID]bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.puts.UnderWay(open)
}

// slow says why a member is slow, or "". open are the members whose votes are missing, and confined is for how long
// puts were under way to no others.
func (w *putWatch) slow(now time.Time, n meta.NodeID, open []meta.NodeID, confined time.Duration, t *Tuning) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if text := w.puts.Slow(n, open, confined, t.SlowPart, 2*t.Silent); text != "" {
		return text
	}
	return w.puts.Crowded(now, n, t.SlowPart, 2*t.Silent)
}

// sharingWatch is slow.Sharing for all puts of a node.
type sharingWatch struct {
	mu      sync.Mutex
	sharing slow.Sharing
}

func (a *sharingWatch) begin(n meta.NodeID, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sharing.Begin(n, now)
}

func (a *sharingWatch) end(n meta.NodeID, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sharing.End(n, now)
}

// confined is what a clock shows: for how long puts were under way to some of these members and to no others.
func (a *sharingWatch) confined(c *slow.Clock, open []meta.NodeID, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sharing.Confined(c, open, now)
}

func (a *sharingWatch) stop(c *slow.Clock) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sharing.Stop(c)
}
