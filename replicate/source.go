package replicate

import (
	"context"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/internal/content"
)

// cachedMax is how many content blocks the root keeps at hand when the blocks of the group are smaller.
const cachedMax = 4

// copySource gives the blocks of a session at its root. Each block is read from the staged bytes once, stored
// in the root's own copy, and served from that ever after, so all members get the same bytes whatever happens
// to the staged ones.
type copySource struct {
	copy       *localCopy
	layout     *content.Layout
	staged     io.ReaderAt
	groupBlock int64

	mu     sync.Mutex
	busy   map[int64]chan struct{} // blocks being read from the staged bytes
	cached map[int64]*cachedBlock
	order  []int64
	full   chan struct{} // closed when every block was read
	broken chan struct{} // closed when one could not be
	left   int64
	err    error
}

type cachedBlock struct {
	buf   *[content.BlockBytes]byte
	ready chan struct{} // closed when buf or err is set
	err   error
	used  int  // readers; guarded by copySource.mu like old
	old   bool // no longer in the cache
}

func newCopySource(local *localCopy, staged io.ReaderAt, groupBlock int64) *copySource {
	s := &copySource{
		copy: local, layout: local.layout, staged: staged, groupBlock: groupBlock,
		busy: make(map[int64]chan struct{}), cached: make(map[int64]*cachedBlock),
		full: make(chan struct{}), broken: make(chan struct{}), left: local.recv.Missing(),
	}
	if s.left == 0 {
		close(s.full)
	}
	return s
}

// ReadBlock fills buf with block i of the group.
func (s *copySource) ReadBlock(i uint64, buf []byte) error {
	off := int64(i) * s.groupBlock
	c, skip := off/content.BlockBytes, off%content.BlockBytes
	if s.groupBlock == content.BlockBytes {
		return s.whole(c, buf)
	}
	b, err := s.hold(c)
	if err != nil {
		return err
	}
	copy(buf, b.buf[skip:s.layout.BlockLen(c)])
	s.letGo(b)
	return nil
}

// whole reads a block of the content straight into buf.
func (s *copySource) whole(c int64, buf []byte) error {
	for {
		wait, have := s.claim(c)
		switch {
		case have:
			return s.copy.readBlock(c, buf)
		case wait != nil:
			<-wait // for one read of a block
		default:
			return s.fill(c, buf)
		}
	}
}

// claim takes a block that nobody has read; otherwise it says that it is stored, or what to wait for.
func (s *copySource) claim(c int64) (wait chan struct{}, have bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.busy[c]; w != nil {
		return w, false
	}
	if s.copy.recv.Has(c) {
		return nil, true
	}
	s.busy[c] = make(chan struct{})
	return nil, false
}

// fill reads a claimed block from the staged bytes into buf and stores it.
func (s *copySource) fill(c int64, buf []byte) error {
	buf = buf[:s.layout.BlockLen(c)]
	err := s.layout.ReadBlock(s.staged, c, buf)
	if err == nil {
		err = s.copy.recv.WriteBlock(c, buf, nil)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.busy[c])
	delete(s.busy, c)
	if err != nil {
		if s.err == nil {
			s.err = err
			close(s.broken)
		}
		return err
	}
	if s.left--; s.left == 0 {
		close(s.full)
	}
	return nil
}

// failure is the first error of the staged bytes or the local disk.
func (s *copySource) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// hold returns a content block in memory, until letGo. The first caller reads it; others wait for that.
func (s *copySource) hold(c int64) (*cachedBlock, error) {
	s.mu.Lock()
	b := s.cached[c]
	first := b == nil
	if first {
		b = &cachedBlock{buf: blockPool.Get().(*[content.BlockBytes]byte), ready: make(chan struct{})}
		s.cached[c] = b
		if s.order = append(s.order, c); len(s.order) > cachedMax {
			s.evictLocked(s.order[0])
			s.order = s.order[1:]
		}
	}
	b.used++
	s.mu.Unlock()
	if first {
		b.err = s.whole(c, b.buf[:s.layout.BlockLen(c)])
		close(b.ready)
	}
	<-b.ready // for one read of a block
	if b.err != nil {
		s.letGo(b)
		return nil, b.err
	}
	return b, nil
}

func (s *copySource) evictLocked(c int64) {
	b := s.cached[c]
	delete(s.cached, c)
	if b.old = true; b.used == 0 {
		blockPool.Put(b.buf)
	}
}

func (s *copySource) letGo(b *cachedBlock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.used--; b.used == 0 && b.old {
		blockPool.Put(b.buf)
	}
}

// readAhead reads and stores all blocks of a small content, which stay in memory. A source that fails while its group
// asks for blocks fails the group, and with it the sessions of others.
func (s *copySource) readAhead() error {
	for c := range s.layout.Blocks() {
		b, err := s.hold(c)
		if err != nil {
			return err
		}
		s.letGo(b)
	}
	return nil
}

// release gives the cached blocks back.
func (s *copySource) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.order {
		s.evictLocked(c)
	}
	s.order = nil
}

// readRest reads what no group asked for: all of it when there are no members.
func (s *copySource) readRest(ctx context.Context) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(int64(runtime.GOMAXPROCS(0)), s.layout.Blocks()) {
		wg.Go(func() {
			buf := blockPool.Get().(*[content.BlockBytes]byte)
			defer blockPool.Put(buf)
			for c := next.Add(1) - 1; c < s.layout.Blocks() && ctx.Err() == nil; c = next.Add(1) - 1 {
				if s.copy.recv.Has(c) {
					continue
				}
				if s.whole(c, buf[:s.layout.BlockLen(c)]) != nil {
					return // kept in s.err
				}
			}
		})
	}
	wg.Wait()
	if err := s.failure(); err != nil {
		return err
	}
	return ctx.Err()
}

// storedSource gives the blocks of a content that is held here, for catch-up.
type storedSource struct {
	reader     *content.Reader
	layout     *content.Layout // of the shape that is sent, which need not be the stored one
	groupBlock int64

	mu  sync.Mutex
	err error
}

// ReadBlock fills buf with block i of the group.
func (s *storedSource) ReadBlock(i uint64, buf []byte) error {
	err := s.layout.ReadStream(s.reader, buf, int64(i)*s.groupBlock)
	if err != nil {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
	}
	return err
}

func (s *storedSource) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
