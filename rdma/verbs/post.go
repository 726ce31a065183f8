//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/rdmcfs/rdmcfs/rdma"
)

const (
	sgeMax    = 8   // entries of a request
	inlineMax = 256 // bytes; what the device grants may be less
	depthMax  = 1 << 14
	postBatch = 4 // requests handed to the device by one call
)

// scratch is where requests are put together for the device. It belongs to the pair's lock, and never
// moves: only pointers into it are handed out.
type scratch struct {
	sends  [postBatch]sendWR
	recvs  [postBatch]recvWR
	list   [postBatch][sgeMax]sge
	inline [postBatch][inlineMax]byte
	bad    uintptr
	args   [3]uintptr
}

func address64(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }

// gather writes the entries of a list that are not empty, which devices take for very long ones.
func (b *scratch) gather(k int, list []rdma.SGE) int32 {
	n := int32(0)
	for i := range list {
		if list[i].Length == 0 {
			continue
		}
		r := list[i].Region.(*region)
		b.list[k][n] = sge{addr: r.base + uint64(list[i].Offset), length: uint32(list[i].Length), lkey: r.localKey}
		n++
	}
	return n
}

// operations are the device's names of the fabric's.
var operations = [...]uint32{rdma.OpSend: wrSendImm, rdma.OpWrite: wrWrite, rdma.OpWriteImm: wrWriteImm,
	rdma.OpRead: wrRead}

// send writes request k of the batch.
func (b *scratch) send(k int, id uint64, s *slot, wr *rdma.SendWR) {
	w := &b.sends[k]
	*w = sendWR{id: id, opcode: operations[wr.Op], list: uintptr(unsafe.Pointer(&b.list[k]))}
	w.addr, w.rkey = remoteAddress(wr.RemoteKey, wr.RemoteAddr)
	binary.BigEndian.PutUint32(w.imm[:], wr.Imm)
	if s.signaled {
		w.flags |= flagSignaled
	}
	if n := copy(b.inline[k][:], wr.Inline); n > 0 {
		w.flags |= flagInline
		b.list[k][0] = sge{addr: address64(unsafe.Pointer(&b.inline[k])), length: uint32(n)}
		w.listLen = 1
		return
	}
	w.listLen = b.gather(k, wr.List)
}

// post hands the chain that starts at first to the device.
func (b *scratch) post(function, qp uintptr, first unsafe.Pointer) syscall.Errno {
	b.args = [3]uintptr{qp, uintptr(first), uintptr(unsafe.Pointer(&b.bad))}
	r, _, _ := purego.SyscallN(function, b.args[:]...)
	return syscall.Errno(int32(r))
}

// postSends hands requests with filled slots to the device, a chain at a time.
func (q *queuePair) postSends(wrs []rdma.SendWR) syscall.Errno {
	b := q.scratch
	for len(wrs) > 0 {
		n := min(len(wrs), postBatch)
		for k := range n {
			i := q.sq.tail + uint64(k)
			b.send(k, requestID(q.id, 0, i), q.sq.at(i), &wrs[k])
			if k > 0 {
				b.sends[k-1].next = uintptr(unsafe.Pointer(&b.sends[k]))
			}
		}
		q.sq.tail += uint64(n)
		if errno := b.post(q.dev.ops.postSend, q.handle, unsafe.Pointer(&b.sends)); errno != 0 {
			q.sq.tail += uint64(len(wrs) - n) // all are the queue's now, and will be flushed
			return errno
		}
		wrs = wrs[n:]
	}
	return 0
}

// postRecvs is postSends for receives.
func (q *queuePair) postRecvs(wrs []rdma.RecvWR) syscall.Errno {
	b := q.scratch
	for len(wrs) > 0 {
		n := min(len(wrs), postBatch)
		for k := range n {
			b.recvs[k] = recvWR{id: requestID(q.id, idRecv, q.rq.tail+uint64(k)), list: uintptr(unsafe.Pointer(&b.list[k])),
				listLen: b.gather(k, wrs[k].List)}
			if k > 0 {
				b.recvs[k-1].next = uintptr(unsafe.Pointer(&b.recvs[k]))
			}
		}
		q.rq.tail += uint64(n)
		if errno := b.post(q.dev.ops.postRecv, q.handle, unsafe.Pointer(&b.recvs)); errno != 0 {
			q.rq.tail += uint64(len(wrs) - n)
			return errno
		}
		wrs = wrs[n:]
	}
	return 0
}
