package mixed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// pairState is where a queue pair is in its life; it only ever grows.
type pairState uint8

const (
	stateReset      pairState = iota
	stateConnecting           // but nothing is chosen yet
	stateCarried              // one member's queue pair has the receives, and connects
	stateReady
	stateError
)

// pair is a queue pair of several devices, of which one comes to carry it.
type pair struct {
	card
	user               any
	send, recv         *queue
	limits             rdma.Limits
	sendDepth, recvMax int

	mu      sync.Mutex // protects all below; before the locks of regions and of the devices' objects
	state   pairState
	closed  bool             // Close was called
	qps     []rdma.QueuePair // by member; nil where the member made none
	carrier int              // member that carries the pair; -1: none yet
	counted bool             // among the pairs of the carrier
	waiting []rdma.RecvWR    // receives posted before there was a carrier; users of their regions
	keys    keys
	scratch scratch
}

var _ rdma.QueuePair = (*pair)(nil)

func newPair(d *Device, cfg rdma.QPConfig) (*pair, error) {
	send, recv, err := d.queuesOf(&cfg)
	if err != nil {
		return nil, err
	}
	p := &pair{user: cfg.User, send: send, recv: recv, limits: d.Limits(), sendDepth: cfg.SendDepth,
		recvMax: cfg.RecvDepth,
		qps:     make([]rdma.QueuePair, len(d.members)), carrier: -1}
	cfg.User = p
	for i, m := range d.members {
		if p.qps[i], err = d.open(i, send, recv, cfg); err != nil && (m == d.last() || errors.Is(err, rdma.ErrRequest)) {
			p.closeMembers(-1)
			return nil, err
		}
	}
	if p.card, err = newCard(d, p.qps); err != nil {
		p.closeMembers(-1)
		return nil, err
	}
	return p, nil
}

// open makes a member's queue pair; nil without an error where that member is left out.
func (d *Device) open(i int, send, recv *queue, cfg rdma.QPConfig) (rdma.QueuePair, error) {
	m := d.members[i]
	if m != d.last() && (m.isBenched() || send.feeds[i] == nil || recv.feeds[i] == nil) {
		return nil, nil
	}
	cfg.SendCQ, cfg.RecvCQ = send.feeds[i].CompletionQueue, recv.feeds[i].CompletionQueue
	qp, err := m.NewQP(cfg)
	if err != nil {
		d.bench(i, "make a queue pair", err)
		return nil, err
	}
	return qp, nil
}

// closeMembers closes the queue pairs of all members but one.
func (p *pair) closeMembers(except int) {
	for i, qp := range p.qps {
		if qp != nil && i != except {
			_ = qp.Close()
		}
	}
}

// Address holds the addresses of the queue pairs of all members.
func (p *pair) Address() []byte { return slices.Clone(p.encoded) }

// User is the caller's value.
func (p *pair) User() any { return p.user }

// refusalLocked is the reason why a call is refused.
func (p *pair) refusalLocked() error {
	if p.closed {
		return rdma.ErrClosed
	}
	return rdma.ErrState
}

// Connect chooses the member that carries the pair, closes the others' queue pairs, and connects its.
func (p *pair) Connect(ctx context.Context, remote []byte) error {
	p.mu.Lock()
	if p.state != stateReset {
		defer p.mu.Unlock()
		return fmt.Errorf("mixed: connect: %w", p.refusalLocked())
	}
	p.state = stateConnecting
	p.mu.Unlock()
	m, err := p.meet(remote)
	if err == nil {
		p.closeMembers(m.member)
		err = p.carry(&m)
	}
	if err != nil {
		p.Abort()
		return err
	}
	err = p.qps[m.member].Connect(ctx, m.peer.address)
	ended := ctx.Err() != nil
	p.mu.Lock()
	switch {
	case p.state == stateError:
		ended = true
		if err == nil {
			err = p.refusalLocked()
		}
	case err == nil:
		p.state, p.counted = stateReady, true
		p.dev.members[p.carrier].carries()
	}
	p.mu.Unlock()
	if err != nil {
		p.Abort()
		return p.parted(&m, err, ended)
	}
	p.dev.routes.clear(m.route)
	return nil
}

// carry gives the pair, and the receives that wait, to a member.
func (p *pair) carry(m *meeting) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != stateConnecting {
		return fmt.Errorf("mixed: connect: %w", p.refusalLocked())
	}
	p.carrier = m.member
	p.keys.peer, p.keys.kind = m.peer.directory, m.kind
	if len(p.waiting) > 0 {
		if err := p.postRecvs(p.waiting); err != nil {
			return fmt.Errorf("mixed: connect: %w", err)
		}
		releaseRecvs(p.waiting)
		p.waiting = nil
	}
	p.state = stateCarried
	return nil
}

// Abort puts the pair into error without waiting.
func (p *pair) Abort() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = stateError
	if p.counted {
		p.counted = false
		p.dev.members[p.carrier].pairs.Add(-1)
	}
	for _, qp := range p.qps {
		if qp != nil {
			qp.Abort()
		}
	}
	for i := range p.waiting {
		p.recv.own.Push(rdma.Completion{ID: p.waiting[i].ID, QP: p, Op: rdma.OpRecv, Status: rdma.StatusFlushed})
	}
	releaseRecvs(p.waiting)
	p.waiting = nil
}

// Close aborts the pair and waits until its work has completed; the completions are where they are polled.
func (p *pair) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Abort()
	p.closeMembers(-1)
	p.send.drainAll()
	p.recv.drainAll()
	p.mu.Lock()
	p.keys.close()
	p.flushHeld(rdma.StatusFlushed) // needed only if the queue was closed before, and did not report the lookup
	p.mu.Unlock()
	p.dev.forget(p)
	return nil
}
