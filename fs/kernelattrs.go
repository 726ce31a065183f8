package fs

import "github.com/rdmcfs/rdmcfs/meta"

// kernelAttrs says which bytes the attributes belong to that the kernel may keep of a node. A commit is applied before
// the kernel is notified. An open in between would get the new bytes, but the kernel would read and append by the old
// size. So such an open is sent back to look the name up again.
type kernelAttrs struct {
	known bool // else the kernel keeps none, or the ones that handles share
	id    meta.ContentID
	size  int64
	count uint64 // grows with each note: distinguishes one time from another
}

// noteKernelAttrsLocked notes what attributes go to the kernel. nodeTable.mu is held.
func (n *node) noteKernelAttrsLocked(id meta.ContentID, size int64) {
	n.kernel = kernelAttrs{known: true, id: id, size: size, count: n.kernel.count + 1}
}

// kernelHasOtherLocked reports whether the kernel may keep attributes of other bytes, and then makes it look the node
// up again. nodeTable.mu is held.
func (t *nodeTable) kernelHasOtherLocked(n *node, id meta.ContentID, size int64) bool {
	other := n.kernel.known && (n.kernel.id != id || n.kernel.size != size)
	if other {
		t.detachLocked(n)
	}
	return other
}

// kernelHasOther reports the same of a version that is to be staged, and then closes it.
func (o *openFiles) kernelHasOther(n *node, v *version) bool {
	o.nodes.mu.Lock()
	other := o.nodes.kernelHasOtherLocked(n, v.id, v.size)
	o.nodes.mu.Unlock()
	if other {
		o.closeVersion(v)
	}
	return other
}

// noteKernelAttrsOfLiveLocked notes what the kernel keeps when a live file ends. nodeTable.mu is held.
func (n *node) noteKernelAttrsOfLiveLocked(l *live) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stage == nil:
	case l.kept != "" || !l.published.valid:
		n.noteKernelAttrsLocked(meta.ContentID{}, -1) // what was staged, and is nowhere now
	default:
		n.noteKernelAttrsLocked(l.current, l.published.size)
	}
}
