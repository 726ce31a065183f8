package fs

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// handle is an open file or directory: of a file either version or live is set.
type handle struct {
	node     *node
	version  *version
	live     *live
	followed *followed // of a mount that follows: then neither of them
	writer   bool
	silent   bool          // the kernel sends no FLUSH for it; constant from the open on
	opener   uint32        // the thread that opened it; constant
	flushed  bool          // a descriptor of it was closed, perhaps the last; protected by nodeTable.mu
	maps     bool          // it allows a writable shared mapping; constant from the open on
	since    time.Duration // the boot, when it was opened; constant from the open on
	opened   state         // the staged file at the open, if the open itself changed nothing; constant from the open on
	killed   state         // the staged file when a command of the opener that had written was killed; under live.mu

	drops atomic.Bool // its open did not allow the kernel to keep the page cache, and nothing was read of it yet

	dir *dirStream
}

// staged is the live file of a handle, or nil.
func (h *handle) staged() *live {
	if h.live == nil && h.version != nil {
		return h.version.live.Load()
	}
	return h.live
}

// handles numbers open handles for the kernel. Numbers are not used again.
type handles struct {
	mu   sync.Mutex
	byID map[uint64]*handle
	next uint64
}

func newHandles() *handles { return &handles{byID: map[uint64]*handle{}, next: 1} }

func (t *handles) add(h *handle) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := t.next
	t.next++
	t.byID[id] = h
	return id
}

func (t *handles) get(id uint64) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

func (t *handles) remove(id uint64) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.byID[id]
	delete(t.byID, id)
	return h
}

// dirStream is what an open directory has listed so far, so that offsets stay what they were.
type dirStream struct {
	mu      sync.Mutex
	entries []meta.Dirent
	done    bool
}
