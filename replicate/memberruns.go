package replicate

import (
	"fmt"
	"sync"

	"github.com/rdmcfs/rdmcfs/meta"
)

// memberRuns are the sessions of other nodes that this node takes part in.
type memberRuns struct {
	quit chan struct{} // closed when the member closes
	wg   sync.WaitGroup

	mu     sync.Mutex
	runs   map[meta.ContentID]*memberRun
	closed bool
}

func newMemberRuns() *memberRuns {
	return &memberRuns{quit: make(chan struct{}), runs: make(map[meta.ContentID]*memberRun)}
}

// stop lets no session begin any more, and ends those that run. It does not wait for them.
func (r *memberRuns) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		close(r.quit)
	}
}

// pushed adds to bytes what the roots of the sessions push, by node, as far as it came here.
func (r *memberRuns) pushed(bytes map[meta.NodeID]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, h := range r.runs {
		bytes[id.Node] += h.pushed.Load()
	}
}

func (r *memberRuns) find(id meta.ContentID) *memberRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs[id]
}

func (r *memberRuns) forget(h *memberRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs[h.id] == h {
		delete(r.runs, h.id)
	}
}

// enter finds a session, or starts it and runs it until it is over.
func (r *memberRuns) enter(id meta.ContentID, start func() *memberRun) (*memberRun, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	if h := r.runs[id]; h != nil {
		return h, nil
	}
	if len(r.runs) >= runsMax {
		return nil, fmt.Errorf("replicate: %d sessions here already", runsMax)
	}
	h := start()
	r.runs[id] = h
	r.wg.Go(h.run)
	return h, nil
}
