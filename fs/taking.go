package fs

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// takings are the publishes that read one staged file. Bytes of it go away (a cut, a punched hole) only by the
// daemon, also where writes pass it by, and only when each of them has read all that it announced: a version is what
// the file was when it was taken. What a publish reads afterwards, because it has to begin again, fails with
// [replicate.ErrCut].
type takings struct {
	mu      sync.Mutex
	all     map[*taking]struct{}
	cutting bool
	changed chan struct{} // closed and made anew when something of the above, or taken of one, changes
}

// taking is one publish, from before its snapshot until the bytes are not needed any more.
type taking struct {
	of     *takings
	urgent chan struct{} // closed when somebody waits for the bytes to be read
	asked  bool          // it is; like taken protected by takings.mu
	taken  bool          // all of them were read
	cut    atomic.Bool   // set before the staged bytes change
}

// tellLocked wakes who waits. mu is held.
func (t *takings) tellLocked() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// newsLocked is closed at the next change. mu is held.
func (t *takings) newsLocked() <-chan struct{} {
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}

// begin counts a publish in, once no cut is under way: one takes as long as a truncate of the staged file.
func (t *takings) begin() *taking {
	k := &taking{of: t, urgent: make(chan struct{})}
	for {
		t.mu.Lock()
		if !t.cutting {
			if t.all == nil {
				t.all = map[*taking]struct{}{}
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

// read notes that all was read.
func (k *taking) read() {
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	k.taken = true
	k.of.tellLocked()
}

// end counts a publish out.
func (k *taking) end() {
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	delete(k.of.all, k)
	k.of.tellLocked()
}

// cut has do take bytes away when no publish needs them any more. It waits until those that are under way have read
// them, which it has them do at once, and ends with ctx.
func (t *takings) cut(ctx context.Context, do func() error) error {
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

// setSize makes a live file longer or shorter.
func (l *live) setSize(ctx context.Context, size int64) error {
	st, err := l.stage.Stat()
	if err != nil {
		return err
	}
	do := func() error { return l.stage.Truncate(size) }
	if size >= st.Size {
		return do() // the kernel lets nobody write meanwhile
	}
	return l.takings.cut(ctx, do)
}

// allocate is fallocate(2) on a live file.
func (l *live) allocate(ctx context.Context, mode uint32, offset, length int64) error {
	do := func() error { return l.stage.Allocate(mode, offset, length) }
	if mode&^unix.FALLOC_FL_KEEP_SIZE == 0 {
		return do()
	}
	return l.takings.cut(ctx, do)
}

// claimLocked keeps new publishes out if those that are in have read all, and hurries them else. mu is held.
func (t *takings) claimLocked() bool {
	free := !t.cutting
	for k := range t.all {
		if k.taken {
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

// uncut reads staged bytes as they were when they were taken, or not at all.
type uncut struct {
	src io.ReaderAt
	by  *taking
}

// ReadAt looks for a cut behind the read: one that came before it or in it was noted before bytes went away.
func (u uncut) ReadAt(p []byte, off int64) (int, error) {
	n, err := u.src.ReadAt(p, off)
	if u.by.cut.Load() {
		return 0, replicate.ErrCut
	}
	return n, err
}
