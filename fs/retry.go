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

// An open, or truncate(2), that was answered with ESTALE is tried again by the kernel, once: it looks the name up and
// opens what it got. In between others may have opened and closed the file, so that this open would be ESTALE too, and
// the program would see it. So the lookup of that thread already opens the file, and the open takes what it finds.
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

// retries are the opens that come again, and the files that are open for them already.
type retries struct {
	files *openFiles
	nodes *nodeTable

	mu    sync.Mutex
	sent  map[retryKey]sentBack
	ahead map[retryKey]*aheadOpen
}

func newRetries(files *openFiles) *retries {
	return &retries{files: files, nodes: files.nodes, sent: map[retryKey]sentBack{}, ahead: map[retryKey]*aheadOpen{}}
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

// second says how an open relates to the one before. again: it is an open of the same node without a lookup, as when a
// descriptor is opened by /proc. last: the open was sent back and has looked up the name, or shared the lookup of
// another thread. The kernel does not come a third time.
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

// openAhead opens a file for a thread that looks it up because its open was sent back; lookup looks it up again. It
// returns the node that the open has to come to, with one more reference of the kernel, or nil.
func (r *retries) openAhead(ctx context.Context, tid uint32, rec meta.Inode, lookup func() (meta.Inode, error)) *node {
	if rec.Kind != meta.KindFile {
		return nil
	}
	for _, write := range []bool{true, false} {
		k := retryKey{tid, rec.Ino, write}
		if n := r.aheadAgain(k); n != nil {
			return n
		}
		if r.back(k) || r.back(k.anyInode()) {
			if h := r.openAnew(ctx, rec, write, lookup); h != nil {
				r.nodes.refer(h.node)
				r.keepAhead(retryKey{tid, h.node.ino(), write}, h)
				return h.node
			}
		}
	}
	return nil
}

// aheadAgain returns the node of a file that the lookup before has opened for the same open.
func (r *retries) aheadAgain(k retryKey) *node {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.ahead[k]
	if a == nil || a.lookups == aheadLookups {
		return nil
	}
	a.lookups++
	r.nodes.refer(a.h.node)
	return a.h.node
}

// openAnew opens what a name leads to now; nil if it can't.
func (r *retries) openAnew(ctx context.Context, rec meta.Inode, write bool, lookup func() (meta.Inode, error)) *handle {
	for range aheadTries {
		n := r.nodes.looked(rec)
		var h *handle
		var no syscall.Errno
		if write {
			h, no = r.files.acquireWrite(ctx, n, false, false)
		} else {
			h, no = r.files.acquireRead(ctx, n)
		}
		r.nodes.forget(n.id, 1)
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
func (r *retries) keepAhead(k retryKey, h *handle) {
	a := &aheadOpen{h: h, lookups: 1, taken: make(chan struct{})}
	r.mu.Lock()
	old := r.ahead[k]
	r.ahead[k] = a
	r.mu.Unlock()
	if old != nil {
		r.files.release(old.h)
		close(old.taken)
	}
	r.files.life.work.Go(func() {
		timer := time.NewTimer(retryTime)
		defer timer.Stop()
		select {
		case <-a.taken:
			return
		case <-timer.C:
		case <-r.files.life.ctx.Done():
		}
		r.mu.Lock()
		mine := r.ahead[k] == a
		if mine {
			delete(r.ahead, k)
		}
		r.mu.Unlock()
		if mine {
			r.files.release(h)
		}
	})
}

// takeAhead returns the handle that the lookup before an open made, or nil. It also returns nil if the handle is of
// another node, as two threads that look up one name at the same time share an answer.
func (r *retries) takeAhead(k retryKey, n *node) *handle {
	r.mu.Lock()
	a := r.ahead[k]
	if a != nil {
		delete(r.ahead, k)
		close(a.taken)
	}
	r.mu.Unlock()
	switch {
	case a == nil:
		return nil
	case a.h.node == n:
		return a.h
	}
	r.files.release(a.h)
	return nil
}

// acquire makes a handle for an open.
func (r *retries) acquire(ctx context.Context, n *node, in *fuse.OpenIn) (h *handle, no syscall.Errno) {
	k := retryKey{in.Pid, n.ino(), mayWrite(in.Flags)}
	again, last := r.second(k, n)
	if _, other := r.second(k.anyInode(), n); other {
		last = true
	}
	h = r.takeAhead(k, n)
	switch trunc := in.Flags&syscall.O_TRUNC != 0; {
	case h != nil && k.write:
		no = r.files.joined(ctx, h, mayMap(in.Flags), trunc)
	case h != nil:
	case k.write:
		h, no = r.files.acquireWrite(ctx, n, mayMap(in.Flags), trunc)
	default:
		h, no = r.files.acquireRead(ctx, n)
	}
	switch {
	case no != syscall.ESTALE:
	case !again && !last:
		r.sendBack(k, n)
		if _, err := r.files.names.state().Inode(n.ino()); errors.Is(err, meta.ErrNotFound) {
			r.sendBack(k.anyInode(), n)
		}
	case again && r.nodes.reattach(n) && k.write:
		return r.files.acquireWrite(ctx, n, mayMap(in.Flags), in.Flags&syscall.O_TRUNC != 0)
	case !k.write:
		return r.files.reopen(ctx, n)
	}
	return h, no
}

// acquireToCut makes a write handle for truncate(2), which the kernel tries again like an open.
func (r *retries) acquireToCut(ctx context.Context, n *node, tid uint32, empty bool) (*handle, syscall.Errno) {
	k := retryKey{tid, n.ino(), true}
	again, last := r.second(k, n)
	if h := r.takeAhead(k, n); h != nil {
		return h, 0
	}
	h, no := r.files.acquireWrite(ctx, n, false, empty)
	if no == syscall.ESTALE && !again && !last {
		r.sendBack(k, n)
	}
	return h, no
}
