package fs

import (
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// A handle of name_to_handle_at(2) is a nodeid and a generation. The nodeid of a file that the log knows is made of its
// inode number, so that the file is found when kernel and nodeTable have forgotten the node. An inode number may have
// several nodes at a time: each has a turn of its own.
const (
	turnShift  = 56
	turnsMax   = 64
	countedIDs = uint64(1) << 63 // nodeids that no inode number is in
)

// handleID is the nodeid of an inode number and a turn.
func handleID(ino meta.Ino, turn uint64) uint64 { return uint64(ino) | turn<<turnShift }

// inHandle is what is in a nodeid; ok is false for one that is counted.
func inHandle(id uint64) (ino meta.Ino, turn uint64, ok bool) {
	ino, turn = meta.Ino(id&(1<<turnShift-1)), id>>turnShift
	return ino, turn, turn < turnsMax && ino != 0
}

// freeIDLocked is a nodeid for a new node of an inode. nodeTable.mu is held.
func (t *nodeTable) freeIDLocked(ino meta.Ino) uint64 {
	for turn := uint64(0); turn < turnsMax && ino < 1<<turnShift; turn++ {
		if id := handleID(ino, turn); t.byID[id] == nil {
			return id
		}
	}
	t.counted++
	return countedIDs | t.counted
}

// generationOf tells files apart that have the same nodeid at different times. It is the same at all nodes.
func generationOf(rec meta.Inode) uint32 {
	if rec.Btime == 0 {
		return 1 // not known
	}
	return uint32(rec.Btime) ^ uint32(rec.Btime>>32)
}

// lookupHandle answers FUSE_LOOKUP of ".": the kernel has a nodeid from a handle, and has no such node. ESTALE says
// that the file is gone.
func (f *fileSystem) lookupHandle(id uint64, out *fuse.EntryOut) syscall.Errno {
	ino, turn, ok := inHandle(id)
	n := f.nodes.get(id)
	if n != nil {
		ino = n.ino()
	} else if !ok {
		return syscall.ESTALE
	}
	rec, err := f.names.state().Inode(ino)
	switch {
	case errors.Is(err, meta.ErrNotFound):
		return syscall.ESTALE
	case err != nil:
		return fail(f.log, "open a handle", ino, err)
	case rec.Kind == meta.KindFile && rec.Version == 0 && rec.Reserved != f.names.cluster.Self():
		return syscall.ESTALE // nobody has published it
	case rec.Kind != meta.KindFile && turn != 0:
		return syscall.ESTALE // nobody was given that
	}
	if n := f.nodes.known(ino); n != nil {
		f.files.awaitSettled(f.life.ctx, n)
	}
	n, moved := f.nodes.handled(id, rec)
	if n == nil {
		return syscall.ESTALE
	}
	if moved {
		f.cache.dropNamesSoon()
	}
	f.fillEntry(n, out)
	return 0
}

// handled returns the node of a nodeid, made if there is none, with one more reference of the kernel. It becomes the
// current one of the inode if it can; moved says that another one was. It is nil if it can't be.
func (t *nodeTable) handled(id uint64, rec meta.Inode) (n *node, moved bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n = t.byID[id]; n == nil {
		if t.current[rec.Ino] != nil && rec.Kind != meta.KindFile {
			return nil, false
		}
		n = t.addAsLocked(id, rec)
		n.detached = true
		moved = t.current[rec.Ino] != nil
		moved = t.reattachLocked(n) && moved
	}
	n.lookups++
	return n, moved
}

// reattach makes a node that is detached, and that nothing has open, the current one of its inode. It reports whether
// it is.
func (t *nodeTable) reattach(n *node) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reattachLocked(n)
}

// reattachLocked is reattach. Open files keep the node that they have: then no other one takes its place.
func (t *nodeTable) reattachLocked(n *node) bool {
	now := t.current[n.ino()]
	if !n.detached || n.gone || n.removed || n.isOpen() || now != nil && now.isOpen() {
		return false
	}
	if now != nil {
		t.detachLocked(now)
	}
	n.detached = false
	t.current[n.ino()] = n
	return true
}

// isOpen reports whether programs, or operations under way, use a node. nodeTable.mu is held.
func (n *node) isOpen() bool {
	return n.live != nil || n.reading != nil || n.follow != nil || n.pins > 0
}
