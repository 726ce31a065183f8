//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"context"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// pairState is where a queue pair is in its life; it only ever grows.
type pairState uint8

const (
	stateReset pairState = iota
	stateConnecting
	stateReady
	stateError
)

// depthDefault is the depth of a work queue whose configuration names none.
const depthDefault = 128

// queuePair is one end of a reliable connection.
type queuePair struct {
	dev        *device
	id         uint32 // upper half of the ids of its requests
	handle     uintptr
	local      address
	user       any
	sendCQ     *completionQueue
	recvCQ     *completionQueue
	sends      *deviceCQ     // where sends complete
	recvs      *deviceCQ     // where receives complete; may be the same
	heard      chan struct{} // closed when the peer has said that it is ready
	done       chan struct{} // closed when the device has let go and all work has completed
	watchTimer *time.Timer

	mu         sync.Mutex // protects all below; before the lock of a completion queue or a region
	state      pairState
	closed     bool                    // Close was called
	cancel     context.CancelCauseFunc // of the Connect under way
	up         bool                    // the device takes the peer's requests; messages may be answered
	hasHeard   bool
	remote     address
	key        []byte     // for messages to and from the peer
	route      *bellRoute // for datagrams to the peer
	failStatus rdma.Status
	byPeer     bool // a request of the peer's failed: the device still has to tell the peer
	sq, rq     workQueue
	watch      watch
	scratch    *scratch
}

var _ rdma.QueuePair = (*queuePair)(nil)

func (d *device) newPair(cfg rdma.QPConfig) (*queuePair, error) {
	scq, ok1 := cfg.SendCQ.(*completionQueue)
	rcq, ok2 := cfg.RecvCQ.(*completionQueue)
	if !ok1 || !ok2 || scq.dev != d || rcq.dev != d {
		return nil, fmt.Errorf("verbs: queue pair without completion queues of its device: %w", rdma.ErrRequest)
	}
	sd, rd := cfg.SendDepth, cfg.RecvDepth
	if sd == 0 {
		sd = min(depthDefault, d.limits.MaxQueueDepth)
	}
	if rd == 0 {
		rd = min(depthDefault, d.limits.MaxQueueDepth)
	}
	if sd < 1 || rd < 1 || sd > d.limits.MaxQueueDepth || rd > d.limits.MaxQueueDepth {
		return nil, fmt.Errorf("verbs: queue depths %d and %d, limit %d: %w", sd, rd, d.limits.MaxQueueDepth, rdma.ErrRequest)
	}
	q := &queuePair{dev: d, id: d.pairIDs.Add(1), user: cfg.User, sendCQ: scq, recvCQ: rcq, scratch: new(scratch),
		heard: make(chan struct{}), done: make(chan struct{})}
	q.sq, q.rq = newWorkQueue(q, scq, sd, silentOf(sd)+own), newWorkQueue(q, rcq, rd, 0)
	q.local.fresh()
	if err := q.create(len(q.sq.slots), rd); err != nil {
		return nil, err
	}
	q.watchTimer = time.AfterFunc(time.Hour, q.watchTick)
	q.watchTimer.Stop()
	d.introduce(&q.local)
	q.sends.attach(q.id, q)
	q.recvs.attach(q.id, q)
	return q, nil
}

// create makes the device's queue pair and the room for its completions.
func (q *queuePair) create(sends, recvs int) error {
	d := q.dev
	var err error
	if q.sends, err = q.sendCQ.reserve(sends); err != nil {
		return err
	}
	if q.recvs, err = q.recvCQ.reserve(recvs); err != nil {
		q.sendCQ.unreserve(q.sends, sends)
		return err
	}
	q.handle, err = d.createQP(qpReliable, q.sends, q.recvs, qpCap{sends: uint32(sends), recvs: uint32(recvs),
		sendSGE: uint32(d.limits.MaxSGE), recvSGE: uint32(d.limits.MaxSGE), inline: uint32(d.limits.MaxInline)})
	if err == nil {
		q.local.qpn = *field[uint32](q.handle, qpNumber)
		attr := &qpAttr{state: qpInit, port: uint8(d.port), access: accessLocalWrite | accessRemoteRead | accessRemoteWrite}
		if err = d.modify("prepare queue pair", q.handle, attr, maskInitReliable); err != nil {
			_ = d.lib.check("destroy queue pair", d.lib.destroyQP, q.handle)
		}
	}
	if err != nil {
		q.sendCQ.unreserve(q.sends, sends)
		q.recvCQ.unreserve(q.recvs, recvs)
	}
	return err
}

// createQP makes a queue pair of the device in state Reset.
func (d *device) createQP(kind uint32, sends, recvs *deviceCQ, size qpCap) (uintptr, error) {
	attr := &qpInitAttr{sendCQ: sends.handle, recvCQ: recvs.handle, cap: size, qpType: kind}
	what := fmt.Sprintf("create queue pair of %d sends and %d receives (the device has room for %d pairs)",
		size.sends, size.recvs, d.info.Limits.QueuePairs)
	qp, err := d.lib.object(what, d.lib.createQP, d.pd, uintptr(unsafe.Pointer(attr)))
	if err != nil {
		return 0, lockedError(err, lockedLimit)
	}
	return qp, nil
}

