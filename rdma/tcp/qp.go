package tcp

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

// pairState is where a queue pair is in its life; it only ever grows.
type pairState uint8

const (
	stateReset pairState = iota
	stateConnecting
	stateReady
	stateError
)

// queuePair is one end of a connection. While it is ready two goroutines serve it: readLoop, which alone
// takes from the socket and ends the pair's life, and writeLoop, which writes what a non-blocking write
// by a poster (or by readLoop, for acknowledgements) could not.
type queuePair struct {
	queues  // protected by mu
	dev     *Device
	shake   handshake
	user    any
	wantCRC bool

	wake    chan struct{} // capacity 1: writeLoop has something to do
	stop    chan struct{} // closed by readLoop when nobody writes any more
	flushed chan struct{} // closed when all work has completed
	done    chan struct{} // closed when both goroutines have ended and the socket is closed

	rnrTimer *time.Timer
	ackTimer *time.Timer
	closed   atomic.Bool // Close was called

	mu         sync.Mutex // protects all below; taken before the lock of a completion queue
	calm       sync.Cond  // on mu: writing became false
	state      pairState
	cancel     context.CancelCauseFunc // of the Connect under way
	conn       net.Conn                // set when ready
	stream     stream
	failStatus rdma.Status // for the oldest send when the pair fails

	tx       uint64 // next request to put on the wire
	sent     uint64 // first request not wholly on the wire
	acked    uint64 // first request the peer has not executed
	nextRead uint64 // no unanswered read is older
	reads    int    // outstanding

	posted     uint32 // receives posted so far
	advertised uint32 // posted, as last sent to the peer
	consumed   uint32 // receives used up by the peer
	peerPosted uint32 // receives the peer has posted
	used       uint32 // of those, used up by us

	executed uint32 // requests of the peer we executed
	told     uint32 // executed, as last acknowledged to the peer
	ackDue   bool   // acknowledge now
	answered bool   // the last frame was an answer to what this side sent
	ackArmed bool   // ackTimer runs

	talk    talk
	nak     rdma.Status
	answers answerRing

	writing bool // somebody owns out
	handed  bool // the owner gave out to writeLoop
	rnrOn   bool // rnrTimer runs for request rnrAt
	rnrAt   uint64
	rnrLeft int

	out outbox // belongs to the goroutine that set writing
	in  inbox  // belongs to readLoop, or to the watch while the pair stays there

	seat seat
}

var _ rdma.QueuePair = (*queuePair)(nil)

// rnrRounds bounds how often a send without a receive waits again because older requests are still
// unacknowledged.
const rnrRounds = 4

func newQueuePair(d *Device, cfg rdma.QPConfig, hostPort string) (*queuePair, error) {
	q := &queuePair{
		dev: d, shake: handshake{dev: d, addr: newAddress(hostPort), hello: make(chan parked, 1)},
		user: cfg.User, wantCRC: cfg.WantCRC,
		wake:    make(chan struct{}, 1),
		stop:    make(chan struct{}),
		flushed: make(chan struct{}),
		done:    make(chan struct{}),
		seat:    seat{left: make(chan struct{}, 1)},
	}
	q.calm.L = &q.mu
	var err error
	if q.sq, q.rq, err = soft.Queues(d.table, d.Limits(), cfg, q); err != nil {
		return nil, err
	}
	q.rnrTimer = time.AfterFunc(time.Hour, q.receiverLate)
	q.rnrTimer.Stop()
	q.ackTimer = time.AfterFunc(time.Hour, q.ackLate)
	q.ackTimer.Stop()
	q.out.init(d.table)
	q.in.init(q)
	return q, nil
}

// Address encodes token, secret and dial address of this pair.
func (q *queuePair) Address() []byte { return q.shake.addr.encode() }

// User is the caller's value.
func (q *queuePair) User() any { return q.user }

// PostSend queues the requests and writes what is small at once.
func (q *queuePair) PostSend(wrs ...rdma.SendWR) error {
	q.mu.Lock()
	if q.state != stateReady {
		q.mu.Unlock()
		return fmt.Errorf("tcp: post send: %w", q.stateError())
	}
	if _, err := q.sq.Post(wrs); err != nil {
		q.mu.Unlock()
		return err
	}
	q.kickLocked()
	return nil
}

// PostRecv queues the receives. A peer that waits for one gets a frame that says so.
func (q *queuePair) PostRecv(wrs ...rdma.RecvWR) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == stateError {
		return fmt.Errorf("tcp: post receive: %w", q.stateError())
	}
	if err := q.rq.Post(wrs); err != nil {
		return err
	}
	q.posted += uint32(len(wrs))
	if q.state == stateReady && q.advertised == q.consumed && q.posted != q.advertised {
		q.ackDue = true
		q.poke()
	}
	return nil
}

// stateError is the reason why a call is refused; it needs no lock.
func (q *queuePair) stateError() error {
	if q.closed.Load() {
		return rdma.ErrClosed
	}
	return rdma.ErrState
}

// Abort puts the pair into error without waiting.
func (q *queuePair) Abort() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failLocked(rdma.StatusFlushed)
}

// Close aborts the pair and waits until its work has completed and its goroutines have ended.
func (q *queuePair) Close() error {
	q.Abort()
	q.closed.Store(true)
	<-q.done
	q.dev.forget(q)
	return nil
}

// failLocked starts the end of the pair: sends complete with status first and flushed then. Work in hands
// of the goroutines is completed by readLoop, when it and the writer have let go of the memory.
func (q *queuePair) failLocked(status rdma.Status) {
	before := q.state
	if before == stateError {
		return
	}
	q.state = stateError
	q.failStatus = status
	q.rnrTimer.Stop()
	q.ackTimer.Stop()
	switch before {
	case stateReady:
		_ = q.conn.SetDeadline(time.Unix(1, 0)) // wakes both goroutines; fails only if closed
		q.dev.watch.leave(q)
	case stateConnecting:
		q.flushLocked()
		q.cancel(rdma.ErrState)
	case stateReset:
		q.flushLocked()
		q.shake.dropParked()
		close(q.done)
	}
}

// flushLocked completes everything that is left.
func (q *queuePair) flushLocked() {
	q.sq.Flush(q.failStatus)
	q.rq.Flush(rdma.StatusFlushed)
	close(q.flushed)
}

// receiverLate runs when a send has waited ReceiverTimeout for a receive at the peer.
func (q *queuePair) receiverLate() {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.state != stateReady || !q.rnrOn || q.rnrAt != q.tx:
	case q.sq.Head == q.tx:
		q.failLocked(rdma.StatusReceiverNotReady)
	case q.rnrLeft > 0: // older requests come first, and are not acknowledged yet
		q.rnrLeft--
		q.rnrTimer.Reset(q.dev.cfg.ReceiverTimeout)
	default:
		q.failLocked(rdma.StatusDisconnected)
	}
}

// completeLocked ends all sends that the peer has executed and that we no longer read.
func (q *queuePair) completeLocked() {
	for q.sq.Head < q.acked && q.sq.Head < q.sent {
		s := q.sq.At(q.sq.Head)
		if s.Op == rdma.OpRead {
			if !s.Answered {
				return
			}
		}
		q.sq.Complete(rdma.StatusOK)
	}
}
