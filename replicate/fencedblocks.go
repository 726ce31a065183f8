package replicate

import (
	"sync"

	"github.com/rdmcfs/rdmcfs/meta"
)

// fencedBlocks are bytes of sessions that were fenced. They are kept for a while.
type fencedBlocks struct {
	cfg   *Config
	votes *votes
	quit  chan struct{} // closed when the member closes
	wg    sync.WaitGroup

	mu     sync.Mutex
	kept   map[meta.ContentID]struct{}
	closed bool
}

func newFencedBlocks(cfg *Config, votes *votes) *fencedBlocks {
	return &fencedBlocks{cfg: cfg, votes: votes, quit: make(chan struct{}), kept: make(map[meta.ContentID]struct{})}
}

// stop keeps nothing any more: what is left is dropped at the next start. It does not wait.
func (f *fencedBlocks) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		close(f.quit)
	}
}

// keep keeps what was received of a session that was fenced, for Tuning.KeepFenced or until its space is needed.
func (f *fencedBlocks) keep(id meta.ContentID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.kept[id]; known || f.closed {
		return
	}
	f.kept[id] = struct{}{}
	f.wg.Go(func() {
		over, stop := f.cfg.Clock.After(f.cfg.Tuning.KeepFenced)
		defer stop()
		select {
		case <-over:
			f.dropOne(id)
		case <-f.quit: // dropped at the next start
		}
	})
}

// dropOne drops what is kept of a session, unless another one has taken it.
func (f *fencedBlocks) dropOne(id meta.ContentID) {
	f.mu.Lock()
	delete(f.kept, id)
	f.mu.Unlock()
	f.votes.drop(id)
}

// dropAll drops all that is kept, as its space is needed; it is false if there is nothing.
func (f *fencedBlocks) dropAll() bool {
	f.mu.Lock()
	var list []meta.ContentID
	for id := range f.kept {
		list = append(list, id)
	}
	f.mu.Unlock()
	for _, id := range list {
		f.dropOne(id)
	}
	return len(list) > 0
}
