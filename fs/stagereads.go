package fs

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/replicate"
)

// stageReads are the publishes that read one staged file. Bytes of the file go away (a cut, a punched hole) only by the
// daemon, even where writes bypass it, and only when each publish has read all that it announced: a version is what the
// file was when it was taken. What a publish reads afterwards, because it has to begin again, fails with
// [replicate.ErrCut].
type stageReads struct {
	mu      sync.Mutex
	all     map[*stageRead]struct{}
	cutting bool
	changed chan struct{} // closed and re-created when something of the above, or whole of one, changes
}

// stageRead is one publish, from before its snapshot until the bytes are not needed any more.
type stageRead struct {
	of     *stageReads
	urgent chan struct{} // closed when somebody waits for the bytes to be read
	asked  bool          // it is; like whole protected by stageReads.mu
	whole  bool          // all of them were read
	cut    atomic.Bool   // set before the staged bytes change
}

// tellLocked wakes the goroutines that wait. mu is held.
func (t *stageReads) tellLocked() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// newsLocked returns a channel that is closed at the next change. mu is held.
func (t *stageReads) newsLocked() <-chan struct{} {
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}

// begin counts a publish in, once no cut is under way: one takes as long as a truncate of the staged file.
func (t *stageReads) begin() *stageRead {
	k := &stageRead{of: t, urgent: make(chan struct{})}
	for {
		t.mu.Lock()
		if !t.cutting {
			if t.all == nil {
				t.all = map[*stageRead]struct{}{}
			}
			t.all[k] = struct{}{}
			t.mu.Unlock()
			return k
		}
		news := t.newsLocked()
		t.mu.Unlock()
		<-news
	}
}

// readAll notes that all was read.
func (k *stageRead) readAll() {
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	k.whole = true
	k.of.tellLocked()
}

// end counts a publish out.
func (k *stageRead) end() {
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	delete(k.of.all, k)
	k.of.tellLocked()
}

// cut runs do, which takes bytes away, when no publish needs them any more. It waits until the publishes under way have
// read the bytes, and makes them do so at once. It ends with ctx.
func (t *stageReads) cut(ctx context.Context, do func() error) error {
	for {
		t.mu.Lock()
		if t.claimLocked() {
			t.mu.Unlock()
			break
		}
		news := t.newsLocked()
		t.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.cutting = false
		t.tellLocked()
	}()
	return do()
}

// claimLocked keeps new publishes out if the current ones have read all their bytes; else it hurries them. mu is held.
func (t *stageReads) claimLocked() bool {
	free := !t.cutting
	for k := range t.all {
		if k.whole {
			continue
		}
		free = false
		if !k.asked {
			k.asked = true
			close(k.urgent)
		}
	}
	if !free {
		return false
	}
	t.cutting = true
	for k := range t.all {
		k.cut.Store(true)
	}
	return true
}

// unlessCut reads staged bytes as they were when they were taken, or not at all.
type unlessCut struct {
	src io.ReaderAt
	by  *stageRead
}

// ReadAt checks for a cut after the read: a cut that came before the read or during it was noted before bytes went
// away.
func (u unlessCut) ReadAt(p []byte, off int64) (int, error) {
	n, err := u.src.ReadAt(p, off)
	if u.by.cut.Load() {
		return 0, replicate.ErrCut
	}
	return n, err
}
