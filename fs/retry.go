package fs

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// The kernel tries an open, or truncate(2), that was answered with ESTALE again, once: it looks the name up and opens what it got. In
// between others may have opened and closed the file, so that this open would be ESTALE too, and the program would see it. So the lookup
// of that thread opens the file already, and the open takes what it finds.
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

// aheadOpen is a file that a lookup opened.
type aheadOpen struct {
	h       *handle
	lookups int // that led to it; protected by retries.mu
	taken   chan struct{}
}

// sentBack is an open that got ESTALE.
type sentBack struct {
	at time.Time
	by *node // the one that was to be opened; nil if the file was to be created
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
		r.sent[k] = sentBack{now, by}
	}
}

// back reports whether an open was sent back just now, once.
func (r *retries) back(k retryKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.sent[k]
	delete(r.sent, k)
	return ok && time.Since(s.at) <= retryTime
}

// again reports whether an open of the same node was sent back just now and no name was looked up since, once: then there is none to
// look up, since a descriptor is opened by /proc.
func (r *retries) again(k retryKey, n *node) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.sent[k]
	if !ok || s.by != n {
		return false
	}
	delete(r.sent, k)
	return time.Since(s.at) <= retryTime
}

// openAhead opens a file for a thread that looks it up because its open was sent back. It gives the node that the open has to come to,
// with one more reference of the kernel, or nil.
func (f *fileSystem) openAhead(ctx context.Context, tid uint32, rec meta.Inode) *node {
	if rec.Kind != meta.KindFile {
		return nil
	}
	for _, write := range []bool{true, false} {
		k := retryKey{tid, rec.Ino, write}
		if n := f.aheadAgain(k); n != nil {
			return n
		}
		if f.retries.back(k) {
			if h := f.openAnew(ctx, rec, write); h != nil {
				f.nodes.refer(h.node)
				f.keepAhead(k, h)
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

// openAnew opens what an inode number is looked up as now; nil if it can't.
func (f *fileSystem) openAnew(ctx context.Context, rec meta.Inode, write bool) *handle {
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
		if rec, err = f.names().Inode(rec.Ino); no != syscall.ESTALE || err != nil {
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

// takeAhead gives the handle that the lookup before an open made, or nil. astray says that there is one of another node: two threads that
// look up one name at a time share an answer.
func (f *fileSystem) takeAhead(k retryKey, n *node) (h *handle, astray bool) {
	f.retries.mu.Lock()
	a := f.retries.ahead[k]
	if a != nil {
		delete(f.retries.ahead, k)
		close(a.taken)
	}
	f.retries.mu.Unlock()
	switch {
	case a == nil:
		return nil, false
	case a.h.node == n:
		return a.h, false
	}
	f.release(a.h, 0)
	return nil, true
}

// acquire makes a handle for an open.
func (f *fileSystem) acquire(ctx context.Context, n *node, in *fuse.OpenIn) (h *handle, no syscall.Errno) {
	k := retryKey{in.Pid, n.ino(), mayWrite(in.Flags)}
	h, astray := f.takeAhead(k, n)
	switch trunc := in.Flags&syscall.O_TRUNC != 0; {
	case h != nil && k.write:
		no = f.joined(ctx, h, mayMap(in.Flags), trunc)
	case h != nil:
	case k.write:
		h, no = f.acquireWrite(ctx, n, mayMap(in.Flags), trunc)
	default:
		h, no = f.acquireRead(ctx, n)
	}
	if no != syscall.ESTALE {
		return h, no
	}
	again := f.retries.again(k, n)
	if !k.write && (again || astray) {
		h, no = f.reopen(ctx, n)
	}
	if no == syscall.ESTALE && !again {
		f.retries.sendBack(k, n)
	}
	return h, no
}

// acquireToCut makes a write handle for truncate(2), which the kernel tries again like an open.
func (f *fileSystem) acquireToCut(ctx context.Context, n *node, tid uint32, empty bool) (*handle, syscall.Errno) {
	k := retryKey{tid, n.ino(), true}
	if h, _ := f.takeAhead(k, n); h != nil {
		return h, 0
	}
	h, no := f.acquireWrite(ctx, n, false, empty)
	if no == syscall.ESTALE && !f.retries.again(k, n) {
		f.retries.sendBack(k, n)
	}
	return h, no
}

// reopen gives the handles of a node that names lead to no more another one that reads the same.
func (f *fileSystem) reopen(ctx context.Context, n *node) (*handle, syscall.Errno) {
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
	}
	return nil, syscall.ESTALE
}
