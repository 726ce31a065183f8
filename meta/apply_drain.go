package meta

import "syscall"

// A node that is draining takes no new contents, and the others fetch what depends on it. It continues to hold what it
// held, to read and to write. nodeRecord.DrainIndex is the mark: for policies other than PlaceCopies the log believes
// that the node holds what it held of the contents published up to that index, and nothing of what came later. The end
// of a drain puts the time between into the backlog, as a return from being down does.

// uncheckedMax bounds the log indexes that apply looks through for an eviction that was checked before.
const uncheckedMax = 4096

func (n *nodeRecord) draining() bool { return n.DrainIndex != 0 }

// drain begins or ends the drain of a node.
func (t membership) drain(o *Drain) (Result, syscall.Errno) {
	old := t.cl.node(o.Node)
	switch {
	case old == nil:
		return Result{}, syscall.ENOENT
	case old.State == NodeEvicted:
		return Result{}, syscall.EPERM
	case old.draining() != o.Undo:
		return Result{Node: o.Node, View: t.head.View, Existed: true}, ok
	case !o.Undo && !t.othersTake(o.Node):
		return Result{}, syscall.EBUSY
	}
	n := *old
	if o.Undo {
		n.Backlog = seqSet(n.Backlog).addRange(IndexRange{n.DrainIndex, t.head.Index})
		n.DrainIndex = 0
	} else {
		n.DrainIndex = t.head.Index
	}
	t.changed(n)
	if t.head.HasCopies {
		t.recheckAll()
	}
	return Result{Node: n.ID, View: t.head.View}, ok
}

// othersTake reports whether a node other than id takes new contents.
func (t membership) othersTake(id NodeID) bool {
	for _, n := range t.cl.nodes {
		if n != nil && n.ID != id && !n.draining() && (n.State == NodeUp || n.State == NodeDown) {
			return true
		}
	}
	return false
}

// evictSpare evicts a node unless that would take the last copy of a content.
func (t membership) evictSpare(o *EvictSpare) (Result, syscall.Errno) {
	if n := t.cl.node(o.Node); n != nil && n.State != NodeEvicted {
		if errno := t.mayLeave(o); errno != ok {
			return Result{}, errno
		}
	}
	return t.evict(&Evict{Node: o.Node, Reason: o.Reason})
}

// mayLeave looks for a last copy. The proposer has looked through all contents published up to o.Checked, in the view
// o.View: whatever makes the log believe less of a node begins another view. So apply only looks at what was
// published since. EAGAIN asks the proposer to look again.
func (t membership) mayLeave(o *EvictSpare) syscall.Errno {
	if o.View != t.head.View || o.Checked >= t.head.Index || t.head.Index-o.Checked > uncheckedMax {
		return syscall.EAGAIN
	}
	errno := ok
	t.scanFrom([]byte{tableIndex}, key64(tableIndex, o.Checked+1), func(_, value []byte) bool {
		if rec := t.contentRec(ContentIDFromBytes([16]byte(value))); rec != nil && t.cl.onlyCopy(o.Node, rec) {
			errno = syscall.EBUSY
		}
		return errno == ok
	})
	return errno
}
