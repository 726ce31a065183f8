package rdma

import "context"

// Dispatcher is a completion queue that can hand its completions over by itself, on the goroutine that made them
// where that is possible: nobody has to be woken. A caller looks for it by a type assertion.
type Dispatcher interface {
	CompletionQueue
	// Dispatch has handle called for each completion, one at a time and in order, until ctx is done or the queue is
	// closed (ErrClosed); then no call is under way any more. Nobody else may poll meanwhile. The completion is valid
	// during the call. handle may post work and abort queue pairs, also the completion's; it must not close one, wait
	// for a completion, or block otherwise: the goroutine that calls it may be the one that reads a connection.
	Dispatch(ctx context.Context, handle func(*Completion)) error
}
