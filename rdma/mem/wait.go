package mem

import (
	"fmt"
	"slices"

	"github.com/rdmcfs/rdmcfs/rdma"
)

var _ rdma.Waiter = (*queuePair)(nil)

// PostSendAfter queues requests that wait for receives of another pair.
func (q *queuePair) PostSendAfter(after rdma.Receipts, wrs ...rdma.SendWR) error {
	on, ok := after.QP.(*queuePair)
	if !ok || on.dev != q.dev {
		return fmt.Errorf("mem: post send on %s after receives of another device: %w", q.dev.name, rdma.ErrRequest)
	}
	f := q.dev.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := q.postSendLocked(after, wrs); err != nil {
		return err
	}
	on.waiters = slices.DeleteFunc(on.waiters, func(w *queuePair) bool { return w == q || w.state == stateError })
	if q.state != stateError {
		on.waiters = append(on.waiters, q)
	}
	return nil
}

// waits reports whether the next request comes after receives that are not done. There must be one.
func (q *queuePair) waits() bool {
	after := q.sq.At(q.executed).After
	on, ok := after.QP.(*queuePair)
	return ok && on.rq.Came < after.Count
}

// endWaitLocked looks whether the wait of the next request is over: then it leaves now, or fails if what it waited for can't come any more.
func (q *queuePair) endWaitLocked() {
	if q.executed == q.sq.Tail || q.nak != rdma.StatusOK {
		return
	}
	s := q.sq.At(q.executed)
	on, ok := s.After.QP.(*queuePair)
	switch {
	case !ok:
	case !q.waits():
		f := q.dev.fabric
		s.After = rdma.Receipts{}
		s.At = max(s.At, f.now+f.delayLocked())
	case on.state == stateError:
		q.nak = rdma.StatusAwaited
	}
}

// wakeWaitersLocked has the pairs that may wait for a receive of this one look again.
func (q *queuePair) wakeWaitersLocked() {
	q.waiters = slices.DeleteFunc(q.waiters, func(w *queuePair) bool { return w.state == stateError })
	for _, w := range q.waiters {
		w.armLocked()
	}
}
