package clusterlock

import (
	"context"
	"sync"

	"github.com/rdmcfs/rdmcfs/meta"
)

// rounds are the questions to a quorum whether this node is up: one under way, and one that waits, which all calls
// share that came since the first began.
type rounds struct {
	roundsMu  sync.Mutex
	cur, next *confirmation
}

// confirmation is one question. err is set before done is closed.
type confirmation struct {
	lease meta.Lease
	done  chan struct{}
	err   error
}

// confirm waits for the answer to a question that is asked from now on.
func (r *rounds) confirm(ctx context.Context, interrupted <-chan struct{}, t *Locks, lease meta.Lease) error {
	q := r.join(t, lease)
	select {
	case <-q.done:
	case <-interrupted:
		return ErrInterrupted
	case <-ctx.Done():
		return ctx.Err()
	}
	if q.lease != lease {
		return ErrEnded
	}
	return q.err
}

func (r *rounds) join(t *Locks, lease meta.Lease) *confirmation {
	r.roundsMu.Lock()
	defer r.roundsMu.Unlock()
	switch {
	case r.cur == nil:
		q := &confirmation{lease: lease, done: make(chan struct{})}
		r.cur = q
		t.work.Go(func() { r.run(t, q) })
		return q
	case r.next == nil || r.next.lease.Incarnation < lease.Incarnation:
		next := &confirmation{lease: lease, done: make(chan struct{})}
		if r.next != nil { // of an incarnation that has ended
			r.next.err = ErrEnded
			close(r.next.done)
		}
		r.next = next
	}
	return r.next
}

func (r *rounds) run(t *Locks, q *confirmation) {
	for q != nil {
		q.err = t.log.Confirm(t.ctx, q.lease)
		close(q.done)
		r.roundsMu.Lock()
		r.cur, r.next = r.next, nil
		q = r.cur
		r.roundsMu.Unlock()
	}
}
