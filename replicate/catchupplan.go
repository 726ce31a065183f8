package replicate

import (
	"slices"

	"github.com/rdmcfs/rdmcfs/meta"
)

// Here is which holder pushes what is owed: the assigner's choice.

// plan chooses a source for each content, and puts contents with the same source and targets together.
func (a *assigner) plan(
	ids []meta.ContentID, wanted map[meta.ContentID][]meta.NodeID, up map[meta.NodeID]bool,
) []*order {
	type key struct {
		source    meta.NodeID
		elsewhere bool
		targets   string
		part      int
	}
	orders := make(map[key]*order)
	parts := make(map[key]int)
	load := a.underWay()
	var list []*order
	for _, id := range ids {
		targets := wanted[id]
		bytes, published := a.cost(id)
		source, elsewhere := a.source(id, targets, up, load)
		if source == 0 {
			a.failed(targets, []meta.ContentID{id}, 0)
			a.waitForHolder(targets, id)
			continue
		}
		load[source] += bytes
		k := key{source: source, elsewhere: elsewhere, targets: setKey(targets)}
		k.part = parts[k]
		o := orders[k]
		if o != nil && len(o.contents) >= workOrderSize {
			o = nil
			base := k
			base.part = 0
			parts[base]++
			k.part = parts[base]
		}
		if o == nil {
			o = &order{
				source: source, elsewhere: elsewhere, targets: targets, left: make(map[meta.ContentID]int64),
			}
			orders[k] = o
			list = append(list, o)
		}
		o.contents = append(o.contents, id)
		o.left[id] = bytes
		o.index = max(o.index, published)
	}
	return list
}

// load is what a source has to do.
type load struct {
	orders int
	bytes  int64
}

// contentCost is what a content costs beside its bytes, in bytes.
const contentCost = 4096

// cost is what a source has to push of a content, at most, in bytes, and at which index it was published.
func (a *assigner) cost(id meta.ContentID) (bytes int64, published uint64) {
	c, err := a.cfg.Names.Content(id)
	if err != nil {
		return contentCost, 0
	}
	return c.Size - c.Holes + contentCost, c.Published
}

// underWay returns how many bytes each source already has to push, at most, for the leader and for its own writers: the
// source with the fewest is asked first. A source that takes no more orders is asked last.
func (a *assigner) underWay() map[meta.NodeID]int64 {
	bytes := make(map[meta.NodeID]int64)
	if a.pushing != nil {
		bytes = a.pushing()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for source, l := range a.busy {
		bytes[source] += l.bytes
		if l.orders >= ordersOfOne {
			bytes[source] += maxFileBytes
		}
	}
	return bytes
}

// source returns a holder that is up: the one that already has the content to push, to other nodes, or the one with the
// least to do; but not the one that failed last. elsewhere says that another holder has no more to do.
func (a *assigner) source(
	id meta.ContentID, targets []meta.NodeID, up map[meta.NodeID]bool, load map[meta.NodeID]int64,
) (best meta.NodeID, elsewhere bool) {
	holders, err := a.cfg.Names.Holders(id)
	if err != nil {
		return 0, false
	}
	holders = slices.DeleteFunc(holders, func(h meta.NodeID) bool { return !up[h] || slices.Contains(targets, h) })
	avoid, passed := a.avoided(id, targets)
	if at := a.asked(id); at != avoid && slices.Contains(holders, at) {
		best = at
	}
	if best == 0 {
		best = leastToDo(holders, avoid, load)
	}
	elsewhere = passed < passedMost && slices.ContainsFunc(holders, func(h meta.NodeID) bool {
		return h != best && h != avoid && load[h] <= load[best]
	})
	return best, elsewhere
}

// passedMost is how often a content is passed on: all of its holders may be sending it already.
const passedMost = 2

// leastToDo returns the holder with the least to push, and the one to avoid only if there is no other; 0: none.
func leastToDo(holders []meta.NodeID, avoid meta.NodeID, load map[meta.NodeID]int64) (best meta.NodeID) {
	for _, h := range holders {
		worse := best != 0 && (h == avoid || best != avoid && load[h] >= load[best])
		if !worse {
			best = h
		}
	}
	return best
}

// asked returns the source that already has a content to push, can send it to more nodes at once, and takes more
// orders; 0: none.
func (a *assigner) asked(id meta.ContentID) meta.NodeID {
	a.mu.Lock()
	at := a.at[id]
	full := a.busy[at].orders >= ordersOfOne
	a.mu.Unlock()
	if at == 0 || full {
		return 0
	}
	if c, err := a.cfg.Names.Content(id); err != nil || c.Size <= smallMax {
		return 0 // goes to each node by itself
	}
	return at
}

// avoided returns the source that failed last or passed a content on, and how often it was passed on.
func (a *assigner) avoided(id meta.ContentID, targets []meta.NodeID) (source meta.NodeID, passed int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range targets {
		t := a.tries[owedItem{n, id}]
		if t == nil {
			continue
		}
		passed = max(passed, t.passed)
		if source == 0 {
			source = t.avoid
		}
	}
	return source, passed
}
