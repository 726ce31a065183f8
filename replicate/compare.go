package replicate

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// comparePage bounds the records of the log's state that are read at once.
const comparePage = 4096

// comparesAtOnce is how many contents are checked at the same time.
const comparesAtOnce = 16

// comparison is the check whether this node has what the log believes it to have. It is made once after the start, when
// the log has let this node in, and again when the state was replaced. From then on every change is reported as it
// comes.
type comparison struct {
	due  atomic.Uint64 // grows with each reason to compare
	mu   sync.Mutex    // one look at a time: held over it
	done uint64        // what due was at the last look
}

// compare looks at the store and the log in both directions, if that is due. It reports contents that are lacking here
// to the log as lost: then they are owed, and fetched. It reports contents that are here, and that no node is believed
// to hold, as held.
func (r *reconciler) compare(ctx context.Context) {
	r.compared.mu.Lock()
	defer r.compared.mu.Unlock()
	due := r.compared.due.Load()
	self := r.cfg.Self()
	n, err := r.cfg.Names.Node(self.Node)
	if due == r.compared.done || err != nil || n.State != meta.NodeUp || n.Incarnation != self.Incarnation {
		return
	}
	here := r.cfg.Store.List(content.Committed)
	slices.SortFunc(here, func(a, b content.ID) int { return bytes.Compare(a[:], b[:]) })
	lacking, size := 0, int64(0)
	for read := r.believed(meta.ContentID{}); ctx.Err() == nil; {
		p := <-read
		page, next := p.list, p.next
		if p.err != nil {
			r.cfg.Logger.Warn("compare store and log", "err", p.err)
			return
		}
		if !next.IsZero() {
			read = r.believed(next) // while the files of this page are looked at
		}
		missing := r.lacking(ctx, page)
		if ctx.Err() != nil {
			return
		}
		for _, c := range missing {
			r.lost.add(c.ID)
			lacking, size = lacking+1, size+c.Size
		}
		here = r.claim(here, page, next)
		if next.IsZero() {
			r.compared.done = due
			break
		}
	}
	if lacking > 0 {
		r.cfg.Logger.Error("contents are missing here that the log holds to be here: they are fetched from other nodes",
			"contents", lacking, "bytes", size)
	}
}

// believedPage is a page of what the log believes this node to have.
type believedPage struct {
	list []meta.Content
	next meta.ContentID
	err  error
}

// believed reads the page after a content in the background. The channel has room for it.
func (r *reconciler) believed(after meta.ContentID) <-chan believedPage {
	out := make(chan believedPage, 1)
	go func() {
		var p believedPage
		p.list, p.next, p.err = r.cfg.Names.Believed(r.cfg.Self().Node, after, comparePage)
		out <- p
	}()
	return out
}

// lacking lists the contents of a page whose files are not here whole. It looks at many at once: they lie anywhere on
// the disk. The list is not complete if ctx ends.
func (r *reconciler) lacking(ctx context.Context, page []meta.Content) (list []meta.Content) {
	absent := make([]bool, len(page))
	var taken atomic.Int64
	var looks sync.WaitGroup
	for range min(comparesAtOnce, len(page)) {
		looks.Go(func() {
			for i := taken.Add(1) - 1; i < int64(len(page)) && ctx.Err() == nil; i = taken.Add(1) - 1 {
				absent[i] = !r.cfg.Store.Whole(storeID(page[i].ID), page[i].Size)
			}
		})
	}
	looks.Wait()
	for i, c := range page {
		if absent[i] {
			list = append(list, c)
		}
	}
	return list
}

// claim goes through contents of the store, in order, that are missing from a page of what the log believes to be here.
// It returns the contents that come after the page.
func (r *reconciler) claim(here []content.ID, page []meta.Content, next meta.ContentID) []content.ID {
	for len(here) > 0 {
		id := metaID(here[0])
		if !next.IsZero() && compareIDs(id, next) > 0 {
			break
		}
		for len(page) > 0 && compareIDs(page[0].ID, id) < 0 {
			page = page[1:]
		}
		if len(page) == 0 || page[0].ID != id {
			r.claimOrphan(id)
		}
		here = here[1:]
	}
	return here
}

// claimOrphan reports a content that is here and that no node is believed to hold, unless this node is owed it: then it
// is reported anyway.
func (r *reconciler) claimOrphan(id meta.ContentID) {
	c, err := r.cfg.Names.Content(id)
	if err != nil || c.Inline || !r.applied.placed(id) || r.applied.assigned(c) ||
		!r.cfg.Store.Whole(storeID(id), c.Size) {
		return
	}
	if r.applied.nowhere(id) {
		r.cfg.Logger.Warn("a content that no other node holds is here", "content", id)
		r.held.add(id)
	}
}

// stillLost reports whether the loss of a content still has to be reported to the log. The content may have come back
// meanwhile, and an old report must not take away what is here again.
func (r *reconciler) stillLost(id meta.ContentID) bool {
	c, err := r.cfg.Names.Content(id)
	if err != nil {
		return !isNotFound(err)
	}
	holds, err := r.cfg.Names.Holds(r.cfg.Self().Node, id)
	return (err != nil || holds || r.applied.nowhere(id)) && !r.cfg.Store.Whole(storeID(id), c.Size)
}

// sound reports whether what the store has of an owed content may be reported as held. One that was given up as lost is
// read whole first, in the background, unless it was received since the start.
func (r *reconciler) sound(o meta.Owed) bool {
	if !r.cfg.Store.Whole(storeID(o.Content), o.Size) {
		return false
	}
	if o.Reason != meta.OwedLost {
		return true
	}
	info, err := r.cfg.Store.Stat(storeID(o.Content))
	if err != nil || info.Damaged {
		return false
	}
	if !info.Checked {
		r.mender.checkSoon(o.Content)
	}
	return info.Checked
}

// Settle compares store and log if that is due, and waits until the log has taken what differs or ctx ends.
func (r *Replicator) Settle(ctx context.Context) {
	r.member.reconciler.compare(ctx)
	for ctx.Err() == nil && !r.member.lost.empty() {
		pause(ctx, r.cfg.Clock, reportGather)
	}
}
