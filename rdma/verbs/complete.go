//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"encoding/binary"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// completed takes one completion of the device. The lock of the device's queue is held.
func (q *queuePair) completed(wc *workCompletion) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if wc.id&idRecv != 0 {
		q.receivedLocked(wc)
	} else {
		q.sentLocked(wc)
	}
}

func (q *queuePair) sentLocked(wc *workCompletion) {
	i, ok := q.sq.number(wc.id)
	if !ok {
		return
	}
	switch status := sendStatus(wc.status, q.sq.at(i).op); status {
	case rdma.StatusFlushed: // end flushes what is left
		q.failByPeerLocked()
	case rdma.StatusOK:
		q.sq.completeBefore(i)
		q.sq.complete(rdma.StatusOK, rdma.Completion{})
		if q.sq.askAgain && !q.sq.asked {
			q.askLocked()
		}
	default:
		q.sq.completeBefore(i)
		left := rdma.StatusFlushed
		if q.sq.at(i).own {
			left = status // nobody else would have it
		}
		q.sq.complete(status, rdma.Completion{})
		q.failLocked(left)
	}
}

func (q *queuePair) receivedLocked(wc *workCompletion) {
	i, ok := q.rq.number(wc.id)
	if !ok || i != q.rq.head { // receives complete one by one
		return
	}
	switch status := recvStatus(wc.status); status {
	case rdma.StatusFlushed:
		q.failByPeerLocked()
	case rdma.StatusOK:
		c := rdma.Completion{Op: rdma.OpRecv, Bytes: int(wc.bytes), Imm: binary.BigEndian.Uint32(wc.imm[:]), HasImm: true}
		if wc.opcode == wcRecvWriteImm {
			c.Op = rdma.OpRecvWriteImm
		}
		q.rq.complete(rdma.StatusOK, c)
	default:
		q.rq.complete(status, rdma.Completion{})
		q.failByPeerLocked()
	}
}

// sendStatus is the fabric's word for how a send ended. Flushed ones are left to the pair's end.
func sendStatus(status uint32, op rdma.Opcode) rdma.Status {
	switch status {
	case wcSuccess:
		return rdma.StatusOK
	case wcFlushed:
		return rdma.StatusFlushed
	case wcLocalLength, wcLocalOperation, wcLocalProtection, wcLocalAccess:
		return rdma.StatusLocal
	// the peer's receive was too small (soft RoCE takes the latter for it), or it refuses
	case wcRemoteRequest, wcRemoteOperation:
		if op == rdma.OpSend {
			return rdma.StatusLength
		}
		return rdma.StatusRemoteAccess
	case wcRemoteAccess:
		return rdma.StatusRemoteAccess
	case wcRNRExceeded:
		return rdma.StatusReceiverNotReady
	}
	return rdma.StatusDisconnected // wcRetryExceeded and what only dying devices say
}

func recvStatus(status uint32) rdma.Status {
	switch status {
	case wcSuccess:
		return rdma.StatusOK
	case wcLocalLength, wcLocalOperation: // soft RoCE takes the latter for a receive that is too small
		return rdma.StatusLength
	case wcLocalProtection, wcLocalAccess:
		return rdma.StatusLocal
	}
	return rdma.StatusFlushed
}

// watch counts how long sends have waited. The device repeats a send that finds no receive without end and without a
// report, but one whose packets are lost only for the time of a dead peer. So a send that stays for longer than that,
// and than its bytes need, waits for a receiver.
type watch struct {
	on    bool
	head  uint64 // oldest send at the last tick
	ticks int    // since then
}

const (
	watchTicks = 4       // ticks in ReceiverTimeout
	watchSpeed = 1 << 20 // bytes a second that the slowest fabric carries
)

func (q *queuePair) watchInterval() time.Duration { return q.dev.cfg.ReceiverTimeout / watchTicks }

// startWatchLocked makes the timer run while sends are outstanding.
func (q *queuePair) startWatchLocked() {
	if q.watch.on || q.state != stateReady {
		return
	}
	q.watch = watch{on: true, head: q.sq.head}
	q.watchTimer.Reset(q.watchInterval())
}

func (q *queuePair) watchTick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &q.watch
	if q.state != stateReady || q.sq.len() == 0 {
		w.on = false
		return
	}
	w.ticks++
	if w.head != q.sq.head {
		w.head, w.ticks = q.sq.head, 0
	}
	if late, ok := q.waitingLocked(); ok && time.Duration(w.ticks)*q.watchInterval() >= q.patienceLocked(late) {
		q.sq.completeBefore(late)
		q.sq.complete(rdma.StatusReceiverNotReady, rdma.Completion{})
		q.failLocked(rdma.StatusFlushed)
		return
	}
	q.watchTimer.Reset(q.watchInterval())
}

// waitingLocked finds the send that may wait for a receive: the first that needs one, if the device has
// not reported it or a later one.
func (q *queuePair) waitingLocked() (uint64, bool) {
	late, found := uint64(0), false
	for i := q.sq.head; i < q.sq.tail; i++ {
		s := q.sq.at(i)
		if !found && s.consumes() {
			late, found = i, true
		}
		if s.signaled {
			return late, found
		}
	}
	return 0, false // none of these is to be reported
}

// patienceLocked is how long the requests up to number i may take.
func (q *queuePair) patienceLocked(i uint64) time.Duration {
	total := 0
	for k := q.sq.head; k <= i; k++ {
		total += q.sq.at(k).bytes
	}
	return q.dev.cfg.ReceiverTimeout + time.Duration(total/watchSpeed)*time.Second
}
