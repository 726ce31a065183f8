package mixed

import (
	"context"
	"fmt"
	"sync"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

// queue is a completion queue on all devices: what callers poll, and the devices' queues that it is fed from.
type queue struct {
	dev    *Device
	own    *soft.CQ
	feeds  []*feed // by member
	ctx    context.Context
	stop   context.CancelFunc
	movers sync.WaitGroup // one goroutine per feed
}

// feed is the queue of one device.
type feed struct {
	rdma.CompletionQueue
	mu    sync.Mutex // held while completions are moved, so that they keep their order; before the lock of a pair
	batch [32]rdma.Completion
}

var _ rdma.CompletionQueue = (*queue)(nil)

func newQueue(d *Device, depth int) (*queue, error) {
	own, err := soft.NewCQ(depth)
	if err != nil {
		return nil, err
	}
	q := &queue{dev: d, own: own}
	for _, m := range d.members {
		cq, err := m.NewCQ(depth)
		if err != nil && m == d.last() {
			q.closeFeeds()
			return nil, err
		}
		if err != nil { // pairs are made without it; see newPair
			q.feeds = append(q.feeds, nil)
			continue
		}
		q.feeds = append(q.feeds, &feed{CompletionQueue: cq})
	}
	q.ctx, q.stop = context.WithCancel(context.Background())
	for _, f := range q.feeds {
		if f != nil {
			q.movers.Go(func() { q.move(f) })
		}
	}
	return q, nil
}

// move takes completions to the own queue until the feed or the queue is closed.
func (q *queue) move(f *feed) {
	for f.Wait(q.ctx) == nil {
		q.drain(f)
	}
}

// drain moves all completions that are there.
func (q *queue) drain(f *feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		n := f.CompletionQueue.Poll(f.batch[:])
		for i := range f.batch[:n] {
			c := &f.batch[i]
			p := c.QP.User().(*pair)
			if c.Op == rdma.OpRead && c.ID == q.dev.lookupID {
				p.found(c.Status)
			} else {
				c.QP = p
				q.own.Push(*c)
			}
			*c = rdma.Completion{}
		}
		if n < len(f.batch) {
			return
		}
	}
}

func (q *queue) drainAll() {
	for _, f := range q.feeds {
		if f != nil {
			q.drain(f)
		}
	}
}

// Poll moves up to len(out) completions into out; where none waits, it looks at the devices first.
func (q *queue) Poll(out []rdma.Completion) int {
	if n := q.own.Poll(out); n > 0 {
		return n
	}
	q.drainAll()
	return q.own.Poll(out)
}

// Wait blocks until there is a completion.
func (q *queue) Wait(ctx context.Context) error { return q.own.Wait(ctx) }

// halt ends the goroutines and waits for them.
func (q *queue) halt() {
	q.stop()
	q.movers.Wait()
}

// Close ends the goroutines, drops what is queued and wakes all callers that wait.
func (q *queue) Close() error {
	q.closeFeeds()
	q.halt()
	q.dev.forgetQueue(q)
	return q.own.Close()
}

func (q *queue) closeFeeds() {
	for _, f := range q.feeds {
		if f != nil {
			_ = f.CompletionQueue.Close()
		}
	}
}

// queuesOf returns the queues of a configuration, if they belong to this device.
func (d *Device) queuesOf(cfg *rdma.QPConfig) (send, recv *queue, err error) {
	send, ok1 := cfg.SendCQ.(*queue)
	recv, ok2 := cfg.RecvCQ.(*queue)
	if !ok1 || !ok2 || send.dev != d || recv.dev != d {
		return nil, nil, fmt.Errorf("mixed: queue pair without completion queues of its device: %w", rdma.ErrRequest)
	}
	return send, recv, nil
}
