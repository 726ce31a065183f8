package rdmc

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// CompletionMode is how an engine learns of completions (DSN paper, section 5.2.3: polling, interrupts, and the
// hybrid of both).
type CompletionMode uint8

// The ways to learn of completions.
const (
	// CompletionEvents waits for the fabric's events: no CPU while nothing happens. It is the default, see
	// docs/decisions/014.
	CompletionEvents CompletionMode = iota
	// CompletionHybrid polls until nothing has come for SpinTime, then waits.
	CompletionHybrid
	// CompletionPolling polls always, and takes a core for it as long as the engine lives.
	CompletionPolling
)

// SpinTime is how long CompletionHybrid polls after the last completion; the paper's figure.
const SpinTime = 50 * time.Millisecond

var completionModes = [...]string{CompletionEvents: "events", CompletionHybrid: "hybrid", CompletionPolling: "polling"}

// String is the name of the mode.
func (m CompletionMode) String() string {
	if int(m) >= len(completionModes) {
		return fmt.Sprintf("completion mode %d", uint8(m))
	}
	return completionModes[m]
}

// poller takes completions from a queue until its context is done.
type poller struct {
	mode  CompletionMode
	queue rdma.CompletionQueue
	now   func() time.Time
	yield func() // lets others run between two polls that found nothing
	take  func(*rdma.Completion)
}

// run hands over completions in batches. Between them it polls or waits as the mode says.
func (p *poller) run(ctx context.Context) {
	var batch [64]rdma.Completion
	var idle time.Time // since when nothing came; zero if something just did
	for ctx.Err() == nil {
		n := p.queue.Poll(batch[:])
		for i := range batch[:n] {
			p.take(&batch[i])
			batch[i] = rdma.Completion{}
		}
		if n > 0 {
			idle = time.Time{}
			continue
		}
		if p.spins(&idle) {
			p.yield()
		} else if p.queue.Wait(ctx) != nil {
			return
		}
	}
}

// spins reports whether to poll again at once.
func (p *poller) spins(idle *time.Time) bool {
	switch p.mode {
	case CompletionPolling:
		return true
	case CompletionHybrid:
		now := p.now()
		if idle.IsZero() {
			*idle = now
		}
		return now.Sub(*idle) < SpinTime
	}
	return false
}

// poll runs the core of each group on completions; it checks blocks and posts work, and runs no code of a caller's
// but Placed.Place. Where completions come as events and the fabric can, its own goroutines do that.
func (e *Engine) poll() {
	take := func(c *rdma.Completion) {
		c.QP.User().(*laneEnd).complete(c)
		e.turns.run()
	}
	if d, ok := e.cq.(rdma.Dispatcher); ok && e.mode == CompletionEvents {
		_ = d.Dispatch(e.ctx, take) // ends with the engine
		return
	}
	p := poller{mode: e.mode, queue: e.cq, now: time.Now, yield: runtime.Gosched, take: take}
	p.run(e.ctx)
}
