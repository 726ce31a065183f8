package replicate

import (
	"context"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

const (
	reconcileEvery  = time.Second
	reconcilePage   = 1024
	reconcileReport = 4 * reportBatch // reports of one pass
	nowhereLooks    = 256             // contents of a backlog that are looked for on other nodes in one pass
	mendEvery       = 5 * time.Second
	mergeDepth      = 8 // deltas above each other that are merged in the background
)

// standingBook is what a pass over the owed contents of this node finds.
type standingBook struct {
	report []meta.ContentID // held, and to be said one by one
	upTo   uint64           // everything in the backlog up to and including it is held
}

// takeStock compares what the log says is owed to this node with what its store has. Reports that were lost with a
// process are made again this way, and a backlog shrinks from below.
func (m *Member) takeStock(n meta.Node, index uint64) (b standingBook, err error) {
	b.upTo = index
	blocked, looks := false, 0
	damaged := make(map[content.ID]bool)
	for _, id := range m.cfg.Store.Damaged() {
		damaged[id] = true
	}
	after := uint64(0)
	for {
		page, err := m.cfg.Names.OwedTo(n.ID, after, reconcilePage)
		if err != nil || len(page) == 0 {
			return b, err
		}
		for _, o := range page {
			backlog := inBacklog(n, o.Published)
			lacks := damaged[storeID(o.Content)] || !m.hasWhole(o.Content) || !m.sound(o)
			if lacks && o.Since == 0 && (backlog || o.Unplaced) && looks < nowhereLooks {
				if looks++; m.nowhere(o.Content) {
					m.lost.add(o.Content) // it gets a row of its own, and the backlog no longer waits for it
				}
			}
			if (lacks && o.Since == 0 || o.Unplaced) && !blocked {
				// No row remembers this, or what a change of the members brought. It stays owed until its own report
				// is in the log.
				blocked, b.upTo = true, min(index, o.Published-1)
			}
			switch {
			case lacks:
			case len(b.report) < reconcileReport && (!backlog || o.Unplaced || o.Since != 0) && !m.held.waiting(o.Content):
				b.report = append(b.report, o.Content)
			}
		}
		after = page[len(page)-1].Published
	}
}

// nowhere reports whether no node is believed to hold a content any more.
func (m *Member) nowhere(id meta.ContentID) bool {
	holders, err := m.cfg.Names.Holders(id)
	return err == nil && len(holders) == 0
}

func inBacklog(n meta.Node, index uint64) bool {
	for _, r := range n.Backlog {
		if r.Lo < index && index <= r.Hi {
			return true
		}
	}
	return false
}

// hasWhole reports whether the store has a content whole; what waits for its commit gets it.
func (m *Member) hasWhole(id meta.ContentID) bool {
	state, ok := m.cfg.Store.State(storeID(id))
	if !ok || state == content.Partial {
		return false
	}
	if state == content.Undecided && m.find(id) == nil {
		m.commit(id)
	}
	return true
}

// placed reports whether the log lists the holders of a content one by one.
func (m *Member) placed(id meta.ContentID) bool {
	c, err := m.cfg.Names.Content(id)
	if err != nil {
		return false
	}
	p, err := m.cfg.Names.Policy(c.Policy)
	return err == nil && p.Placement == meta.PlaceCopies
}

// report reports to the log that this node holds a content that is owed to it: at once by a row of its own, or with the
// backlog as a whole.
func (m *Member) report(id meta.ContentID) {
	n, err := m.cfg.Names.Node(m.cfg.Self().Node)
	c, cerr := m.cfg.Names.Content(id)
	if err == nil && cerr == nil && inBacklog(n, c.Published) && !m.placed(id) {
		m.takeStockSoon()
		return
	}
	m.held.add(id)
}

// takeStockSoon asks for a pass over what is owed to this node; it does not wait.
func (m *Member) takeStockSoon() {
	select {
	case m.stock <- struct{}{}:
	default:
	}
}

// lookAtBacklog asks for a pass if this node has a backlog: what the log lists one by one stays owed after its own
// report was taken, until the backlog is dropped.
func (m *Member) lookAtBacklog() {
	if n, err := m.cfg.Names.Node(m.cfg.Self().Node); err == nil && len(n.Backlog) > 0 {
		m.takeStockSoon()
	}
}

// spares lists contents that the log records as held here though other nodes are to hold them: this node stood in for
// one that was down. The log lets this node drop them once all members hold them.
func (m *Member) spares(limit int) (out []meta.ContentID) {
	self := m.cfg.Self().Node
	for _, sid := range m.cfg.Store.List(content.Committed) {
		c, err := m.cfg.Names.Content(metaID(sid))
		if err != nil || c.Inline || !m.placed(c.ID) || m.assigned(c) {
			continue
		}
		if holds, err := m.cfg.Names.Holds(self, c.ID); err == nil && holds && len(out) < limit {
			out = append(out, c.ID)
		}
	}
	return out
}

// releaseSpares offers spares to the log, after changes among the nodes and now and then.
func (m *Member) releaseSpares(ctx context.Context) {
	for ctx.Err() == nil {
		pause(ctx, m.cfg.Clock, m.cfg.Tuning.ReleaseEvery)
		if ids := m.spares(reportBatch); len(ids) > 0 && ctx.Err() == nil {
			if _, err := m.cfg.Log.Propose(ctx, &meta.Release{Node: m.cfg.Self().Node, Contents: ids}); err != nil {
				m.cfg.Logger.Debug("spare contents not released yet", "err", err)
			}
		}
	}
}

// reconcile keeps the log's picture of this node right until ctx ends.
func (m *Member) reconcile(ctx context.Context) {
	for {
		m.reconcileOnce(ctx)
		m.sweep()
		timer, stop := m.cfg.Clock.After(reconcileEvery)
		select {
		case <-ctx.Done():
			stop()
			return
		case <-timer:
		case <-m.stock:
			stop()
			pause(ctx, m.cfg.Clock, 10*reportGather) // while contents stream in one pass serves many
		}
	}
}

// letIn reports whether the state here has the log entry that this process is up. Everything that earlier processes of
// this node have reported comes before that entry.
func (m *Member) letIn() (meta.Node, bool) {
	self := m.cfg.Self()
	n, err := m.cfg.Names.Node(self.Node)
	return n, err == nil && n.State == meta.NodeUp && n.Incarnation == self.Incarnation
}

// settles reports whether a node's report that it has everything up to an index changes what the log records as owed.
func settles(n meta.Node, upTo uint64) bool {
	return len(n.Backlog) > 0 && upTo > n.Backlog[0].Lo || n.Recheck.Hi > 0 && upTo > n.Recheck.Lo
}

// drainedSince reports whether this node has drained after an index: what was owed to it could not be seen then.
func (m *Member) drainedSince(index uint64) bool {
	n, in := m.letIn()
	return !in || n.DrainIndex != 0 || slices.ContainsFunc(n.Backlog, func(r meta.IndexRange) bool { return r.Hi > index })
}

func (m *Member) reconcileOnce(ctx context.Context) {
	m.compare(ctx)
	self := m.cfg.Self()
	view, index := m.cfg.Names.View(), m.cfg.Names.Index()
	n, in := m.letIn()
	if !in || n.DrainIndex != 0 {
		return
	}
	count, _, err := m.cfg.Names.OwedCount(self.Node)
	if err != nil || count == 0 && len(n.Backlog) == 0 && n.Recheck.Hi == 0 {
		return
	}
	b, err := m.takeStock(n, index)
	if err != nil {
		m.cfg.Logger.Warn("owed contents of this node", "err", err)
		return
	}
	if len(b.report) > 0 {
		m.held.add(b.report...)
	}
	if !settles(n, b.upTo) || m.drainedSince(index) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, proposeMax)
	defer cancel()
	if _, err := m.cfg.Log.Propose(ctx, &meta.Held{Node: self.Node, UpTo: b.upTo, View: view}); err != nil {
		m.cfg.Logger.Debug("backlog not shrunk yet", "err", err)
	}
}

// startUp judges what an earlier process left, and finds what was retired meanwhile.
func (m *Member) startUp() {
	for _, id := range m.undecided() {
		if v := m.judge(id); v != session.Undecided {
			m.decided(id, v)
		}
	}
	now := m.cfg.Clock.Now()
	for _, id := range m.cfg.Store.List(content.Committed) {
		if !m.wanted(metaID(id)) {
			m.retired.add(metaID(id), now)
		}
	}
}
