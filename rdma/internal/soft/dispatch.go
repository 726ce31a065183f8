package soft

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/rdma"
)

const (
	// dispatchBatch is how many completions are taken from the queue at once.
	dispatchBatch = 16
	// dispatchTurns bounds the batches that a goroutine of the provider hands over before it goes back to its own work.
	dispatchTurns = 4
)

// dispatch hands completions over on the goroutines that make them.
type dispatch struct {
	handle atomic.Pointer[func(*rdma.Completion)] // nil while nobody has called Dispatch
	holds  atomic.Int32                           // goroutines that are about to call Release

	serving sync.Mutex // held by the goroutine that calls handle; no lock of this package is held when it is taken
	batch   [dispatchBatch]rdma.Completion
}

// Hold says that the caller will call Release in a moment, without waiting for anything until then. If Dispatch runs,
// completions pushed meanwhile wake nobody.
func (q *CQ) Hold() { q.holds.Add(1) }

// Release ends a Hold and hands over what has been pushed, if Dispatch runs and nobody else does it. The caller holds
// no lock.
func (q *CQ) Release() {
	q.holds.Add(-1)
	if q.handle.Load() == nil {
		return
	}
	for turn := 1; q.serving.TryLock(); turn++ {
		q.handOver()
		q.serving.Unlock()
		if q.empty() {
			return
		}
		if turn == dispatchTurns {
			q.signal()
			return
		}
	}
}

// expected reports whether some goroutine is about to hand over what was just pushed.
func (q *CQ) expected() bool { return q.holds.Load() > 0 && q.handle.Load() != nil }

// handOver calls handle for one batch. The caller holds serving.
func (q *CQ) handOver() {
	handle := q.handle.Load()
	if handle == nil {
		return
	}
	n := q.Poll(q.batch[:])
	for i := range q.batch[:n] {
		(*handle)(&q.batch[i])
		q.batch[i] = rdma.Completion{}
	}
}

func (q *CQ) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n == 0
}

// Dispatch hands over what no goroutine of the provider does.
func (q *CQ) Dispatch(ctx context.Context, handle func(*rdma.Completion)) error {
	q.handle.Store(&handle)
	defer func() {
		q.serving.Lock()
		q.handle.Store(nil)
		q.serving.Unlock()
		q.signal() // for callers that poll after this: what came under a Hold woke nobody
	}()
	for ctx.Err() == nil {
		if err := q.Wait(ctx); err != nil {
			return err
		}
		q.serving.Lock()
		q.handOver()
		q.serving.Unlock()
	}
	return fmt.Errorf("soft: dispatch: %w", context.Cause(ctx))
}
