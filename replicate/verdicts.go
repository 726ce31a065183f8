package replicate

import (
	"slices"
	"sync"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// verdicts carries out what the log says of stored contents.
type verdicts struct {
	cfg     *Config
	applied applied
	groups  *memberGroups
	runs    *memberRuns
	votes   *votes
	kept    *fencedBlocks
	mender  *mender
	retired *retirements
	failed  *failedCommits
	report  func(meta.ContentID) // reports a content as held: the reconciler's
}

// settle carries out what the log says of a stored content; it is false if nobody wants it.
func (vs *verdicts) settle(id meta.ContentID) bool {
	switch vs.applied.judge(id) {
	case session.Published:
		vs.commit(id)
	case session.Aborted:
		vs.votes.drop(id)
		return false
	}
	return true
}

// commit makes a stored content live if it is what the log published, and reports it where the log does not know that
// it is here.
func (vs *verdicts) commit(id meta.ContentID) {
	if state, ok := vs.cfg.Store.State(storeID(id)); !ok || state == content.Partial {
		return
	}
	vs.cfg.Point(PointApply)
	c, err := vs.cfg.Names.Content(id)
	if err != nil {
		vs.commitRetired(id)
		return
	}
	if root, err := vs.votes.rootOf(id); err != nil || root != c.Root {
		vs.cfg.Logger.Error("stored content is not what was published", "content", id, "err", err)
		vs.votes.drop(id)
		vs.mender.missing(id)
		return
	}
	if err := vs.cfg.Store.Commit(storeID(id)); err != nil {
		vs.cfg.Logger.Error("commit of a content", "content", id, "err", err)
		vs.failed.add(id)
		return
	}
	vs.mender.noteDelta(c)
	if holds, err := vs.cfg.Names.Holds(vs.cfg.Self().Node, id); err != nil || holds {
		return
	}
	if vs.applied.assigned(c) {
		vs.report(id)
		return
	}
	vs.retired.add(id, vs.cfg.Clock.Now()) // the writer's copy of a file that lives on other nodes
}

// commitRetired keeps a content that was published and superseded before the store came to it: the next version may be
// a delta over it.
func (vs *verdicts) commitRetired(id meta.ContentID) {
	vs.votes.forget(id)
	if err := vs.cfg.Store.Commit(storeID(id)); err != nil {
		vs.cfg.Logger.Warn("commit of a retired content", "content", id, "err", err)
	}
	vs.retired.add(id, vs.cfg.Clock.Now())
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

// decided carries out the log's word on one session. It may wait for the disk.
func (vs *verdicts) decided(id meta.ContentID, v session.Verdict) {
	if h := vs.runs.find(id); h != nil {
		h.post(func() { h.step(session.Decided{Verdict: v}) })
		return
	}
	if _, ok := vs.cfg.Store.State(storeID(id)); !ok {
		return
	}
	if v == session.Published {
		vs.commit(id)
		return
	}
	vs.votes.drop(id)
}

// fenced aborts all undecided sessions of a writer's incarnation and before.
func (vs *verdicts) fenced(node meta.NodeID, incarnation uint32) {
	vs.groups.rootGone(node)
	for _, id := range vs.undecided() {
		if id.Node == node && id.Incarnation <= incarnation && vs.applied.judge(id) == session.Aborted {
			vs.ended(id)
		}
	}
}

// undecided lists sessions that have bytes here and no decision.
func (vs *verdicts) undecided() []meta.ContentID {
	var out []meta.ContentID
	for _, id := range vs.cfg.Store.List(content.Undecided) {
		out = append(out, metaID(id))
	}
	for _, id := range vs.cfg.Store.List(content.Partial) {
		out = append(out, metaID(id))
	}
	return out
}

// ended ends a session whose root's incarnation has ended. Blocks that were received on the way to a vote are kept
// for a while: they are nobody's vote, and the next session of the same push may go on from them.
func (vs *verdicts) ended(id meta.ContentID) {
	if h := vs.runs.find(id); h != nil {
		h.post(func() { h.step(session.Fenced{}) })
		return
	}
	switch state, ok := vs.cfg.Store.State(storeID(id)); {
	case !ok:
	case state == content.Partial, vs.ownLarge(id):
		vs.kept.keep(id)
	default:
		vs.votes.drop(id)
	}
}

// ownLarge reports whether a content is this node's own copy of what its push sends by multicast. It may be whole by
// now; the next session sends the same bytes.
func (vs *verdicts) ownLarge(id meta.ContentID) bool {
	info, err := vs.cfg.Store.Stat(storeID(id))
	return err == nil && id.Node == vs.cfg.Self().Node && info.Size > smallMax
}
