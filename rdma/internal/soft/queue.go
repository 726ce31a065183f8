package soft

import (
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// HeaderBytes is the room each send slot keeps for a provider's wire header.
const HeaderBytes = 40

// crcBytes is the room of a checksum that a provider makes.
const crcBytes = 8

// SendSlot is a posted send-queue request.
type SendSlot struct {
	ID         uint64
	Op         rdma.Opcode
	Unsignaled bool
	Answered   bool // of a read: its bytes have arrived
	Seal       bool // the last crcBytes are to become a checksum
	Imm        uint32
	RemoteKey  rdma.RegionKey
	RemoteAddr uint64
	Length     int
	Pieces     []Piece
	Inline     []byte
	At         time.Duration     // for providers with a virtual clock
	Header     [HeaderBytes]byte // for providers with a wire
}

// SendQueue holds the posted sends of a pair, oldest at Head. The pair's lock protects it.
type SendQueue struct {
	table  *Table
	limits rdma.Limits
	cq     *CQ
	qp     rdma.QueuePair
	slots  []SendSlot
	Head   uint64 // the oldest that is not completed
	Tail   uint64 // the next to post
}

// NewSendQueue makes a queue of the given depth that completes into cq in the name of qp.
func NewSendQueue(t *Table, l rdma.Limits, depth int, cq *CQ, qp rdma.QueuePair) SendQueue {
	return SendQueue{table: t, limits: l, cq: cq, qp: qp, slots: make([]SendSlot, depth)}
}

// At is the slot of request number i.
func (q *SendQueue) At(i uint64) *SendSlot { return &q.slots[i%uint64(len(q.slots))] }

// Len is the number of outstanding requests.
func (q *SendQueue) Len() int { return int(q.Tail - q.Head) }

// Post takes all requests or none, and returns how many bytes they hold together.
func (q *SendQueue) Post(wrs []rdma.SendWR) (int, error) {
	if len(wrs) > len(q.slots)-q.Len() {
		return 0, fmt.Errorf("soft: post %d sends behind %d of %d: %w", len(wrs), q.Len(), len(q.slots), rdma.ErrQueueFull)
	}
	total := 0
	for i := range wrs {
		s := q.At(q.Tail + uint64(i))
		if err := q.fill(s, &wrs[i]); err != nil {
			for j := range i {
				undone := q.At(q.Tail + uint64(j))
				undone.Pieces = releasePieces(undone.Pieces)
			}
			return 0, fmt.Errorf("soft: post send %d: %w", wrs[i].ID, err)
		}
		total += s.Length
	}
	q.Tail += uint64(len(wrs))
	return total, nil
}

func (q *SendQueue) fill(s *SendSlot, wr *rdma.SendWR) error {
	if err := q.check(wr); err != nil {
		return err
	}
	s.Inline = append(s.Inline[:0], wr.Inline...)
	pieces, n, err := q.table.take(wr.List, s.Pieces[:0])
	s.Pieces = pieces
	if err != nil {
		return err
	}
	if s.Length = n + len(wr.Inline); s.Length > q.limits.MaxMessage {
		s.Pieces = releasePieces(s.Pieces)
		return fmt.Errorf("soft: message of %d bytes, limit %d: %w", s.Length, q.limits.MaxMessage, rdma.ErrRequest)
	}
	s.ID, s.Op, s.Unsignaled, s.Answered, s.Seal = wr.ID, wr.Op, wr.Unsignaled, false, wr.SealCRC
	s.Imm, s.RemoteKey, s.RemoteAddr = wr.Imm, wr.RemoteKey, wr.RemoteAddr
	return nil
}

func (q *SendQueue) check(wr *rdma.SendWR) error {
	switch {
	case wr.Op < rdma.OpSend || wr.Op > rdma.OpRead:
		return fmt.Errorf("soft: operation %v: %w", wr.Op, rdma.ErrRequest)
	case len(wr.List) > q.limits.MaxSGE:
		return fmt.Errorf("soft: %d entries, limit %d: %w", len(wr.List), q.limits.MaxSGE, rdma.ErrRequest)
	case len(wr.Inline) > q.limits.MaxInline:
		return fmt.Errorf("soft: %d inline bytes, limit %d: %w", len(wr.Inline), q.limits.MaxInline, rdma.ErrRequest)
	case len(wr.Inline) > 0 && (len(wr.List) > 0 || wr.Op == rdma.OpRead):
		return fmt.Errorf("soft: inline bytes beside a list or in a read: %w", rdma.ErrRequest)
	case wr.SealCRC && (!q.limits.SealsCRC || wr.Op != rdma.OpSend || len(wr.List) == 0 ||
		wr.List[len(wr.List)-1].Length < crcBytes):
		return fmt.Errorf("soft: no place for a checksum: %w", rdma.ErrRequest)
	}
	return nil
}

// CQ is the queue that requests complete into.
func (q *SendQueue) CQ() *CQ { return q.cq }

// Complete ends the oldest request with status.
func (q *SendQueue) Complete(status rdma.Status) {
	s := q.At(q.Head)
	q.Head++
	if !s.Unsignaled || status != rdma.StatusOK {
		c := rdma.Completion{ID: s.ID, QP: q.qp, Op: s.Op, Status: status}
		if status == rdma.StatusOK {
			c.Bytes = s.Length
		}
		q.cq.Push(c)
	}
	s.Pieces = releasePieces(s.Pieces) // last: a caller that closed a region finds the completion queued
}

// Flush ends all requests, the oldest with first and the others as flushed.
func (q *SendQueue) Flush(first rdma.Status) {
	for q.Len() > 0 {
		q.Complete(first)
		first = rdma.StatusFlushed
	}
}

// RecvSlot is a posted receive.
type RecvSlot struct {
	ID     uint64
	Length int // room in Pieces
	Pieces []Piece
}

// RecvQueue holds the posted receives of a pair, oldest at Head. The pair's lock protects it.
type RecvQueue struct {
	table  *Table
	limits rdma.Limits
	cq     *CQ
	qp     rdma.QueuePair
	slots  []RecvSlot
	Head   uint64 // the oldest that is not completed
	Tail   uint64 // the next to post
	Came   uint64 // completed well
}

// NewRecvQueue makes a queue of the given depth that completes into cq in the name of qp.
func NewRecvQueue(t *Table, l rdma.Limits, depth int, cq *CQ, qp rdma.QueuePair) RecvQueue {
	return RecvQueue{table: t, limits: l, cq: cq, qp: qp, slots: make([]RecvSlot, depth)}
}

// CQ is the queue that receives complete into.
func (q *RecvQueue) CQ() *CQ { return q.cq }

// Len is the number of outstanding receives.
func (q *RecvQueue) Len() int { return int(q.Tail - q.Head) }

// First is the oldest receive; there must be one.
func (q *RecvQueue) First() *RecvSlot { return q.at(q.Head) }

func (q *RecvQueue) at(i uint64) *RecvSlot { return &q.slots[i%uint64(len(q.slots))] }

// Post takes all receives or none.
func (q *RecvQueue) Post(wrs []rdma.RecvWR) error {
	if len(wrs) > len(q.slots)-q.Len() {
		return fmt.Errorf("soft: post %d receives behind %d of %d: %w", len(wrs), q.Len(), len(q.slots), rdma.ErrQueueFull)
	}
	for i := range wrs {
		if err := q.fill(q.at(q.Tail+uint64(i)), &wrs[i]); err != nil {
			for j := range i {
				undone := q.at(q.Tail + uint64(j))
				undone.Pieces = releasePieces(undone.Pieces)
			}
			return fmt.Errorf("soft: post receive %d: %w", wrs[i].ID, err)
		}
	}
	q.Tail += uint64(len(wrs))
	return nil
}

func (q *RecvQueue) fill(s *RecvSlot, wr *rdma.RecvWR) error {
	if len(wr.List) > q.limits.MaxSGE {
		return fmt.Errorf("soft: %d entries, limit %d: %w", len(wr.List), q.limits.MaxSGE, rdma.ErrRequest)
	}
	pieces, n, err := q.table.take(wr.List, s.Pieces[:0])
	s.Pieces = pieces
	if err != nil {
		return err
	}
	s.ID, s.Length = wr.ID, n
	return nil
}

// Complete ends the oldest receive. op is OpRecv or OpRecvWriteImm, n the bytes of the message.
func (q *RecvQueue) Complete(status rdma.Status, op rdma.Opcode, n int, imm uint32) {
	c := rdma.Completion{Op: op, Status: status}
	if status == rdma.StatusOK {
		c.Bytes, c.Imm, c.HasImm = n, imm, true
	}
	q.CompleteAs(c)
}

// CompleteAs ends the oldest receive with a completion, whose ID and QP it fills in.
func (q *RecvQueue) CompleteAs(c rdma.Completion) {
	s := q.First()
	q.Head++
	if c.Status == rdma.StatusOK {
		q.Came++
	}
	c.ID, c.QP = s.ID, q.qp
	q.cq.Push(c)
	s.Pieces = releasePieces(s.Pieces)
}

// Flush ends all receives, the oldest with first and the others as flushed.
func (q *RecvQueue) Flush(first rdma.Status) {
	for q.Len() > 0 {
		q.Complete(first, rdma.OpRecv, 0, 0)
		first = rdma.StatusFlushed
	}
}
