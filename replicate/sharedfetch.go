package replicate

import (
	"context"
	"sync"

	"github.com/rdmcfs/rdmcfs/meta"
)

// sharedFetches are the blocks that are being fetched. Readers that want the same block meanwhile wait for that fetch:
// the kernel reads ahead in many pieces of a block at once.
type sharedFetches struct {
	mu      sync.Mutex
	running map[fetchKey]*sharedFetch
}

// fetchKey names a block and the node that is not asked for it.
type fetchKey struct {
	cacheKey
	exclude meta.NodeID
}

// sharedFetch is one fetch and its readers.
type sharedFetch struct {
	readers int // protected by sharedFetches.mu
	cancel  context.CancelFunc
	done    chan struct{} // closed by the fetch when block and err are set
	block   []byte
	err     error
}

// get gives the block of a fetch that runs, or of a new one that calls fetch. A reader whose context ends leaves the
// others their fetch; the last one ends it and waits for its end.
func (s *sharedFetches) get(
	ctx context.Context, key fetchKey, fetch func(context.Context) ([]byte, error),
) ([]byte, error) {
	f := s.enter(ctx, key, fetch)
	defer s.leave(key, f)
	select {
	case <-f.done:
		return f.block, f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// enter counts a reader of a fetch in, and begins the fetch if none runs.
func (s *sharedFetches) enter(
	ctx context.Context, key fetchKey, fetch func(context.Context) ([]byte, error),
) *sharedFetch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.running[key]; f != nil {
		f.readers++
		return f
	}
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &sharedFetch{readers: 1, cancel: cancel, done: make(chan struct{})}
	s.running[key] = f
	go func() { // the last reader waits for it
		defer close(f.done)
		f.block, f.err = fetch(inner)
		s.end(key, f)
	}()
	return f
}

// leave counts a reader out.
func (s *sharedFetches) leave(key fetchKey, f *sharedFetch) {
	s.mu.Lock()
	f.readers--
	last := f.readers == 0
	if last {
		s.endLocked(key, f) // nobody may join what is about to be cancelled
	}
	s.mu.Unlock()
	if last {
		f.cancel()
		<-f.done
	}
}

// end makes the next reader begin another fetch.
func (s *sharedFetches) end(key fetchKey, f *sharedFetch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(key, f)
}

func (s *sharedFetches) endLocked(key fetchKey, f *sharedFetch) {
	if s.running[key] == f {
		delete(s.running, key)
	}
}
