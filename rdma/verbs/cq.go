//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

// completionQueue is what callers poll: completions that were moved out of the device's queues.
type completionQueue struct {
	done  *soft.CQ // what was taken from the device: not embedded, since completions have to be fetched, not dispatched
	dev   *device
	depth int // that the caller asked for

	mu     sync.Mutex                  // protects changes of queues, and closed
	queues atomic.Pointer[[]*deviceCQ] // a new slice for each change
	closed bool
}

var _ rdma.CompletionQueue = (*completionQueue)(nil)

func newCompletionQueue(d *device, depth int) (*completionQueue, error) {
	s, err := soft.NewCQ(depth)
	if err != nil {
		return nil, err
	}
	q := &completionQueue{done: s, dev: d, depth: depth}
	q.queues.Store(new([]*deviceCQ))
	return q, nil
}

// Poll moves up to len(out) completions into out; where none waits, it looks at the device first.
func (q *completionQueue) Poll(out []rdma.Completion) int {
	if n := q.done.Poll(out); n > 0 {
		return n
	}
	for _, d := range *q.queues.Load() {
		d.tryDrain()
	}
	return q.done.Poll(out)
}

// Wait blocks until there is a completion.
func (q *completionQueue) Wait(ctx context.Context) error { return q.done.Wait(ctx) }

// Close drops what is queued. Completions of pairs that still use the queue are dropped.
func (q *completionQueue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, d := range *q.queues.Load() {
		q.retireLocked(d)
	}
	return q.done.Close()
}

// reserve finds room for n completions in one of the device's queues, or makes another.
func (q *completionQueue) reserve(n int) (*deviceCQ, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, fmt.Errorf("verbs: completion queue: %w", rdma.ErrClosed)
	}
	have, total := *q.queues.Load(), 0
	for _, d := range have {
		if d.reserved+n <= d.capacity {
			d.reserved += n
			return d, nil
		}
		total += d.capacity
	}
	// As large as all before: so there are few.
	size := max(n, min(max(q.depth, total), q.dev.info.Limits.CompletionDepth))
	d, err := q.dev.newDeviceCQ(size)
	if err != nil {
		return nil, err
	}
	d.reserved = n
	grown := append(append([]*deviceCQ{}, have...), d)
	q.queues.Store(&grown)
	return d, nil
}

// unreserve gives back the room of a pair that no longer exists.
func (q *completionQueue) unreserve(d *deviceCQ, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d.reserved -= n
	if q.closed {
		q.retireLocked(d)
	}
}

func (q *completionQueue) retireLocked(d *deviceCQ) {
	if d.reserved == 0 {
		d.destroy()
	}
}

// sink is the pair and the queue that completions of a device's queue belong to.
type sink interface{ completed(wc *workCompletion) }

// pollBatch is the number of completions taken by one call.
const pollBatch = 32

// deviceCQ is a completion queue of the device. Its capacity is reserved by the queues that post.
type deviceCQ struct {
	dev                *device
	handle             uintptr
	capacity, reserved int // protected by the lock of the completionQueue

	mu    sync.Mutex // held while completions are taken and handed out; before the lock of a pair
	dead  bool
	sinks map[uint32]sink // by the upper half of a request's id
	batch *[pollBatch]workCompletion
	poll  [3]uintptr // arguments of ibv_poll_cq, kept so that polling allocates nothing
	arm   [2]uintptr // of ibv_req_notify_cq
}

func (d *device) newDeviceCQ(capacity int) (*deviceCQ, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("create completion queue of %d", capacity)
	handle, err := d.lib.object(what, d.lib.createCQ, d.context, uintptr(capacity), 0, d.channel, 0)
	if err != nil {
		return nil, lockedError(err, lockedLimit)
	}
	q := &deviceCQ{dev: d, handle: handle, capacity: capacity, sinks: make(map[uint32]sink),
		batch: new([pollBatch]workCompletion)}
	q.poll, q.arm = [3]uintptr{handle, pollBatch, uintptr(unsafe.Pointer(q.batch))}, [2]uintptr{handle, 0}
	d.mu.Lock()
	d.queues[handle] = q
	d.mu.Unlock()
	q.rearm()
	return q, nil
}

func (q *deviceCQ) attach(id uint32, s sink) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sinks[id] = s
}

func (q *deviceCQ) detach(id uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.sinks, id)
}

// drain hands out all completions that are there.
func (q *deviceCQ) drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drainLocked()
}

// tryDrain does nothing while another goroutine drains.
func (q *deviceCQ) tryDrain() {
	if q.mu.TryLock() {
		defer q.mu.Unlock()
		q.drainLocked()
	}
}

// rearm asks for the next event, and then hands out what came before: nothing is missed.
func (q *deviceCQ) rearm() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead {
		return
	}
	if r, _, _ := purego.SyscallN(q.dev.ops.notifyCQ, q.arm[:]...); int32(r) != 0 {
		q.dev.cfg.Log.Warn("arm completion queue", "error", syscall.Errno(int32(r)))
	}
	q.drainLocked()
}

func (q *deviceCQ) drainLocked() {
	for !q.dead {
		r, _, _ := purego.SyscallN(q.dev.ops.pollCQ, q.poll[:]...)
		n := int(int32(r))
		for i := range max(n, 0) {
			wc := &q.batch[i]
			if s := q.sinks[uint32(wc.id>>32)]; s != nil {
				s.completed(wc)
			}
		}
		if n < pollBatch { // also when the device is gone
			return
		}
	}
}

// destroy frees the queue; nobody may post to it any more. It may be called twice.
func (q *deviceCQ) destroy() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead {
		return
	}
	q.dead = true
	q.dev.mu.Lock()
	delete(q.dev.queues, q.handle)
	q.dev.mu.Unlock()
	if err := q.dev.lib.check("destroy completion queue", q.dev.lib.destroyCQ, q.handle); err != nil {
		q.dev.cfg.Log.Debug("completion queue", "error", err)
	}
}
