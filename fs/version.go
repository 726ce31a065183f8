package fs

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// version is one committed version that read handles of one node share. handles is protected by nodeTable.mu.
type version struct {
	id      meta.ContentID
	size    int64
	holes   int64
	reader  replicate.ContentReader // nil for an empty file
	backing *backing
	handles int
	live    atomic.Pointer[live] // what its handles read since the node became live; nil before
}

// errGone says that an inode was removed between its lookup and its open, and bytes that rode in the log with it.
var errGone = fmt.Errorf("fs: removed with its bytes: %w", meta.ErrNotFound)

// openVersion opens the current bytes of an inode. A version that is retired while it is being opened is tried
// again with its successor.
func (o *openFiles) openVersion(ctx context.Context, ino meta.Ino, last meta.Inode) (*version, meta.Inode, error) {
	const tries = 5
	var err error
	for range tries {
		rec, lookErr := o.names.state().Inode(ino)
		if errors.Is(lookErr, meta.ErrNotFound) {
			rec = last
		} else if lookErr != nil {
			return nil, rec, lookErr
		}
		v := &version{id: rec.Content, size: rec.Size, holes: rec.Holes, backing: new(backing)}
		if rec.Content.IsZero() {
			return v, rec, nil
		}
		v.reader, err = o.names.cluster.OpenContent(ctx, rec.Content)
		if err == nil {
			return v, rec, nil
		}
		if !errors.Is(err, meta.ErrNotFound) {
			break
		}
		if lookErr != nil {
			return nil, last, errGone
		}
	}
	return nil, last, err
}

// fd is a descriptor that may back a passthrough, or -1.
func (v *version) fd() int {
	if v.reader == nil {
		return -1
	}
	return v.reader.Fd()
}

func (v *version) ReadAt(p []byte, off int64) (int, error) {
	if v.reader == nil || off >= v.size {
		return 0, nil
	}
	return readFull(v.reader, p, off)
}

// NextHole implements sparse.
func (v *version) NextHole(off int64) int64 {
	if r, ok := v.reader.(sparse); ok {
		return r.NextHole(off)
	}
	return v.size
}

// NextData implements sparse.
func (v *version) NextData(off int64) int64 {
	if r, ok := v.reader.(sparse); ok {
		return r.NextData(off)
	}
	return off
}

func (v *version) close() error {
	if v.reader == nil {
		return nil
	}
	return v.reader.Close()
}

// acquireRead makes a read handle on a node. ESTALE sends the kernel to look the name up again.
func (o *openFiles) acquireRead(ctx context.Context, n *node) (*handle, syscall.Errno) {
	if o.follow != nil {
		return o.follow.open(ctx, n)
	}
	if h, no := o.joinForRead(ctx, n); h != nil || no != 0 {
		return h, no
	}
	defer o.nodes.unpin(n)
	o.nodes.mu.Lock()
	last := n.last
	o.nodes.mu.Unlock()
	v, rec, err := o.openVersion(ctx, n.ino(), last)
	if errors.Is(err, errGone) {
		return nil, syscall.ESTALE // its name may have been given to another file
	}
	if err != nil {
		return nil, fail(o.log, "open", n.ino(), err)
	}
	h, spare := o.shareVersion(n, v, rec)
	if spare != nil {
		o.closeVersion(spare)
	}
	if h == nil {
		return nil, syscall.ESTALE
	}
	return h, 0
}

// joinForRead gives a handle on the node's live file, or pins the node and returns nil.
func (o *openFiles) joinForRead(ctx context.Context, n *node) (*handle, syscall.Errno) {
	o.awaitSettled(ctx, n)
	o.nodes.mu.Lock()
	if n.live != nil && (n.live.users.ended || n.live.hasLostLock()) {
		o.nodes.detachLocked(n)
	}
	if n.detached {
		o.nodes.mu.Unlock()
		return nil, syscall.ESTALE
	}
	if n.live == nil && (n.removed || n.gone) {
		if h := n.shareLocked(); h != nil {
			o.nodes.mu.Unlock()
			return h, 0
		}
	}
	n.pins++
	if n.live == nil {
		o.nodes.mu.Unlock()
		return nil, 0
	}
	l := n.live
	l.users.addReader()
	o.nodes.mu.Unlock()
	return o.awaitLive(ctx, l, false)
}

// shareVersion puts an opened version, or the equal one that is there, under a new handle. spare is to be closed.
func (o *openFiles) shareVersion(n *node, v *version, rec meta.Inode) (h *handle, spare *version) {
	o.nodes.mu.Lock()
	defer o.nodes.mu.Unlock()
	switch {
	case n.live != nil || n.detached && n.reading == nil:
		return nil, v // somebody began to write, or a commit came in between
	case n.reading == nil && o.nodes.kernelHasOtherLocked(n, v.id, v.size):
		return nil, v
	case n.reading == nil:
		n.reading = v
		n.last = rec
	case n.reading.id != v.id || n.reading.size != v.size:
		o.nodes.detachLocked(n)
		return nil, v
	default:
		spare = v
	}
	return n.shareLocked(), spare
}

// shareLocked is one more handle on the version that handles of the node read; nil if there is none. nodeTable.mu is
// held.
func (n *node) shareLocked() *handle {
	if n.reading == nil {
		return nil
	}
	n.reading.handles++
	n.pins++
	return &handle{node: n, version: n.reading}
}

// reopen gives the handles of a node that names lead to no more another one that reads the same, or the newest version
// where there are none.
func (o *openFiles) reopen(ctx context.Context, n *node) (*handle, syscall.Errno) {
	if o.follow != nil {
		return o.follow.open(ctx, n)
	}
	o.awaitSettled(ctx, n)
	o.nodes.mu.Lock()
	l, h := n.live, n.shareLocked()
	join := h == nil && l != nil && !l.users.ended
	if join {
		n.pins++
		l.users.addReader()
	}
	o.nodes.mu.Unlock()
	switch {
	case h != nil:
		return h, 0
	case join:
		return o.awaitLive(ctx, l, false)
	}
	return o.openNewest(ctx, n)
}

// openNewest opens the newest version on a node that nothing is open on. The kernel forgets what it knows of the
// bytes before.
func (o *openFiles) openNewest(ctx context.Context, n *node) (*handle, syscall.Errno) {
	o.nodes.mu.Lock()
	last := n.last
	n.pins++
	o.nodes.mu.Unlock()
	defer o.nodes.unpin(n)
	v, rec, err := o.openVersion(ctx, n.ino(), last)
	if errors.Is(err, errGone) {
		return nil, syscall.ESTALE
	}
	if err != nil {
		return nil, fail(o.log, "open", n.ino(), err)
	}
	o.nodes.mu.Lock()
	free := n.live == nil && n.reading == nil
	if free {
		n.reading, n.last, n.kernel.known = v, rec, false
	}
	h := n.shareLocked()
	o.nodes.mu.Unlock()
	if !free {
		o.closeVersion(v)
	} else {
		o.cache.notifyAttr(n.id)
	}
	if h == nil {
		return nil, syscall.ESTALE
	}
	return h, 0
}
