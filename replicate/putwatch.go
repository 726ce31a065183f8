package replicate

import (
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/slow"
)

// putWatch is slow.Puts for several goroutines: connections tell how the bytes go while a poll looks at them.
type putWatch struct {
	mu   sync.Mutex
	puts *slow.Puts
}

func newPutWatch(now time.Time) *putWatch { return &putWatch{puts: slow.NewPuts(now)} }

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

func (w *putWatch) underWay(open map[meta.NodeID]bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.puts.UnderWay(open)
}

// slow tells why a member is slow, or "". alone is for how long it was the only one that puts were under way to.
func (w *putWatch) slow(now time.Time, n meta.NodeID, alone time.Duration, part float64, floor time.Duration) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if text := w.puts.Slow(n, alone, part, floor); text != "" {
		return text
	}
	return w.puts.Crowded(now, n, part, floor)
}

// aloneWatch is slow.Alone for all puts of a node.
type aloneWatch struct {
	mu    sync.Mutex
	alone slow.Alone
}

func (a *aloneWatch) begin(n meta.NodeID, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.alone.Begin(n, now)
}

func (a *aloneWatch) end(n meta.NodeID, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.alone.End(n, now)
}

// of is for how long a member was the only one, in all.
func (a *aloneWatch) of(n meta.NodeID, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.alone.For(n, now)
}
