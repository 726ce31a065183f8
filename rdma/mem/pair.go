package mem

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

// token names a pair of a fabric; anyone who knows it can connect.
type token [16]byte

// addressKind is the first byte of an address of this provider.
const addressKind = 'M'

// pairState is where a queue pair is in its life; it only ever grows.
type pairState uint8

const (
	stateReset pairState = iota
	stateConnecting
	stateReady
	stateError
)

// queuePair is one end of a connection. The fabric's lock protects it.
type queuePair struct {
	dev    *Device
	token  token
	user   any
	change chan struct{} // closed when the state leaves stateConnecting

	state  pairState
	closed bool
	remote token // of the pair we want to be joined with
	peer   *queuePair

	sq       soft.SendQueue
	rq       soft.RecvQueue
	executed uint64        // next request to reach the peer
	lastOut  time.Duration // when the newest request arrives at the peer
	lastBack time.Duration // when the newest acknowledgement arrives
	outArmed bool          // an eventExecute is scheduled
	ackArmed bool          // an eventAck is scheduled
	lateFor  uint64        // one more than the number of the request that waits for a receive
	lossTold bool          // the peer will notice our end
	nak      rdma.Status   // request executed failed so at the peer
}

var _ rdma.QueuePair = (*queuePair)(nil)

func newQueuePair(d *Device, cfg rdma.QPConfig) (*queuePair, error) {
	q := &queuePair{dev: d, user: cfg.User, change: make(chan struct{})}
	binary.LittleEndian.PutUint64(q.token[:], d.fabric.rng.Uint64())
	binary.LittleEndian.PutUint64(q.token[8:], d.fabric.rng.Uint64())
	var err error
	q.sq, q.rq, err = soft.Queues(d.table, d.Limits(), cfg, q)
	return q, err
}

// Address is the pair's token.
func (q *queuePair) Address() []byte { return append([]byte{addressKind}, q.token[:]...) }

// User is the caller's value.
func (q *queuePair) User() any { return q.user }

// Connect joins the pair with its peer. On a stepped fabric it does not wait: sends posted before the peer
// connects stay in the queue.
func (q *queuePair) Connect(ctx context.Context, remote []byte) error {
	if err := q.beginConnect(remote); err != nil {
		return fmt.Errorf("mem: connect on %s: %w", q.dev.name, err)
	}
	if q.dev.fabric.cfg.Stepped {
		return nil
	}
	select {
	case <-q.change:
	case <-ctx.Done():
	}
	f := q.dev.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.state == stateReady {
		return nil
	}
	err := context.Cause(ctx)
	if err == nil {
		err = q.stateError()
	}
	q.failLocked(rdma.StatusFlushed)
	return fmt.Errorf("mem: connect on %s: %w", q.dev.name, err)
}

func (q *queuePair) beginConnect(remote []byte) error {
	f := q.dev.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.state != stateReset {
		return q.stateError()
	}
	if len(remote) != 1+len(token{}) || remote[0] != addressKind || token(remote[1:]) == q.token {
		q.failLocked(rdma.StatusFlushed)
		return fmt.Errorf("bad address: %w", rdma.ErrRequest)
	}
	q.remote = token(remote[1:])
	peer := f.pairs[q.remote]
	if peer == nil || peer.state == stateError {
		q.failLocked(rdma.StatusFlushed)
		return fmt.Errorf("no such peer: %w", rdma.ErrState)
	}
	q.state = stateConnecting
	if peer.state == stateConnecting && peer.remote == q.token {
		q.joinLocked(peer)
		peer.joinLocked(q)
		q.armLocked()
		peer.armLocked()
	}
	return nil
}

func (q *queuePair) joinLocked(peer *queuePair) {
	f := q.dev.fabric
	q.state, q.peer = stateReady, peer
	close(q.change)
	if number, cut := f.cuts[q.line()]; cut {
		f.scheduleLocked(event{kind: eventCut, pair: q, at: f.nowLocked() + f.cfg.PeerTimeout, number: number})
	}
}

func (q *queuePair) line() [2]string { return lineOf(q.dev.name, q.peer.dev.name) }

func (q *queuePair) stateError() error {
	if q.closed {
		return rdma.ErrClosed
	}
	return rdma.ErrState
}

// PostSend queues the requests.
func (q *queuePair) PostSend(wrs ...rdma.SendWR) error {
	f := q.dev.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.state != stateReady && (q.state != stateConnecting || !f.cfg.Stepped) {
		return fmt.Errorf("mem: post send on %s: %w", q.dev.name, q.stateError())
	}
	first := q.sq.Tail
	if _, err := q.sq.Post(wrs); err != nil {
		return err
	}
	f.nowLocked()
	for i := first; i < q.sq.Tail; i++ {
		q.lastOut = max(q.lastOut, f.now+f.delayLocked())
		q.sq.At(i).At = q.lastOut
	}
	q.armLocked()
	return nil
}

// PostRecv queues the receives.
func (q *queuePair) PostRecv(wrs ...rdma.RecvWR) error {
	f := q.dev.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.state == stateError {
		return fmt.Errorf("mem: post receive on %s: %w", q.dev.name, q.stateError())
	}
	if err := q.rq.Post(wrs); err != nil {
		return err
	}
	if q.peer != nil {
		f.nowLocked()
		q.peer.armLocked()
	}
	return nil
}

// Abort puts the pair into error; all its work completes at once.
func (q *queuePair) Abort() {
	f := q.dev.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nowLocked()
	q.failLocked(rdma.StatusFlushed)
}

// Close aborts the pair and forgets it.
func (q *queuePair) Close() error {
	f := q.dev.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nowLocked()
	q.closed = true
	q.failLocked(rdma.StatusFlushed)
	f.forgetLocked(q)
	return nil
}

// failLocked ends the pair: everything completes, the oldest send with status; the peer will notice.
func (q *queuePair) failLocked(status rdma.Status) {
	if q.state == stateError {
		return
	}
	if q.state != stateReady {
		close(q.change)
	}
	q.state = stateError
	q.sq.Flush(status)
	q.rq.Flush(rdma.StatusFlushed)
	q.peerLossLocked(0)
}

// peerLossLocked lets the peer notice the end of this pair after the time given and one delay, unless the
// reason for it is on the way to the peer already.
func (q *queuePair) peerLossLocked(after time.Duration) {
	p := q.peer
	if p == nil || p.state == stateError || p.nak != rdma.StatusOK || q.lossTold {
		return
	}
	q.lossTold = true
	f := q.dev.fabric
	f.scheduleLocked(event{kind: eventPeerGone, pair: p, at: max(f.nowLocked()+after+f.delayLocked(), p.lastBack)})
}
