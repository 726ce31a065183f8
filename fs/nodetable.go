package fs

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// node is what the kernel knows by one nodeid. Its fields are protected by nodeTable.mu, but for the constant ones.
type node struct {
	id   uint64    // constant
	kind meta.Kind // constant
	// generation goes with the id into handles of programs; constant.
	generation uint32

	inoNow   atomic.Uint64 // changes only when an O_TMPFILE gets a name
	lookups  uint64        // references of the kernel
	pins     int           // open handles, opens and operations under way
	detached bool          // no longer what its inode number is looked up as
	numbered bool          // it got another inode number, which programs may not see yet
	removed  bool          // the last name was removed through this mount
	gone     bool          // the last name was removed by anybody

	last meta.Inode // the record as last seen, for what is gone or superseded

	reading *version  // what read handles share; nil when not open or live
	live    *live     // nil when nobody may write
	follow  *followed // nil when not open, or when the mount does not follow

	cached      meta.ContentID // whose bytes the kernel's page cache holds
	cachedValid bool
	kernel      kernelAttrs // not while the node is live
}

// ino is the inode number of a node.
func (n *node) ino() meta.Ino { return meta.Ino(n.inoNow.Load()) }

// nodeTable holds the nodes.
type nodeTable struct {
	state func() meta.Reader // the applied state of this node
	locks *fileLocks         // of the node's files
	space uint64             // of the owners of this mount's locks; constant from the mount on

	mu      sync.Mutex
	byID    map[uint64]*node
	current map[meta.Ino]*node
	counted uint64 // nodeids that were given with countedIDs (freeIDLocked)
	// dropAttr makes the kernel forget the attributes of a node soon; nil where there is no kernel.
	dropAttr func(id uint64)
}

func newNodeTable(root meta.Inode, state func() meta.Reader) *nodeTable {
	n := &node{id: fuse.FUSE_ROOT_ID, kind: meta.KindDir, lookups: 1, last: root}
	n.inoNow.Store(uint64(root.Ino))
	return &nodeTable{
		state:   state,
		locks:   new(fileLocks),
		byID:    map[uint64]*node{n.id: n},
		current: map[meta.Ino]*node{n.ino(): n},
	}
}

// get finds a node by its nodeid; nil only if the kernel uses one it has forgotten.
func (t *nodeTable) get(id uint64) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// pin finds a node and keeps it until unpin.
func (t *nodeTable) pin(id uint64) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byID[id]
	if n != nil {
		n.pins++
	}
	return n
}

func (t *nodeTable) unpin(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.pins--
	t.dropLocked(n)
}

// looked returns the current node of an inode with one more reference of the kernel.
func (t *nodeTable) looked(rec meta.Inode) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.current[rec.Ino]
	if n != nil && n.stale(rec) {
		t.detachLocked(n)
		n = nil
	}
	if n == nil {
		n = t.addLocked(rec)
	}
	n.last = rec
	n.lookups++
	return n
}

// refer gives a node that is pinned one more reference of the kernel.
func (t *nodeTable) refer(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.lookups++
}

func (t *nodeTable) isDetached(n *node) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return n.detached
}

// stale reports whether n's open handles have other bytes than rec's and nobody here is writing. nodeTable.mu is held.
func (n *node) stale(rec meta.Inode) bool {
	switch {
	case rec.Kind != n.kind:
		return true
	case n.follow != nil:
		return false
	case n.live != nil:
		return n.live.users.frozen() && !n.live.isVersionLocked(rec) || n.live.hasLostLock()
	case n.reading != nil:
		return n.reading.id != rec.Content || n.reading.size != rec.Size
	}
	return false
}

func (t *nodeTable) addLocked(rec meta.Inode) *node {
	n := t.addAsLocked(t.freeIDLocked(rec.Ino), rec)
	t.current[n.ino()] = n
	return n
}

// addAsLocked makes a node that is not current yet.
func (t *nodeTable) addAsLocked(id uint64, rec meta.Inode) *node {
	n := &node{id: id, kind: rec.Kind, generation: generationOf(rec), last: rec}
	n.inoNow.Store(uint64(rec.Ino))
	t.byID[n.id] = n
	return n
}

// detachLocked makes the next lookup of n's inode number give another node. From now on nobody tells the kernel what
// changes of n: it has to ask.
func (t *nodeTable) detachLocked(n *node) {
	if t.current[n.ino()] == n {
		delete(t.current, n.ino())
	}
	n.detached = true
	if t.dropAttr != nil {
		t.dropAttr(n.id)
	}
}

func (t *nodeTable) forget(id, count uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byID[id]
	if n == nil || id == fuse.FUSE_ROOT_ID {
		return
	}
	n.lookups -= min(count, n.lookups)
	t.dropLocked(n)
}

func (t *nodeTable) dropLocked(n *node) {
	if n.lookups > 0 || n.pins > 0 || n.live != nil || n.reading != nil || n.id == fuse.FUSE_ROOT_ID {
		return
	}
	delete(t.byID, n.id)
	if t.current[n.ino()] == n {
		delete(t.current, n.ino())
	}
}

// known returns the current node of an inode if the kernel has it.
func (t *nodeTable) known(ino meta.Ino) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current[ino]
}

func (t *nodeTable) isRemoved(n *node) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return n.removed
}

// record is the inode of a node as the log has it, or as it was last seen when it is gone.
func (t *nodeTable) record(n *node) meta.Inode {
	rec, err := t.state().Inode(n.ino())
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil && rec.Kind == n.kind:
		n.last = rec
	case err == nil || errors.Is(err, meta.ErrNotFound):
		n.last.Nlink = 0
	}
	return n.last
}

// btime is when the file of a node was made; 0 if that is not known.
func (t *nodeTable) btime(n *node) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return n.last.Btime
}

// rename gives a node the inode number that the log gave its file, now or again.
func (t *nodeTable) rename(n *node, rec meta.Inode) {
	t.locks.renaming(t.space, n, func() { t.renumber(n, rec) })
	t.mu.Lock()
	l := n.live
	t.mu.Unlock()
	if l != nil {
		t.guard(l, false) // its locks hold between nodes now
	}
}

func (t *nodeTable) renumber(n *node, rec meta.Inode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current[n.ino()] == n {
		delete(t.current, n.ino())
	}
	if other := t.current[rec.Ino]; other != nil && other != n {
		t.detachLocked(other) // a lookup was faster
	}
	n.inoNow.Store(uint64(rec.Ino))
	n.numbered = true
	n.last = rec
	n.gone = false
	t.current[rec.Ino] = n
}
