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
	mu    sync.Mutex
	since map[meta.ContentID]time.Time
}

func newRetirements() *retirements {
	return &retirements{since: make(map[meta.ContentID]time.Time)}
}

func (r *retirements) add(id meta.ContentID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.since[id]; !ok {
		r.since[id] = now
	}
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
func (m *Member) retiredNow(id meta.ContentID) {
	if _, ok := m.cfg.Store.State(storeID(id)); ok {
		m.retired.add(id, m.cfg.Clock.Now())
	}
}

// wanted reports whether the log still gives this node a reason to keep a content. After a kill, the state here may
// begin before publishes whose contents are already committed here: what the log has not decided yet is kept.
func (m *Member) wanted(id meta.ContentID) bool {
	c, err := m.cfg.Names.Content(id)
	if isNotFound(err) {
		over, err := m.cfg.Names.Decided(id)
		return err != nil || !over
	}
	return err != nil || c.State != meta.ContentRetired && m.keeps(c)
}

// keeps reports whether this node is to have a published content: it is a member, or is still recorded as one.
func (m *Member) keeps(c meta.Content) bool {
	if m.assigned(c) {
		return true
	}
	holds, err := m.cfg.Names.Holds(m.cfg.Self().Node, c.ID)
	return err != nil || holds
}

// sweep deletes what was retired long enough ago. The store keeps the bytes as long as a reader or a delta needs
// them. Nothing is deleted before the log has let this process in: a report of an earlier process may be in the log
// and not in the state here yet, and the log believes it.
func (m *Member) sweep() {
	if _, in := m.letIn(); !in {
		return
	}
	now := m.cfg.Clock.Now()
	for _, id := range m.retired.due(now.Add(-m.cfg.Tuning.DeleteAfter)) {
		if m.held.waiting(id) { // looked at first: once it is in the log, the content is wanted
			m.retired.add(id, now) // the log is about to believe that it is here
			continue
		}
		if m.wanted(id) {
			continue // it came back
		}
		if h := m.find(id); h != nil { // catch-up that ended half way: its bytes are open until it is over
			h.post(func() { h.step(session.Decided{Verdict: session.Aborted}) })
		}
		if err := m.cfg.Store.Delete(storeID(id)); err != nil {
			m.cfg.Logger.Debug("retired content not deleted yet", "content", id, "err", err)
			m.retired.add(id, now)
		}
	}
}