func (d *device) modify(what string, qp uintptr, attr *qpAttr, mask int) error {
	return d.lib.check(what, d.lib.modifyQP, qp, uintptr(unsafe.Pointer(attr)), uintptr(mask))
}

// Address encodes where this pair is, and its secret.
func (q *queuePair) Address() []byte { return q.local.encode() }

// User is the caller's value.
func (q *queuePair) User() any { return q.user }

// PostSend hands the requests to the device.
func (q *queuePair) PostSend(wrs ...rdma.SendWR) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != stateReady {
		return fmt.Errorf("verbs: post send: %w", q.refusalLocked())
	}
	if len(wrs) == 0 {
		return nil
	}
	if err := q.sq.takeSends(wrs); err != nil {
		return err
	}
	q.handOverLocked(wrs)
	return nil
}

// handOverLocked gives requests with filled slots to the device.
func (q *queuePair) handOverLocked(wrs []rdma.SendWR) {
	if errno := q.postSends(wrs); errno != 0 {
		q.dev.cfg.Log.Warn("device refused a send", "qp", q.local.qpn, "error", errno)
		q.failLocked(rdma.StatusDisconnected)
		return // the requests complete as flushed
	}
	q.startWatchLocked()
}

// askLocked makes the device report what it has done of the silent requests that hold memory.
func (q *queuePair) askLocked() {
	if q.state == stateReady && q.sq.ask() {
		q.handOverLocked([]rdma.SendWR{{Op: rdma.OpWrite}})
	}
}

// PostRecv hands the receives to the device.
func (q *queuePair) PostRecv(wrs ...rdma.RecvWR) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == stateError {
		return fmt.Errorf("verbs: post receive: %w", q.refusalLocked())
	}
	if len(wrs) == 0 {
		return nil
	}
	if err := q.rq.takeRecvs(wrs); err != nil {
		return err
	}
	if errno := q.postRecvs(wrs); errno != 0 {
		q.dev.cfg.Log.Warn("device refused a receive", "qp", q.local.qpn, "error", errno)
		q.failLocked(rdma.StatusDisconnected)
	}
	return nil
}

// refusalLocked is the reason why a call is refused.
func (q *queuePair) refusalLocked() error {
	if q.closed {
		return rdma.ErrClosed
	}
	return rdma.ErrState
}

// Abort puts the pair into error without waiting.
func (q *queuePair) Abort() { q.fail(rdma.StatusFlushed) }

// fail puts the pair into error: the oldest send will have the status.
func (q *queuePair) fail(status rdma.Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failLocked(status)
}

// failByPeerLocked is failLocked after a request of the peer's has failed.
func (q *queuePair) failByPeerLocked() {
	q.byPeer = q.byPeer || q.state != stateError
	q.failLocked(rdma.StatusFlushed)
}

func (q *queuePair) failLocked(status rdma.Status) {
	before := q.state
	if before == stateError {
		return
	}
	q.state, q.failStatus = stateError, status
	q.watchTimer.Stop()
	if before == stateConnecting { // Connect still works on the pair, and ends it
		cause := rdma.ErrState
		if status == rdma.StatusDisconnected {
			cause = errGivenUp
		}
		q.cancel(cause)
		return
	}
	go q.end() // awaited by Close, through done
}

// Close aborts the pair and waits until all its work has completed.
func (q *queuePair) Close() error {
	q.mu.Lock()
	q.closed = true
	q.failLocked(rdma.StatusFlushed)
	q.mu.Unlock()
	<-q.done
	q.dev.forgetPair(q)
	return nil
}

// end takes the pair from the device, and then completes what is left. It runs once, when the pair is in error
// and nobody else changes it.
func (q *queuePair) end() {
	d := q.dev
	q.linger()
	_ = d.modify("stop queue pair", q.handle, &qpAttr{state: qpError}, maskState) // fails only if the device is gone
	// some devices drop completions of a pair that is destroyed
	q.drain()
	d.forgetHandle(q)
	if err := d.lib.check("destroy queue pair", d.lib.destroyQP, q.handle); err != nil && !d.lost() {
		d.cfg.Log.Error("queue pair", "qpn", q.local.qpn, "error", err)
	}
	q.drain()
	q.sends.detach(q.id)
	q.recvs.detach(q.id)
	q.sendCQ.unreserve(q.sends, len(q.sq.slots))
	q.recvCQ.unreserve(q.recvs, len(q.rq.slots))
	q.mu.Lock()
	q.sq.flush(q.failStatus)
	q.rq.flush(rdma.StatusFlushed)
	route, unheard, farewell := q.route, !q.hasHeard, message{kind: messageGone, to: q.remote.token, from: q.local.token}
	q.mu.Unlock()
	if route != nil {
		d.bell.ring(route, &q.remote, farewell.encode(q.key))
		d.bell.leaveRoute(route, unheard)
	}
	close(q.done)
}

// lingerTime is how long a pair stays with the device after a request of the peer's has failed: the device
// reports that here before it has answered there.
const lingerTime = 50 * time.Millisecond

func (q *queuePair) linger() {
	q.mu.Lock()
	byPeer := q.byPeer
	q.mu.Unlock()
	if byPeer && !q.dev.lost() {
		<-time.After(lingerTime)
	}
}

func (q *queuePair) drain() {
	q.sends.drain()
	if q.recvs != q.sends {
		q.recvs.drain()
	}
}
