package replicate

import (
	"errors"
	"slices"
	"sync"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// settle carries out what the log says of a stored content; it is false if nobody wants it.
func (m *Member) settle(id meta.ContentID) bool {
	switch m.judge(id) {
	case session.Published:
		m.commit(id)
	case session.Aborted:
		m.drop(id)
		return false
	}
	return true
}

// voted notes the root of a content that was stored, to be held against the log's.
func (m *Member) voted(id meta.ContentID, root [32]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.roots[id] = root
}

// rootOf is the root of a stored content. It takes the note away.
func (m *Member) rootOf(id meta.ContentID) ([32]byte, error) {
	m.mu.Lock()
	root, ok := m.roots[id]
	delete(m.roots, id)
	m.mu.Unlock()
	if ok {
		return root, nil
	}
	info, err := m.cfg.Store.Stat(storeID(id))
	return [32]byte(info.Root), err
}

// commit makes a stored content live if it is what the log published, and reports it where the log does not know that
// it is here.
func (m *Member) commit(id meta.ContentID) {
	if state, ok := m.cfg.Store.State(storeID(id)); !ok || state == content.Partial {
		return
	}
	m.cfg.Point(PointApply)
	c, err := m.cfg.Names.Content(id)
	if err != nil {
		m.commitRetired(id)
		return
	}
	if root, err := m.rootOf(id); err != nil || root != c.Root {
		m.cfg.Logger.Error("stored content is not what was published", "content", id, "err", err)
		m.drop(id)
		m.missing(id)
		return
	}
	if err := m.cfg.Store.Commit(storeID(id)); err != nil {
		m.cfg.Logger.Error("commit of a content", "content", id, "err", err)
		m.failed.add(id)
		return
	}
	m.noteDelta(c)
	if holds, err := m.cfg.Names.Holds(m.cfg.Self().Node, id); err != nil || holds {
		return
	}
	if m.assigned(c) {
		m.report(id)
		return
	}
	m.retired.add(id, m.cfg.Clock.Now()) // the writer's copy of a file that lives on other nodes
}

// failedCommits are stored contents that the store did not commit. They can be read, but not mended.
type failedCommits struct {
	mu   sync.Mutex
	list []meta.ContentID
}

func (f *failedCommits) add(id meta.ContentID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, id)
}

// take takes them out, in order and each once.
func (f *failedCommits) take() []meta.ContentID {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.list
	f.list = nil
	slices.SortFunc(list, compareIDs)
	return slices.Compact(list)
}

// commitRetired keeps a content that was published and superseded before the store came to it: the next version may be
// a delta over it.
func (m *Member) commitRetired(id meta.ContentID) {
	m.mu.Lock()
	delete(m.roots, id)
	m.mu.Unlock()
	if err := m.cfg.Store.Commit(storeID(id)); err != nil {
		m.cfg.Logger.Warn("commit of a retired content", "content", id, "err", err)
	}
	m.retired.add(id, m.cfg.Clock.Now())
}

// assigned reports whether this node is in the placement of a published content.
func (m *Member) assigned(c meta.Content) bool {
	members, err := m.cfg.Names.Members(c.Policy, c.Ino)
	return err == nil && slices.Contains(members, m.cfg.Self().Node)
}

// drop deletes what is stored of a session that was aborted.
func (m *Member) drop(id meta.ContentID) {
	m.mu.Lock()
	delete(m.roots, id)
	m.mu.Unlock()
	err := m.cfg.Store.Abort(storeID(id))
	if err != nil && !errors.Is(err, content.ErrNotFound) {
		m.cfg.Logger.Warn("drop of an aborted content", "content", id, "err", err)
	}
}

// decided carries out the log's word on one session. It may wait for the disk.
func (m *Member) decided(id meta.ContentID, v session.Verdict) {
	if h := m.find(id); h != nil {
		h.post(func() { h.step(session.Decided{Verdict: v}) })
		return
	}
	if _, ok := m.cfg.Store.State(storeID(id)); !ok {
		return
	}
	if v == session.Published {
		m.commit(id)
		return
	}
	m.drop(id)
}

// fenced aborts all undecided sessions of a writer's incarnation and before.
func (m *Member) fenced(node meta.NodeID, incarnation uint32) {
	m.groups.rootGone(node)
	for _, id := range m.undecided() {
		if id.Node == node && id.Incarnation <= incarnation && m.judge(id) == session.Aborted {
			m.ended(id)
		}
	}
}

// undecided lists sessions that have bytes here and no decision.
func (m *Member) undecided() []meta.ContentID {
	var out []meta.ContentID
	for _, id := range m.cfg.Store.List(content.Undecided) {
		out = append(out, metaID(id))
	}
	for _, id := range m.cfg.Store.List(content.Partial) {
		out = append(out, metaID(id))
	}
	return out
}
