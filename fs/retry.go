package fs

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// The kernel tries an open, or truncate(2), that was answered with ESTALE again, once: it looks the name up and opens
// what it got. In between others may have opened and closed the file, so that this open would be ESTALE too, and the
// program would see it. So the lookup of that thread opens the file already, and the open takes what it finds.
const (
	retryTime  = time.Second // from ESTALE to the lookup, and from there to the open
	aheadTries = 20          // by the lookup, against others that open and close
	retriesMax = 1024        // that are remembered
	// aheadLookups is how often a name is looked up for one open: to find that its entry is old, and for a new one.
	aheadLookups = 2
)

// retryKey is an open that is on its way again.
type retryKey struct {
	tid   uint32
	ino   meta.Ino
	write bool
}

// anyInode is the key of an open whose inode is gone: its name may lead to another one.
func (k retryKey) anyInode() retryKey { return retryKey{tid: k.tid, write: k.write} }

// aheadOpen is a file that a lookup opened.
type aheadOpen struct {
	h       *handle
	lookups int // that led to it; protected by retries.mu
	taken   chan struct{}
}

// sentBack is an open that got ESTALE.
type sentBack struct {
	at     time.Time
	by     *node // the one that was to be opened; nil if the file was to be created
	looked bool  // that thread has looked the name up since
}

type retries struct {
	mu    sync.Mutex
	sent  map[retryKey]sentBack
	ahead map[retryKey]*aheadOpen
}

func newRetries() *retries {
	return &retries{sent: map[retryKey]sentBack{}, ahead: map[retryKey]*aheadOpen{}}
}

// sendBack notes that an open gets ESTALE.
func (r *retries) sendBack(k retryKey, by *node) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sent) >= retriesMax {
		for k, s := range r.sent {
			if now.Sub(s.at) > retryTime {
				delete(r.sent, k)
			}
		}
	}
	if len(r.sent) < retriesMax {
		r.sent[k] = sentBack{at: now, by: by}
	}
}

// back reports whether an open was sent back just now, to the first lookup after it.
func (r *retries) back(k retryKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.sent[k]
	if !ok || s.looked {
		return false
	}
	s.looked = true
	r.sent[k] = s
	return time.Since(s.at) <= retryTime
}

// second says what an open is to the one before: again is one of the same node without a lookup, as a descriptor is
// opened by /proc, last one that was sent back and has looked up the name, or shared the lookup of another thread.
// The kernel does not come a third time.
func (r *retries) second(k retryKey, n *node) (again, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.sent[k]
	delete(r.sent, k)
	if !ok || time.Since(s.at) > retryTime {
		return false, false
	}
	again = s.by == n && !s.looked
	return again, !again
}

// openAhead opens a file for a thread that looks it up because its open was sent back; lookup does it again. It gives
// the node that the open has to come to, with one more reference of the kernel, or nil.
func (f *fileSystem) openAhead(ctx context.Context, tid uint32, rec meta.Inode, lookup func() (meta.Inode, error)) *node {
	if rec.Kind != meta.KindFile {
		return nil
	}
	for _, write := range []bool{true, false} {
		k := retryKey{tid, rec.Ino, write}
		if n := f.aheadAgain(k); n != nil {
			return n
		}
		if f.retries.back(k) || f.retries.back(k.anyInode()) {
			if h := f.openAnew(ctx, rec, write, lookup); h != nil {
				f.nodes.refer(h.node)
				f.keepAhead(retryKey{tid, h.node.ino(), write}, h)
				return h.node
			}
		}
	}
	return nil
}

// aheadAgain gives the node of a file that the lookup before has opened for the same open.
func (f *fileSystem) aheadAgain(k retryKey) *node {
	f.retries.mu.Lock()
	defer f.retries.mu.Unlock()
	a := f.retries.ahead[k]
	if a == nil || a.lookups == aheadLookups {
		return nil
	}
	a.lookups++
	f.nodes.refer(a.h.node)
	return a.h.node
}

// openAnew opens what a name leads to now; nil if it can't.
func (f *fileSystem) openAnew(ctx context.Context, rec meta.Inode, write bool, lookup func() (meta.Inode, error)) *handle {
	for range aheadTries {
		n := f.nodes.looked(rec)
		var h *handle
		var no syscall.Errno
		if write {
			h, no = f.acquireWrite(ctx, n, false, false)
		} else {
			h, no = f.acquireRead(ctx, n)
		}
		f.nodes.forget(n.id, 1)
		if no == 0 {
			return h
		}
		var err error
		if rec, err = lookup(); no != syscall.ESTALE || err != nil || rec.Kind != meta.KindFile {
			return nil
		}
	}
	return nil
}

