package replicate

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	reportBatch  = 1024                   // contents of one proposal
	reportGather = 20 * time.Millisecond  // reports wait for each other
	reportRetry  = 500 * time.Millisecond // after a proposal that was not taken
)

// reports sends the log reports on contents of this node, that it has them or has lost them, in batches, until the log
// has taken them. Reports that are lost with the process are found again by taking stock.
type reports struct {
	log    Log
	op     func(ids []meta.ContentID) meta.Op
	clock  Clock
	logger *slog.Logger
	keep   func(meta.ContentID) bool // a report for which it is false no longer holds; may be nil
	taken  func()                    // called when the log has taken a batch; may be nil

	mu   sync.Mutex
	set  map[meta.ContentID]struct{}
	wake chan struct{}
}

func newReports(cfg Config, op func([]meta.ContentID) meta.Op) *reports {
	return &reports{
		log: cfg.Log, op: op, clock: cfg.Clock, logger: cfg.Logger,
		set: make(map[meta.ContentID]struct{}), wake: make(chan struct{}, 1),
	}
}

// newHeldReports reports the contents that this node has and the log believes it lacks.
func newHeldReports(cfg Config) *reports {
	return newReports(cfg, func(ids []meta.ContentID) meta.Op {
		return &meta.Held{Node: cfg.Self().Node, Contents: ids}
	})
}

// newLostReports reports the contents that this node lacks and the log believes it has.
func newLostReports(cfg Config) *reports {
	return newReports(cfg, func(ids []meta.ContentID) meta.Op {
		return &meta.Unheld{Node: cfg.Self().Node, Contents: ids, Reason: meta.OwedLost}
	})
}

// add reports contents; it does not wait.
func (r *reports) add(ids ...meta.ContentID) {
	r.mu.Lock()
	for _, id := range ids {
		r.set[id] = struct{}{}
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// waiting reports whether a content is about to be reported to the log.
func (r *reports) waiting(id meta.ContentID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.set[id]
	return ok
}

// empty reports whether the log has taken all.
func (r *reports) empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.set) == 0
}

// next copies out up to a batch of reports, in order, and drops the reports that no longer hold.
func (r *reports) next() []meta.ContentID {
	for {
		ids := r.batch()
		n := len(ids)
		if r.keep != nil {
			var over []meta.ContentID
			ids = slices.DeleteFunc(ids, func(id meta.ContentID) bool {
				if r.keep(id) {
					return false
				}
				over = append(over, id)
				return true
			})
			r.done(over)
		}
		if len(ids) > 0 || n == 0 {
			return ids
		}
	}
}

func (r *reports) batch() (ids []meta.ContentID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range maps.Keys(r.set) {
		if ids = append(ids, id); len(ids) == reportBatch {
			break
		}
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

func (r *reports) done(ids []meta.ContentID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		delete(r.set, id)
	}
}

// run proposes until ctx ends.
func (r *reports) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		pause(ctx, r.clock, reportGather)
		for ctx.Err() == nil {
			ids := r.next()
			if len(ids) == 0 {
				break
			}
			res, err := r.log.Propose(ctx, r.op(ids))
			if err != nil || res.Errno != 0 && res.Errno != syscall.EINVAL { // also when the incarnation ended meanwhile
				r.logger.Debug("contents not told to the log yet", "contents", len(ids), "errno", res.Errno, "err", err)
				pause(ctx, r.clock, reportRetry)
				continue
			}
			r.done(ids)
			if r.taken != nil {
				r.taken()
			}
		}
	}
}

// pause waits for a time or the end of ctx.
func pause(ctx context.Context, clock Clock, d time.Duration) {
	c, stop := clock.After(d)
	defer stop()
	select {
	case <-c:
	case <-ctx.Done():
	}
}

// compareIDs orders contents as their 16 bytes do.
func compareIDs(a, b meta.ContentID) int {
	x, y := a.Bytes(), b.Bytes()
	return slices.Compare(x[:], y[:])
}
