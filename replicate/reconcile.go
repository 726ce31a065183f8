package replicate

import (
	"context"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	reconcileEvery  = time.Second
	reconcilePage   = 1024
	reconcileReport = 4 * reportBatch // reports of one pass
	nowhereLooks    = 256             // contents of a backlog that are looked for on other nodes in one pass
	mergeDepth      = 8               // deltas above each other that are merged in the background
)

// reconciler keeps the log's picture of this node right: what it has of what it is owed, what it lacks, and what it has
// too much.
type reconciler struct {
	cfg      *Config
	applied  applied
	runs     *memberRuns
	verdicts *verdicts
	mender   *mender
	retired  *retirements
	held     *reports      // contents that the log does not know to be here
	lost     *reports      // contents that the log wrongly believes to be here
	compared comparison    // the check whether the log's belief is right
	stock    chan struct{} // asks for a pass over what is owed to this node
}

// run keeps the log's picture of this node right until ctx ends.
func (r *reconciler) run(ctx context.Context) {
	for {
		r.reconcileOnce(ctx)
		r.retired.sweep()
		timer, stop := r.cfg.Clock.After(reconcileEvery)
		select {
		case <-ctx.Done():
			stop()
			return
		case <-timer:
		case <-r.stock:
			stop()
			pause(ctx, r.cfg.Clock, 10*reportGather) // while contents stream in one pass serves many
		}
	}
}

func (r *reconciler) reconcileOnce(ctx context.Context) {
	r.compare(ctx)
	self := r.cfg.Self()
	view, index := r.cfg.Names.View(), r.cfg.Names.Index()
	n, in := r.applied.letIn()
	if !in || n.DrainIndex != 0 {
		return
	}
	count, _, err := r.cfg.Names.OwedCount(self.Node)
	if err != nil || count == 0 && len(n.Backlog) == 0 && n.Recheck.Hi == 0 {
		return
	}
	b, err := r.takeStock(n, index)
	if err != nil {
		r.cfg.Logger.Warn("owed contents of this node", "err", err)
		return
	}
	if len(b.report) > 0 {
		r.held.add(b.report...)
	}
	if !settles(n, b.upTo) || r.applied.drainedSince(index) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, proposeMax)
	defer cancel()
	if _, err := r.cfg.Log.Propose(ctx, &meta.Held{Node: self.Node, UpTo: b.upTo, View: view}); err != nil {
		r.cfg.Logger.Debug("backlog not shrunk yet", "err", err)
	}
}

// settles reports whether a node's report that it has everything up to an index changes what the log records as owed.
func settles(n meta.Node, upTo uint64) bool {
	return len(n.Backlog) > 0 && upTo > n.Backlog[0].Lo || n.Recheck.Hi > 0 && upTo > n.Recheck.Lo
}

// standingBook is what a pass over the owed contents of this node finds.
type standingBook struct {
	report []meta.ContentID // held, and to be said one by one
	upTo   uint64           // everything in the backlog up to and including it is held
}

// takeStock compares what the log says is owed to this node with what its store has. Reports that were lost with a
// process are made again this way, and a backlog shrinks from below.
func (r *reconciler) takeStock(n meta.Node, index uint64) (b standingBook, err error) {
	b.upTo = index
	blocked, looks := false, 0
	damaged := make(map[content.ID]bool)
	for _, id := range r.cfg.Store.Damaged() {
		damaged[id] = true
	}
	after := uint64(0)
	for {
		page, err := r.cfg.Names.OwedTo(n.ID, after, reconcilePage)
		if err != nil || len(page) == 0 {
			return b, err
		}
		for _, o := range page {
			backlog := inBacklog(n, o.Published)
			lacks := damaged[storeID(o.Content)] || !r.hasWhole(o.Content) || !r.sound(o)
			if lacks && o.Since == 0 && (backlog || o.Unplaced) && looks < nowhereLooks {
				if looks++; r.applied.nowhere(o.Content) {
					r.lost.add(o.Content) // it gets a row of its own, and the backlog no longer waits for it
				}
			}
			if (lacks && o.Since == 0 || o.Unplaced) && !blocked {
				// No row remembers this, or what a change of the members brought. It stays owed until its own report
				// is in the log.
				blocked, b.upTo = true, min(index, o.Published-1)
			}
			switch {
			case lacks:
			case len(b.report) < reconcileReport && (!backlog || o.Unplaced || o.Since != 0) && !r.held.waiting(o.Content):
				b.report = append(b.report, o.Content)
			}
		}
		after = page[len(page)-1].Published
	}
}

// hasWhole reports whether the store has a content whole; what waits for its commit gets it.
func (r *reconciler) hasWhole(id meta.ContentID) bool {
	state, ok := r.cfg.Store.State(storeID(id))
	if !ok || state == content.Partial {
		return false
	}
	if state == content.Undecided && r.runs.find(id) == nil {
		r.verdicts.commit(id)
	}
	return true
}

// report reports to the log that this node holds a content that is owed to it: at once by a row of its own, or with the
// backlog as a whole.
func (r *reconciler) report(id meta.ContentID) {
	n, err := r.cfg.Names.Node(r.cfg.Self().Node)
	c, cerr := r.cfg.Names.Content(id)
	if err == nil && cerr == nil && inBacklog(n, c.Published) && !r.applied.placed(id) {
		r.takeStockSoon()
		return
	}
	r.held.add(id)
}

// takeStockSoon asks for a pass over what is owed to this node; it does not wait.
func (r *reconciler) takeStockSoon() {
	select {
	case r.stock <- struct{}{}:
	default:
	}
}

// lookAtBacklog asks for a pass if this node has a backlog: what the log lists one by one stays owed after its own
// report was taken, until the backlog is dropped.
func (r *reconciler) lookAtBacklog() {
	if n, err := r.cfg.Names.Node(r.cfg.Self().Node); err == nil && len(n.Backlog) > 0 {
		r.takeStockSoon()
	}
}

// spares lists contents that the log records as held here though other nodes are to hold them: this node stood in for
// one that was down. The log lets this node drop them once all members hold them.
func (r *reconciler) spares(limit int) (out []meta.ContentID) {
	self := r.cfg.Self().Node
	for _, sid := range r.cfg.Store.List(content.Committed) {
		c, err := r.cfg.Names.Content(metaID(sid))
		if err != nil || c.Inline || !r.applied.placed(c.ID) || r.applied.assigned(c) {
			continue
		}
		if holds, err := r.cfg.Names.Holds(self, c.ID); err == nil && holds && len(out) < limit {
			out = append(out, c.ID)
		}
	}
	return out
}

// releaseSpares offers spares to the log, after changes among the nodes and now and then.
func (r *reconciler) releaseSpares(ctx context.Context) {
	for ctx.Err() == nil {
		pause(ctx, r.cfg.Clock, r.cfg.Tuning.ReleaseEvery)
		if ids := r.spares(reportBatch); len(ids) > 0 && ctx.Err() == nil {
			if _, err := r.cfg.Log.Propose(ctx, &meta.Release{Node: r.cfg.Self().Node, Contents: ids}); err != nil {
				r.cfg.Logger.Debug("spare contents not released yet", "err", err)
			}
		}
	}
}
