package rdmc

import (
	"context"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// poll takes completions until the engine closes. Where the fabric can, its own goroutines hand them over. A queue
// that has nothing is waited for, not polled: see docs/decisions/014.
func (e *Engine) poll() {
	if d, ok := e.cq.(rdma.Dispatcher); ok {
		_ = d.Dispatch(e.ctx, e.take) // ends with the engine
		return
	}
	takeAll(e.ctx, e.cq, e.take)
}

// takeAll hands over a queue's completions in batches, until ctx is done.
func takeAll(ctx context.Context, queue rdma.CompletionQueue, take func(*rdma.Completion)) {
	var batch [64]rdma.Completion
	for ctx.Err() == nil {
		n := queue.Poll(batch[:])
		for i := range batch[:n] {
			take(&batch[i])
			batch[i] = rdma.Completion{}
		}
		if n == 0 && queue.Wait(ctx) != nil {
			return
		}
	}
}
