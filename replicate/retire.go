package replicate

import (
	"slices"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// retirements are the contents that nothing names any more, each with the time from which it may be deleted.
type retirements struct {
	cfg     *Config
	applied applied
	runs    *memberRuns
	held    *reports // contents that the log does not know to be here

	mu    sync.Mutex
	since map[meta.ContentID]time.Time
}

func newRetirements(cfg *Config, applied applied, runs *memberRuns, held *reports) *retirements {
	return &retirements{cfg: cfg, applied: applied, runs: runs, held: held, since: make(map[meta.ContentID]time.Time)}
}

func (r *retirements) add(id meta.ContentID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.since[id]; !ok {
		r.since[id] = now
	}
}

// has reports whether a content waits for its deletion.
func (r *retirements) has(id meta.ContentID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.since[id]
	return ok
}

// due takes out what was retired at or before a time, in order.
func (r *retirements) due(before time.Time) (out []meta.ContentID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, t := range r.since {
		if !t.After(before) {
			out = append(out, id)
			delete(r.since, id)
		}
	}
	slices.SortFunc(out, compareIDs)
	return out
}

// retiredNow notes that the log retired a content.
func (r *retirements) retiredNow(id meta.ContentID) {
	if _, ok := r.cfg.Store.State(storeID(id)); ok {
		r.add(id, r.cfg.Clock.Now())
	}
}

// sweep deletes what was retired long enough ago. The store keeps the bytes as long as a reader or a delta needs
// them. Nothing is deleted before the log has let this process in: a report of an earlier process may be in the log
// and not in the state here yet, and the log believes it.
func (r *retirements) sweep() {
	if _, in := r.applied.letIn(); !in {
		return
	}
	now := r.cfg.Clock.Now()
	for _, id := range r.due(now.Add(-r.cfg.Tuning.DeleteAfter)) {
		if r.held.waiting(id) { // looked at first: once it is in the log, the content is wanted
			r.add(id, now) // the log is about to believe that it is here
			continue
		}
		if r.applied.wanted(id) {
			continue // it came back
		}
		if h := r.runs.find(id); h != nil { // catch-up that ended half way: its bytes are open until it is over
			h.post(func() { h.step(session.Decided{Verdict: session.Aborted}) })
		}
		if err := r.cfg.Store.Delete(storeID(id)); err != nil {
			r.cfg.Logger.Debug("retired content not deleted yet", "content", id, "err", err)
			r.add(id, now)
		}
	}
}
