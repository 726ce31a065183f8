package replicate

import (
	"context"
	"sync"

	"github.com/rdmcfs/rdmcfs/meta"
)

// verdictQueue holds events of the log until they are carried out, in order, so that apply never waits for a disk.
// It is as long as the log is ahead of the disk.
type verdictQueue struct {
	mu   sync.Mutex
	list []meta.Event
	wake chan struct{}
}

func newVerdictQueue() *verdictQueue { return &verdictQueue{wake: make(chan struct{}, 1)} }

func (q *verdictQueue) add(e meta.Event) {
	q.mu.Lock()
	q.list = append(q.list, e)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *verdictQueue) takeAll() []meta.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := q.list
	q.list = nil
	return list
}

// run carries events out until ctx ends. What is left then is found again at the next start.
func (q *verdictQueue) run(ctx context.Context, carryOut func(meta.Event)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
		for _, e := range q.takeAll() {
			if ctx.Err() != nil {
				return
			}
			carryOut(e)
		}
	}
}
