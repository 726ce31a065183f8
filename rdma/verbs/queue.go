//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// slot is a posted request: what it uses, and how it is to complete.
type slot struct {
	id         uint64
	op         rdma.Opcode
	unsignaled bool // for the caller
	signaled   bool // for the device
	own        bool // ours: posted so that the device reports those before it
	bytes      int
	regions    []*region // acquired
}

// consumes reports whether the request uses up a receive at the peer.
func (s *slot) consumes() bool { return s.op == rdma.OpSend || s.op == rdma.OpWriteImm }

// workQueue is the shadow of one queue of the device, oldest request at head. The pair's lock protects it.
type workQueue struct {
	qp         *queuePair
	cq         *completionQueue
	depth      int // requests that the caller may have outstanding
	slots      []slot
	head, tail uint64
	quiet      int  // requests since the last that the device reports
	waits      bool // one of those may wait for a receiver
	holds      bool // one of those holds memory
	asked      bool // a request of our own is under way
	askAgain   bool // and another is to follow it
}

// newWorkQueue makes a queue with room for depth requests and for others that may not count: requests that the device
// does not report, as nobody knows whether they are done, and one of our own.
func newWorkQueue(qp *queuePair, cq *completionQueue, depth, silent int) workQueue {
	return workQueue{qp: qp, cq: cq, depth: depth, slots: make([]slot, depth+silent)}
}

// own is how many requests of our own a send queue may have outstanding.
const own = 1

// silentOf is how many requests of a send queue the device does not report in a row.
func silentOf(depth int) int { return depth / 2 }

func (q *workQueue) at(i uint64) *slot { return &q.slots[i%uint64(len(q.slots))] }
func (q *workQueue) len() int          { return int(q.tail - q.head) }

// room checks that n requests fit.
func (q *workQueue) room(n int) error {
	busy := q.len() - q.quiet
	if q.asked {
		busy -= own
	}
	if n > q.depth-busy {
		return fmt.Errorf("verbs: post %d requests behind %d of %d: %w", n, busy, q.depth, rdma.ErrQueueFull)
	}
	return nil
}

// undo drops the n newest slots that were filled and not posted.
func (q *workQueue) undo(n int) {
	for i := range n {
		q.at(q.tail + uint64(i)).release()
	}
}

func (s *slot) release() {
	for i, r := range s.regions {
		r.release()
		s.regions[i] = nil
	}
	s.regions = s.regions[:0]
}

// take acquires the memory of a request.
func (s *slot) take(d *device, list []rdma.SGE) error {
	s.regions, s.bytes = s.regions[:0], 0
	if len(list) > d.limits.MaxSGE {
		return fmt.Errorf("verbs: %d entries, limit %d: %w", len(list), d.limits.MaxSGE, rdma.ErrRequest)
	}
	for i := range list {
		r, ok := list[i].Region.(*region)
		if !ok || r.dev != d {
			s.release()
			return fmt.Errorf("verbs: region of another device: %w", rdma.ErrRequest)
		}
		if err := r.acquire(list[i].Offset, list[i].Length); err != nil {
			s.release()
			return err
		}
		s.regions = append(s.regions, r)
		s.bytes += list[i].Length
	}
	return nil
}

// takeSends fills slots for all requests, or for none.
func (q *workQueue) takeSends(wrs []rdma.SendWR) error {
	if err := q.room(len(wrs)); err != nil {
		return err
	}
	for i := range wrs {
		if err := q.takeSend(q.at(q.tail+uint64(i)), &wrs[i]); err != nil {
			q.undo(i)
			return fmt.Errorf("verbs: post send %d: %w", wrs[i].ID, err)
		}
	}
	for i := range wrs {
		q.signal(q.at(q.tail+uint64(i)), i == len(wrs)-1)
	}
	return nil
}

