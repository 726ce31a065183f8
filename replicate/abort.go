package replicate

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// abortRetry is how long an abort that the log did not take waits.
const abortRetry = time.Second

// givenUp is a session that was given up. ended is closed when the log has ended it.
type givenUp struct {
	id    meta.ContentID
	ended chan struct{}
}

// abortQueue reports to the log which sessions of this node were given up, until the log has taken the reports. What is
// lost with the process is fenced with its incarnation.
type abortQueue struct {
	cfg Config

	mu   sync.Mutex
	list []givenUp
	wake chan struct{}
}

func newAbortQueue(cfg Config) *abortQueue {
	return &abortQueue{cfg: cfg, wake: make(chan struct{}, 1)}
}

// add adds a session. The channel is closed when the log has ended it.
func (q *abortQueue) add(id meta.ContentID) <-chan struct{} {
	ended := make(chan struct{})
	q.mu.Lock()
	q.list = append(q.list, givenUp{id, ended})
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return ended
}

func (q *abortQueue) first() (meta.ContentID, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return meta.ContentID{}, false
	}
	return q.list[0].id, true
}

func (q *abortQueue) pop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	close(q.list[0].ended)
	q.list = q.list[1:]
}

// run proposes until ctx ends.
func (q *abortQueue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
		for id, ok := q.first(); ok && ctx.Err() == nil; id, ok = q.first() {
			if !q.settled(ctx, id) {
				pause(ctx, q.cfg.Clock, abortRetry)
				continue
			}
			q.pop()
		}
	}
}

// settled reports whether the log has ended the session.
func (q *abortQueue) settled(ctx context.Context, id meta.ContentID) bool {
	if over, err := q.cfg.Names.Decided(id); err == nil && over {
		return true
	}
	if self := q.cfg.Self(); id.Incarnation != self.Incarnation {
		return true // fenced with its incarnation
	}
	res, err := q.cfg.Log.Propose(ctx, &meta.Abort{Session: id})
	if err != nil || res.Errno == syscall.EAGAIN {
		q.cfg.Logger.Debug("abort not in the log yet", "session", id, "errno", res.Errno, "err", err)
		return false
	}
	return true
}
