package replicate

import (
	"context"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// ended ends a session whose root's incarnation has ended. Blocks that were received on the way to a vote are kept
// for a while: they are nobody's vote, and the next session of the same push may go on from them.
func (m *Member) ended(id meta.ContentID) {
	if h := m.find(id); h != nil {
		h.post(func() { h.step(session.Fenced{}) })
		return
	}
	switch state, ok := m.cfg.Store.State(storeID(id)); {
	case !ok:
	case state == content.Partial, m.ownLarge(id):
		m.keep(id)
	default:
		m.drop(id)
	}
}

// isFenced reports whether the incarnation that a session is of has ended, as the applied log says.
func isFenced(names meta.Reader, id meta.ContentID) bool {
	n, err := names.Node(id.Node)
	return err == nil && (n.State != meta.NodeUp || n.Incarnation > id.Incarnation)
}

// ownLarge reports whether a content is this node's own copy of what its push sends by multicast. It may be whole by
// now; the next session sends the same bytes.
func (m *Member) ownLarge(id meta.ContentID) bool {
	info, err := m.cfg.Store.Stat(storeID(id))
	return err == nil && id.Node == m.cfg.Self().Node && info.Size > smallMax
}

// keep keeps what was received of a session that was fenced, for Tuning.KeepFenced or until its space is needed.
func (m *Member) keep(id meta.ContentID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.kept[id]; known || m.closed {
		return
	}
	m.kept[id] = struct{}{}
	m.wg.Go(func() {
		over, stop := m.cfg.Clock.After(m.cfg.Tuning.KeepFenced)
		defer stop()
		select {
		case <-over:
			m.dropOne(id)
		case <-m.quit: // dropped at the next start
		}
	})
}

// dropOne drops what is kept of a session, unless another one has taken it.
func (m *Member) dropOne(id meta.ContentID) {
	m.mu.Lock()
	delete(m.kept, id)
	m.mu.Unlock()
	m.drop(id)
}

// dropKept drops all that is kept, as its space is needed; it is false if there is nothing.
func (m *Member) dropKept() bool {
	m.mu.Lock()
	var list []meta.ContentID
	for id := range m.kept {
		list = append(list, id)
	}
	m.mu.Unlock()
	for _, id := range list {
		m.dropOne(id)
	}
	return len(list) > 0
}

// awaitLeft waits a moment until the session that an announcement follows has ended here: its root knows of the fence a
// little before. It clears Follows if that names no session of the same root.
func (m *Member) awaitLeft(ctx context.Context, from meta.NodeID, a *announce) {
	f := a.Follows
	if f.IsZero() || a.Published || f.Node != from || f == a.Content {
		a.Follows = meta.ContentID{}
		return
	}
	for limit := m.cfg.Clock.Now().Add(knownWait); m.find(f) != nil && ctx.Err() == nil &&
		m.cfg.Clock.Now().Before(limit); {
		pause(ctx, m.cfg.Clock, knownPoll)
	}
}
