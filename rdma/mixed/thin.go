package mixed

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// thinQueue is a completion queue of a device of one: completions name our pairs instead of the device's.
type thinQueue struct {
	rdma.CompletionQueue
	dev *Device
}

// Poll moves up to len(out) completions into out.
func (q *thinQueue) Poll(out []rdma.Completion) int {
	n := q.CompletionQueue.Poll(out)
	for i := range out[:n] {
		out[i].QP = out[i].QP.User().(*thinPair)
	}
	return n
}

// thinDispatcher is a thinQueue whose device hands completions over by itself.
type thinDispatcher struct{ *thinQueue }

var _ rdma.Dispatcher = thinDispatcher{}

// Dispatch hands over what the device does.
func (q thinDispatcher) Dispatch(ctx context.Context, handle func(*rdma.Completion)) error {
	return q.CompletionQueue.(rdma.Dispatcher).Dispatch(ctx, func(c *rdma.Completion) {
		c.QP = c.QP.User().(*thinPair)
		handle(c)
	})
}

// newThinQueue makes a queue of the device, a Dispatcher where the device's is one.
func newThinQueue(d *Device, depth int) (rdma.CompletionQueue, error) {
	cq, err := d.members[0].NewCQ(depth)
	if err != nil {
		return nil, err
	}
	q := &thinQueue{CompletionQueue: cq, dev: d}
	if _, ok := cq.(rdma.Dispatcher); ok {
		return thinDispatcher{q}, nil
	}
	return q, nil
}

// thinOf returns the queue behind what newThinQueue returned, if it belongs to this device.
func (d *Device) thinOf(cq rdma.CompletionQueue) (*thinQueue, bool) {
	if t, ok := cq.(thinDispatcher); ok {
		cq = t.thinQueue
	}
	q, ok := cq.(*thinQueue)
	return q, ok && q.dev == d
}

// thinPair is a queue pair of a device of one: it only speaks another address.
type thinPair struct {
	rdma.QueuePair
	card
	user    any
	foreign atomic.Bool // the peer's keys belong to another provider
	counted atomic.Bool
}

var _ rdma.QueuePair = (*thinPair)(nil)

func newThinPair(d *Device, cfg rdma.QPConfig) (*thinPair, error) {
	send, ok1 := d.thinOf(cfg.SendCQ)
	recv, ok2 := d.thinOf(cfg.RecvCQ)
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("mixed: queue pair without completion queues of its device: %w", rdma.ErrRequest)
	}
	p := &thinPair{user: cfg.User}
	cfg.SendCQ, cfg.RecvCQ, cfg.User = send.CompletionQueue, recv.CompletionQueue, p
	qp, err := d.members[0].NewQP(cfg)
	if err != nil {
		return nil, err
	}
	p.QueuePair = qp
	if p.card, err = newCard(d, []rdma.QueuePair{qp}); err != nil {
		_ = qp.Close()
		return nil, err
	}
	return p, nil
}

// Address is the device's, plus what a peer with several devices needs.
func (p *thinPair) Address() []byte { return slices.Clone(p.encoded) }

// User is the caller's value.
func (p *thinPair) User() any { return p.user }

// Connect joins the pair with its peer's queue pair on the same provider.
func (p *thinPair) Connect(ctx context.Context, remote []byte) error {
	m, err := p.meet(remote)
	if err != nil {
		p.Abort()
		return err
	}
	p.foreign.Store(m.peer.directory != 0)
	if err := p.QueuePair.Connect(ctx, m.peer.address); err != nil {
		return p.parted(&m, err, true)
	}
	p.counted.Store(true)
	p.dev.members[0].carries()
	return nil
}

// PostSend posts as the device does, unless a key would mean nothing to it.
func (p *thinPair) PostSend(wrs ...rdma.SendWR) error {
	if p.foreign.Load() {
		for i := range wrs {
			if wrs[i].Op != rdma.OpSend && wrs[i].RemoteKey != 0 {
				return fmt.Errorf("mixed: post send %d: the peer's keys are of another provider than %s: make this device with "+
					"Full: %w",
					wrs[i].ID, p.dev.members[0].Name(), rdma.ErrRequest)
			}
		}
	}
	return p.QueuePair.PostSend(wrs...)
}

// Close closes the device's queue pair.
func (p *thinPair) Close() error {
	err := p.QueuePair.Close()
	if p.counted.Swap(false) {
		p.dev.members[0].pairs.Add(-1)
	}
	p.dev.forget(p)
	return err
}
