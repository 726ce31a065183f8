package fs

import "github.com/rdmcfs/rdmcfs/meta"

// told is which bytes the attributes belong to that the kernel may keep of a node. A commit is applied before the
// kernel is told: an open in between would have the new bytes, but be read and appended to by the old size. It is
// sent back to look the name up again.
type told struct {
	known bool // else the kernel keeps none, or those of what handles share
	id    meta.ContentID
	size  int64
	count uint64 // tells one time from another
}

// tellLocked notes what attributes go to the kernel. table.mu is held.
func (n *node) tellLocked(id meta.ContentID, size int64) {
	n.told = told{known: true, id: id, size: size, count: n.told.count + 1}
}

// toldOtherLocked reports whether the kernel may keep attributes of other bytes, and then sees to it that the node is
// looked up anew. table.mu is held.
func (t *table) toldOtherLocked(n *node, id meta.ContentID, size int64) bool {
	other := n.told.known && (n.told.id != id || n.told.size != size)
	if other {
		t.detachLocked(n)
	}
	return other
}

// toldOther reports the same of a version that is to be staged, and then closes it.
func (f *fileSystem) toldOther(n *node, v *version) bool {
	f.nodes.mu.Lock()
	other := f.nodes.toldOtherLocked(n, v.id, v.size)
	f.nodes.mu.Unlock()
	if other {
		f.closeVersion(v)
	}
	return other
}

// tellLiveLocked notes what the kernel keeps when a live file ends. table.mu is held.
func (n *node) tellLiveLocked(l *live) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stage == nil:
	case l.kept != "" || !l.published.valid:
		n.tellLocked(meta.ContentID{}, -1) // what was staged, and is nowhere now
	default:
		n.tellLocked(l.current, l.published.size)
	}
}

// dropAttr makes the kernel forget the attributes of a node. It is not to be called from a handler.
func (f *fileSystem) dropAttr(id uint64) {
	f.nodes.mu.Lock()
	n := f.nodes.byID[id]
	var before told
	if n != nil {
		before = n.told
	}
	f.nodes.mu.Unlock()
	known := f.notifier.attrNow(id)
	if n == nil {
		return
	}
	if !known { // the answer to its first lookup is on its way, and the name that comes with it has the epoch of before
		if f.entryTimeout > 0 {
			f.notifier.epoch()
		}
		return
	}
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	if n.told == before {
		n.told.known = false
	}
}
