package mem

import (
	"runtime/debug"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

// deliver lets an event happen, under the fabric's lock. Events are checked again here: what was possible
// when they were scheduled may be void or held up now.
func (q *queuePair) deliver(e event) {
	switch e.kind {
	case eventExecute:
		q.outArmed = false
		if q.state == stateReady && q.canExecute() {
			q.executeLocked()
		}
	case eventAck:
		q.ackArmed = false
		if q.state == stateReady && !q.heldUp() {
			q.ackLocked()
		}
	case eventLate:
		q.lateLocked(e.number)
	case eventPeerGone:
		q.failLocked(rdma.StatusDisconnected)
	case eventCut:
		if q.state == stateReady && q.dev.fabric.cuts[q.line()] == e.number {
			q.failLocked(rdma.StatusDisconnected)
		}
	}
	q.armLocked()
}

// heldUp reports whether nothing moves between the two sides now.
func (q *queuePair) heldUp() bool {
	if q.dev.stopped || q.peer.dev.stopped {
		return true
	}
	_, cut := q.dev.fabric.cuts[q.line()]
	return cut
}

func (q *queuePair) canExecute() bool {
	return q.executed < q.sq.Tail && q.nak == rdma.StatusOK && q.peer.state == stateReady && !q.heldUp()
}

// starved reports whether the next request needs a receive that the peer has not posted.
func (q *queuePair) starved() bool {
	op := q.sq.At(q.executed).Op
	return (op == rdma.OpSend || op == rdma.OpWriteImm) && q.peer.rq.Len() == 0
}

// armLocked schedules what can happen next to this pair.
func (q *queuePair) armLocked() {
	if q.state != stateReady {
		return
	}
	f := q.dev.fabric
	if q.heldUp() {
		return
	}
	switch acked := q.sq.Head < q.executed; {
	case q.ackArmed:
	case acked:
		q.ackArmed = true
		f.scheduleLocked(event{kind: eventAck, pair: q, at: q.sq.At(q.sq.Head).At})
	case q.nak != rdma.StatusOK:
		q.ackArmed = true
		f.scheduleLocked(event{kind: eventAck, pair: q, at: q.lastBack})
	}
	late := q.lateFor == q.executed+1
	if !q.outArmed && q.canExecute() && !(late && q.starved()) {
		q.outArmed = true
		f.scheduleLocked(event{kind: eventExecute, pair: q, at: q.sq.At(q.executed).At})
	}
}

// executeLocked lets the next request happen at the peer.
func (q *queuePair) executeLocked() {
	f := q.dev.fabric
	if q.starved() {
		if q.lateFor != q.executed+1 {
			q.lateFor = q.executed + 1
			q.scheduleLate()
		}
		return
	}
	s := q.sq.At(q.executed)
	status := q.perform(s)
	q.lastBack = max(q.lastBack, f.now+f.delayLocked())
	if status != rdma.StatusOK {
		q.nak = status
		q.peer.failLocked(rdma.StatusFlushed)
		return
	}
	s.At = q.lastBack
	q.executed++
}

// perform moves the bytes of a request and returns its status. Registered memory may have lost its pages (a file that
// was cut). A device would have them pinned; here the copy faults, which fails this request and not the process.
func (q *queuePair) perform(s *soft.SendSlot) (status rdma.Status) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if _, fault := r.(interface{ Addr() uintptr }); !fault {
				panic(r) // tidy: another's panic goes on
			}
			status = rdma.StatusLocal
		}
	}()
	switch s.Op {
	case rdma.OpSend:
		return q.performSend(s)
	case rdma.OpRead:
		return q.performRead(s)
	}
	return q.performWrite(s)
}

func (q *queuePair) performSend(s *soft.SendSlot) rdma.Status {
	rq := &q.peer.rq
	slot := rq.First()
	if s.Length > slot.Length {
		rq.Complete(rdma.StatusLength, rdma.OpRecv, 0, 0)
		return rdma.StatusLength
	}
	dst, src := soft.CursorOfRecv(slot, s.Length), soft.CursorOfSend(s)
	copyBytes(&dst, &src, s.Length)
	rq.Complete(rdma.StatusOK, rdma.OpRecv, s.Length, s.Imm)
	return rdma.StatusOK
}

func (q *queuePair) performRead(s *soft.SendSlot) rdma.Status {
	region, mem := q.peer.dev.table.Acquire(s.RemoteKey, rdma.RemoteRead, s.RemoteAddr, s.Length)
	if region == nil {
		return rdma.StatusRemoteAccess
	}
	defer region.Release()
	dst := soft.CursorOfSend(s)
	dst.Fill(mem)
	return rdma.StatusOK
}

func (q *queuePair) performWrite(s *soft.SendSlot) rdma.Status {
	if s.Length > 0 || s.RemoteKey != 0 {
		region, mem := q.peer.dev.table.Acquire(s.RemoteKey, rdma.RemoteWrite, s.RemoteAddr, s.Length)
		if region == nil {
			return rdma.StatusRemoteAccess
		}
		defer region.Release()
		store(mem, s)
	}
	if s.Op == rdma.OpWriteImm {
		q.peer.rq.Complete(rdma.StatusOK, rdma.OpRecvWriteImm, s.Length, s.Imm)
	}
	return rdma.StatusOK
}

// copyBytes moves n bytes from src to dst, which both must have.
func copyBytes(dst, src *soft.Cursor, n int) {
	for n > 0 {
		m := src.Head()
		k := dst.Fill(m[:min(n, len(m))])
		src.Advance(k)
		n -= k
	}
}

// store copies a request's bytes to mem, the last word at the end and in one piece.
func store(mem []byte, s *soft.SendSlot) {
	tail := soft.TailBytes(mem)
	src := soft.CursorOfSend(s)
	body := soft.CursorThen(mem[:len(mem)-tail], nil)
	copyBytes(&body, &src, len(mem)-tail)
	var word [soft.WordBytes]byte
	last := soft.CursorThen(word[:tail], nil)
	copyBytes(&last, &src, tail)
	soft.StoreTail(mem, word[:tail])
}

// ackLocked completes the oldest request.
func (q *queuePair) ackLocked() {
	switch {
	case q.sq.Head < q.executed:
		q.sq.Complete(rdma.StatusOK)
	case q.nak != rdma.StatusOK:
		q.failLocked(q.nak)
	}
}

func (q *queuePair) scheduleLate() {
	f := q.dev.fabric
	f.scheduleLocked(event{kind: eventLate, pair: q, at: f.now + f.cfg.ReceiverTimeout, number: q.executed})
}

// lateLocked ends the pair if request number still waits for a receive. A wait that a fault held up, or
// whose predecessors are not acknowledged yet, begins again.
func (q *queuePair) lateLocked(number uint64) {
	if q.state != stateReady || number != q.executed || q.lateFor != number+1 || !q.starved() {
		return
	}
	switch {
	case q.heldUp():
		q.lateFor = 0 // armLocked, after the fault, starts the wait again
	case q.sq.Head < q.executed:
		q.scheduleLate()
	default:
		q.failLocked(rdma.StatusReceiverNotReady)
	}
}
