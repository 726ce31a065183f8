package soft

import (
	"context"
	"fmt"
	"sync"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// CQ is a completion queue: a growing ring and a token that says "maybe not empty".
type CQ struct {
	ready  chan struct{} // capacity 1: the token
	closed chan struct{}
	dispatch

	mu     sync.Mutex // protects the fields below; taken after a pair's lock, never before
	ring   []rdma.Completion
	head   int
	n      int
	isDone bool
}

var _ rdma.Dispatcher = (*CQ)(nil)

// NewCQ makes a completion queue with room for depth completions before it grows.
func NewCQ(depth int) (*CQ, error) {
	const depthMax = 1 << 20
	if depth < 1 || depth > depthMax {
		return nil, fmt.Errorf("soft: completion queue of depth %d: %w", depth, rdma.ErrRequest)
	}
	return &CQ{
		ready:  make(chan struct{}, 1),
		closed: make(chan struct{}),
		ring:   make([]rdma.Completion, depth),
	}, nil
}

// Push adds a completion; on a closed queue it is dropped.
func (q *CQ) Push(c rdma.Completion) {
	q.mu.Lock()
	if q.isDone {
		q.mu.Unlock()
		return
	}
	if q.n == len(q.ring) {
		q.growLocked()
	}
	q.ring[(q.head+q.n)%len(q.ring)] = c
	q.n++
	q.mu.Unlock()
	if !q.expected() {
		q.signal()
	}
}

func (q *CQ) growLocked() {
	ring := make([]rdma.Completion, 2*len(q.ring))
	k := copy(ring, q.ring[q.head:])
	copy(ring[k:], q.ring[:q.head])
	q.ring, q.head = ring, 0
}

func (q *CQ) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// Poll moves up to len(out) completions into out.
func (q *CQ) Poll(out []rdma.Completion) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(out), q.n)
	for i := range n {
		out[i] = q.ring[q.head]
		q.ring[q.head] = rdma.Completion{}
		q.head = (q.head + 1) % len(q.ring)
	}
	q.n -= n
	return n
}

// Wait blocks until the queue is not empty. Any number of goroutines may wait: each passes the token on.
func (q *CQ) Wait(ctx context.Context) error {
	for {
		q.mu.Lock()
		n, done := q.n, q.isDone
		q.mu.Unlock()
		if done {
			return fmt.Errorf("soft: wait on completion queue: %w", rdma.ErrClosed)
		}
		if n > 0 {
			q.signal()
			return nil
		}
		select {
		case <-q.ready:
		case <-q.closed:
		case <-ctx.Done():
			return fmt.Errorf("soft: wait on completion queue: %w", context.Cause(ctx))
		}
	}
}

// Close drops what is queued and wakes all waiters.
func (q *CQ) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isDone {
		return nil
	}
	q.isDone = true
	q.n = 0
	close(q.closed)
	return nil
}