// keepAhead keeps a handle until the open comes, or not.
func (f *fileSystem) keepAhead(k retryKey, h *handle) {
	a := &aheadOpen{h: h, lookups: 1, taken: make(chan struct{})}
	f.retries.mu.Lock()
	old := f.retries.ahead[k]
	f.retries.ahead[k] = a
	f.retries.mu.Unlock()
	if old != nil {
		f.release(old.h, 0)
		close(old.taken)
	}
	f.work.Go(func() {
		timer := time.NewTimer(retryTime)
		defer timer.Stop()
		select {
		case <-a.taken:
			return
		case <-timer.C:
		case <-f.ctx.Done():
		}
		f.retries.mu.Lock()
		mine := f.retries.ahead[k] == a
		if mine {
			delete(f.retries.ahead, k)
		}
		f.retries.mu.Unlock()
		if mine {
			f.release(h, 0)
		}
	})
}

// takeAhead gives the handle that the lookup before an open made, or nil; also if it is of another node, as two
// threads that look up one name at a time share an answer.
func (f *fileSystem) takeAhead(k retryKey, n *node) *handle {
	f.retries.mu.Lock()
	a := f.retries.ahead[k]
	if a != nil {
		delete(f.retries.ahead, k)
		close(a.taken)
	}
	f.retries.mu.Unlock()
	switch {
	case a == nil:
		return nil
	case a.h.node == n:
		return a.h
	}
	f.release(a.h, 0)
	return nil
}

// acquire makes a handle for an open.
func (f *fileSystem) acquire(ctx context.Context, n *node, in *fuse.OpenIn) (h *handle, no syscall.Errno) {
	k := retryKey{in.Pid, n.ino(), mayWrite(in.Flags)}
	again, last := f.retries.second(k, n)
	if _, other := f.retries.second(k.anyInode(), n); other {
		last = true
	}
	h = f.takeAhead(k, n)
	switch trunc := in.Flags&syscall.O_TRUNC != 0; {
	case h != nil && k.write:
		no = f.joined(ctx, h, mayMap(in.Flags), trunc)
	case h != nil:
	case k.write:
		h, no = f.acquireWrite(ctx, n, mayMap(in.Flags), trunc)
	default:
		h, no = f.acquireRead(ctx, n)
	}
	switch {
	case no != syscall.ESTALE:
	case !again && !last:
		f.retries.sendBack(k, n)
		if _, err := f.names().Inode(n.ino()); errors.Is(err, meta.ErrNotFound) {
			f.retries.sendBack(k.anyInode(), n)
		}
	case !k.write:
		return f.reopen(ctx, n, last)
	}
	return h, no
}

// acquireToCut makes a write handle for truncate(2), which the kernel tries again like an open.
func (f *fileSystem) acquireToCut(ctx context.Context, n *node, tid uint32, empty bool) (*handle, syscall.Errno) {
	k := retryKey{tid, n.ino(), true}
	again, last := f.retries.second(k, n)
	if h := f.takeAhead(k, n); h != nil {
		return h, 0
	}
	h, no := f.acquireWrite(ctx, n, false, empty)
	if no == syscall.ESTALE && !again && !last {
		f.retries.sendBack(k, n)
	}
	return h, no
}

// reopen gives the handles of a node that names lead to no more another one that reads the same. Where there are
// none, one that was looked up just now gives the newest version.
func (f *fileSystem) reopen(ctx context.Context, n *node, looked bool) (*handle, syscall.Errno) {
	f.awaitSettled(ctx, n)
	f.nodes.mu.Lock()
	l, h := n.live, n.shareLocked()
	join := h == nil && l != nil && !l.ended
	if join {
		n.pins++
		l.handles++
		l.read = true
	}
	f.nodes.mu.Unlock()
	switch {
	case h != nil:
		return h, 0
	case join:
		return f.awaitLive(ctx, l, false)
	case looked:
		return f.openNewest(ctx, n)
	}
	return nil, syscall.ESTALE
}

// openNewest opens the newest version on a node that nothing is open on. The kernel forgets what it knows of the
// bytes before.
func (f *fileSystem) openNewest(ctx context.Context, n *node) (*handle, syscall.Errno) {
	f.nodes.mu.Lock()
	last := n.last
	n.pins++
	f.nodes.mu.Unlock()
	defer f.nodes.unpin(n)
	v, rec, err := f.openVersion(ctx, n.ino(), last)
	if err != nil {
		return nil, f.fail("open", n.ino(), err)
	}
	f.nodes.mu.Lock()
	free := n.live == nil && n.reading == nil
	if free {
		n.reading, n.last, n.told.known = v, rec, false
	}
	h := n.shareLocked()
	f.nodes.mu.Unlock()
	if !free {
		f.closeVersion(v)
	} else {
		f.notifier.attrNow(n.id)
	}
	if h == nil {
		return nil, syscall.ESTALE
	}
	return h, 0
}