func (q *workQueue) takeSend(s *slot, wr *rdma.SendWR) error {
	d := q.qp.dev
	switch {
	case wr.Op < rdma.OpSend || wr.Op > rdma.OpRead:
		return fmt.Errorf("operation %v: %w", wr.Op, rdma.ErrRequest)
	case len(wr.Inline) > d.limits.MaxInline:
		return fmt.Errorf("%d inline bytes, limit %d: %w", len(wr.Inline), d.limits.MaxInline, rdma.ErrRequest)
	case len(wr.Inline) > 0 && (len(wr.List) > 0 || wr.Op == rdma.OpRead):
		return fmt.Errorf("inline bytes beside a list or in a read: %w", rdma.ErrRequest)
	case wr.SealCRC:
		return fmt.Errorf("the card makes no checksums: %w", rdma.ErrRequest)
	}
	if err := s.take(d, wr.List); err != nil {
		return err
	}
	if s.bytes += len(wr.Inline); s.bytes > d.limits.MaxMessage {
		s.release()
		return fmt.Errorf("message of %d bytes, limit %d: %w", s.bytes, d.limits.MaxMessage, rdma.ErrRequest)
	}
	s.id, s.op, s.unsignaled, s.own = wr.ID, wr.Op, wr.Unsignaled, false
	return nil
}

// signal decides whether the device is to report the request. It reports the last request of a post if silent ones in
// the post may wait for a receiver, so that the wait is seen; and one request in half a queue, so that slots come free.
// Memory that silent requests hold is released then, or when its owner wants it back: see ask.
func (q *workQueue) signal(s *slot, last bool) {
	q.quiet++
	q.waits = q.waits || s.consumes()
	q.holds = q.holds || len(s.regions) > 0
	s.signaled = !s.unsignaled || last && q.waits || q.quiet > silentOf(q.depth)
	if s.signaled {
		q.quiet, q.waits, q.holds = 0, false, false
	}
}

// ask fills a slot with an empty write of our own, whose completion shows that the silent requests before it are done
// too. It reports whether that write is to be posted: not if none of them holds memory, nor while another such write is
// outstanding; in the latter case a new one follows it.
func (q *workQueue) ask() bool {
	q.askAgain = q.asked && q.holds
	if q.asked || !q.holds {
		return false
	}
	s := q.at(q.tail)
	*s = slot{op: rdma.OpWrite, unsignaled: true, signaled: true, own: true, regions: s.regions[:0]}
	q.asked, q.quiet, q.waits, q.holds = true, 0, false, false
	return true
}

// takeRecvs fills slots for all receives, or for none.
func (q *workQueue) takeRecvs(wrs []rdma.RecvWR) error {
	if err := q.room(len(wrs)); err != nil {
		return err
	}
	for i := range wrs {
		s := q.at(q.tail + uint64(i))
		if err := s.take(q.qp.dev, wrs[i].List); err != nil {
			q.undo(i)
			return fmt.Errorf("verbs: post receive %d: %w", wrs[i].ID, err)
		}
		s.id, s.op, s.unsignaled = wrs[i].ID, rdma.OpRecv, false
	}
	return nil
}

// complete ends the oldest request; c holds what only a good receive has.
func (q *workQueue) complete(status rdma.Status, c rdma.Completion) {
	s := q.at(q.head)
	q.head++
	if s.own {
		q.asked = false
		return
	}
	if !s.unsignaled || status != rdma.StatusOK {
		c.ID, c.QP, c.Status = s.id, q.qp, status
		if c.Op == 0 {
			c.Op = s.op
		}
		if status == rdma.StatusOK && !c.Op.IsReceive() {
			c.Bytes = s.bytes
		}
		q.cq.done.Push(c)
	}
	s.release() // last: a caller that closed a region finds the completion queued
}

// completeBefore ends well all requests older than number i.
func (q *workQueue) completeBefore(i uint64) {
	for q.head < i {
		q.complete(rdma.StatusOK, rdma.Completion{})
	}
}

// flush ends all requests, the oldest with first and the others as flushed.
func (q *workQueue) flush(first rdma.Status) {
	for q.len() > 0 {
		own := q.at(q.head).own
		if q.complete(first, rdma.Completion{}); !own {
			first = rdma.StatusFlushed
		}
	}
}

// Ids of requests at the device: pair, queue, and the low bits of the request's number.
const (
	idRecv     = 1 << 31
	idSequence = idRecv - 1
)

func requestID(pair uint32, flags, i uint64) uint64 { return uint64(pair)<<32 | flags | i&idSequence }

// number finds the request that an id belongs to.
func (q *workQueue) number(id uint64) (uint64, bool) {
	i := q.head + (id-q.head)&idSequence
	return i, i < q.tail
}
