package fs

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// version is one committed version that read handles of one node share. handles is protected by table.mu.
type version struct {
	id      meta.ContentID
	size    int64
	holes   int64
	reader  replicate.ContentReader // nil for an empty file
	backing backing
	handles int
}

// errGone says that an inode was removed between its lookup and its open, and bytes that rode in the log with it.
var errGone = fmt.Errorf("fs: removed with its bytes: %w", meta.ErrNotFound)

// openVersion opens the current bytes of an inode. A version that is retired while it is being opened is tried
// again with its successor.
func (f *fileSystem) openVersion(ctx context.Context, ino meta.Ino, last meta.Inode) (*version, meta.Inode, error) {
	const tries = 5
	var err error
	for range tries {
		rec, lookErr := f.names().Inode(ino)
		if errors.Is(lookErr, meta.ErrNotFound) {
			rec = last
		} else if lookErr != nil {
			return nil, rec, lookErr
		}
		v := &version{id: rec.Content, size: rec.Size, holes: rec.Holes}
		if rec.Content.IsZero() {
			return v, rec, nil
		}
		v.reader, err = f.cluster.OpenContent(ctx, rec.Content)
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

func (v *version) close() error {
	if v.reader == nil {
		return nil
	}
	return v.reader.Close()
}

// acquireRead makes a read handle on a node. ESTALE sends the kernel to look the name up again.
func (f *fileSystem) acquireRead(ctx context.Context, n *node) (*handle, syscall.Errno) {
	if h, no := f.joinForRead(ctx, n); h != nil || no != 0 {
		return h, no
	}
	defer f.nodes.unpin(n)
	f.nodes.mu.Lock()
	last := n.last
	f.nodes.mu.Unlock()
	v, rec, err := f.openVersion(ctx, n.ino(), last)
	if errors.Is(err, errGone) {
		return nil, syscall.ESTALE // its name may have been given to another file
	}
	if err != nil {
		return nil, f.fail("open", n.ino(), err)
	}
	h, spare := f.shareVersion(n, v, rec)
	if spare != nil {
		f.closeVersion(spare)
	}
	if h == nil {
		return nil, syscall.ESTALE
	}
	return h, 0
}

// joinForRead gives a handle on the node's live file, or pins the node and returns nil.
func (f *fileSystem) joinForRead(ctx context.Context, n *node) (*handle, syscall.Errno) {
	f.awaitSettled(ctx, n)
	f.nodes.mu.Lock()
	if n.live != nil && n.live.ended {
		f.nodes.detachLocked(n)
	}
	if n.detached {
		f.nodes.mu.Unlock()
		return nil, syscall.ESTALE
	}
	if n.live == nil && (n.removed || n.gone) {
		if h := n.shareLocked(); h != nil {
			f.nodes.mu.Unlock()
			return h, 0
		}
	}
	n.pins++
	if n.live == nil {
		f.nodes.mu.Unlock()
		return nil, 0
	}
	l := n.live
	l.handles++
	l.read = true
	f.nodes.mu.Unlock()
	return f.awaitLive(ctx, l, false)
}

// shareVersion puts an opened version, or the equal one that is there, under a new handle. spare is to be closed.
func (f *fileSystem) shareVersion(n *node, v *version, rec meta.Inode) (h *handle, spare *version) {
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	switch {
	case n.live != nil || n.detached && n.reading == nil:
		return nil, v // somebody began to write, or a commit came in between
	case n.reading == nil && f.nodes.toldOtherLocked(n, v.id, v.size):
		return nil, v
	case n.reading == nil:
		n.reading = v
		n.last = rec
	case n.reading.id != v.id || n.reading.size != v.size:
		f.nodes.detachLocked(n)
		return nil, v
	default:
		spare = v
	}
	return n.shareLocked(), spare
}

// shareLocked is one more handle on the version that handles of the node read; nil if there is none. table.mu is held.
func (n *node) shareLocked() *handle {
	if n.reading == nil {
		return nil
	}
	n.reading.handles++
	n.pins++
	return &handle{node: n, version: n.reading}
}

// releaseVersion ends a read handle.
func (f *fileSystem) releaseVersion(h *handle) {
	n, v := h.node, h.version
	f.nodes.mu.Lock()
	v.handles--
	last := v.handles == 0
	if last && n.reading == v {
		n.reading = nil
	}
	n.pins--
	f.nodes.dropLocked(n)
	f.nodes.mu.Unlock()
	if last {
		f.closeVersion(v)
	}
}

func (f *fileSystem) closeVersion(v *version) {
	f.detachBacking(&v.backing)
	if err := v.close(); err != nil {
		f.log.Warn("close content", "content", v.id, "err", err)
	}
}
