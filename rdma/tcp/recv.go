package tcp

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

const (
	// inboxBytes is the header buffer of a socket that is read directly: at most this much of a block is copied once
	// more, which is cheaper than a system call of its own for the header.
	inboxBytes = 4 << 10
	// inboxCopyBytes is the buffer of a stream all of whose bytes go through it.
	inboxCopyBytes = 64 << 10
	// sumBytes is read or written at once of a message that is summed up: it must still be in the processor's cache
	// afterwards.
	sumBytes = 1 << 20
	// lingerMax is how long a pair that has sent the peer an error waits for it to hang up.
	lingerMax = 250 * time.Millisecond
)

// errTold ends readLoop after this side has sent a frameNak.
var errTold = errors.New("tcp: peer was told of its error")

// inbox is the receiving side: a small buffer for headers and small messages, and the scatter list.
type inbox struct {
	stream  stream
	buf     []byte
	lo, hi  int
	runs    [][]byte
	word    [soft.WordBytes]byte
	last    [1]soft.Piece // of word
	guard   guard
	idle    func()
	take    func(n int) bool
	err     error  // of a frame that was served from the buffer
	own     []byte // buf of the pair's own goroutine
	shared  []byte // buf in the watch, from the first stay on
	small   int    // frames in a row that fit the buffer in the watch
	unacked int    // bytes executed since the last acknowledgement went out
	summing bool   // payload is summed up into crc
	crc     uint64
}

func (in *inbox) init(q *queuePair) {
	in.runs = make([][]byte, 0, maxSGE+4)
	in.guard.table = q.dev.table
	in.idle = q.idle
	in.take = q.takeWhole
}

// readLoop serves the socket until it fails, then ends the pair.
func (q *queuePair) readLoop(writer *sync.WaitGroup) {
	size := inboxCopyBytes
	raw, isRaw := q.stream.(*rawStream)
	if isRaw {
		size = inboxBytes
	}
	in := &q.in
	in.stream = q.stream
	in.own = make([]byte, size)
	in.buf = in.own
	var err error
	for err == nil {
		if isRaw && in.lo == in.hi {
			err = q.serveWhole(raw)
		} else {
			err = q.readFrame()
		}
	}
	q.end(err, writer)
}

func (in *inbox) read(runs [][]byte) (int, error) { return in.stream.read(runs, &in.guard, in.idle) }

func (q *queuePair) readFrame() error {
	in := &q.in
	for in.hi-in.lo < frameBytes {
		copy(in.buf, in.buf[in.lo:in.hi])
		in.lo, in.hi = 0, in.hi-in.lo
		in.guard.on = false
		n, err := in.read(append(in.runs[:0], in.buf[in.hi:]))
		if err != nil {
			return err
		}
		in.hi += n
	}
	f, err := decodeFrame(in.buf[in.lo:in.hi])
	if err != nil {
		return err
	}
	in.lo += frameBytes
	in.small++
	if f.kind.carries() && f.length > smallMax {
		in.small = 0
		q.dev.watch.large.Store(true)
	}
	if err := q.book(&f); err != nil {
		return err
	}
	return q.serve(&f)
}

// queues are the two work queues of a pair.
type queues struct {
	sq soft.SendQueue
	rq soft.RecvQueue
}

// hold and release enclose what readLoop does to complete work: it hands the completions over itself. No lock is held
// around them.
func (q *queues) hold() {
	q.sq.CQ().Hold()
	if q.rq.CQ() != q.sq.CQ() {
		q.rq.CQ().Hold()
	}
}

func (q *queues) release() {
	q.sq.CQ().Release()
	if q.rq.CQ() != q.sq.CQ() {
		q.rq.CQ().Release()
	}
}

// book takes over the counters in a frame, completes sends, and writes what they set free.
func (q *queuePair) book(f *frame) error {
	more, err := q.count(f)
	if err == nil && more {
		q.mu.Lock()
		q.kickLocked()
	}
	return err
}

// count is book's part under the lock, and hands the completions over. It reports whether there may be more to write.
func (q *queuePair) count(f *frame) (more bool, err error) {
	q.hold()
	defer q.release()
	q.mu.Lock()
	defer q.mu.Unlock()
	acked := f.ack - uint32(q.acked)
	credit := f.credit - q.peerPosted
	if uint64(acked) > q.tx-q.acked || credit > maxQueueDepth || f.credit-q.used > maxQueueDepth {
		return false, errProtocol
	}
	q.acked += uint64(acked)
	q.answered = acked > 0 && f.kind == frameSend && f.length <= answerBytes
	q.peerPosted = f.credit
	q.completeLocked()
	return credit > 0 && q.tx < q.sq.Tail, nil
}

func (q *queuePair) serve(f *frame) error {
	switch f.kind {
	case frameSend:
		return q.serveSend(f)
	case frameWrite, frameWriteImm:
		return q.serveWrite(f)
	case frameRead:
		return q.serveRead(f)
	case frameReadData:
		return q.serveReadData(f)
	case frameNak:
		return q.serveNak(f)
	}
	return nil
}

// serveSend puts a message into the oldest receive.
func (q *queuePair) serveSend(f *frame) error {
	q.mu.Lock()
	if q.rq.Len() == 0 || q.state != stateReady {
		q.mu.Unlock()
		return errProtocol
	}
	slot := q.rq.First() // stays the first: only this goroutine takes it
	if int(f.length) > slot.Length {
		q.rq.Complete(rdma.StatusLength, rdma.OpRecv, 0, 0)
		q.mu.Unlock()
		return q.refuse(rdma.StatusLength)
	}
	q.mu.Unlock()
	cur := soft.CursorOfRecv(slot, int(f.length))
	in := &q.in
	in.guard.on = false
	in.summing, in.crc = q.wantCRC, 0
	err := in.payload(&cur)
	in.summing = false
	if err != nil {
		return err
	}
	q.hold()
	defer q.release()
	q.mu.Lock()
	if q.state != stateReady {
		q.mu.Unlock()
		return net.ErrClosed
	}
	q.consumed++
	q.rq.CompleteAs(rdma.Completion{Op: rdma.OpRecv, Bytes: int(f.length), Imm: f.imm, HasImm: true, CRC: in.crc,
		HasCRC: q.wantCRC})
	q.executedLocked(int(f.length))
	return nil
}

// serveWrite puts a message into a region, its last aligned word at the end and in one piece.
func (q *queuePair) serveWrite(f *frame) error {
	in, n := &q.in, int(f.length)
	key := rdma.RegionKey(f.key)
	if n > 0 || f.key != 0 {
		region, mem := q.dev.table.Acquire(key, rdma.RemoteWrite, f.addr, n)
		if region == nil {
			return q.refuse(rdma.StatusRemoteAccess)
		}
		region.Release()
		switch err := in.write(f, mem); err {
		case nil:
		case errStale:
			return q.refuse(rdma.StatusRemoteAccess)
		default:
			return err
		}
	}
	in.guard.on = false
	q.hold()
	defer q.release()
	q.mu.Lock()
	if q.state != stateReady {
		q.mu.Unlock()
		return net.ErrClosed
	}
	if f.kind == frameWriteImm {
		if q.rq.Len() == 0 {
			q.mu.Unlock()
			return errProtocol
		}
		q.consumed++
		q.rq.Complete(rdma.StatusOK, rdma.OpRecvWriteImm, n, f.imm)
	}
	q.executedLocked(n)
	return nil
}

// write receives into mem, which is only touched while its region is acquired. The error is errStale if that can't be.
func (in *inbox) write(f *frame, mem []byte) error {
	in.guard.key, in.guard.need, in.guard.addr, in.guard.n, in.guard.on =
		rdma.RegionKey(f.key), rdma.RemoteWrite, f.addr, len(mem), true
	tail := soft.TailBytes(mem)
	in.last[0] = soft.Piece{Mem: in.word[:tail]}
	cur := soft.CursorThen(mem[:len(mem)-tail], in.last[:])
	err := in.payload(&cur)
	if err == nil && tail > 0 {
		region, ok := in.guard.enter()
		if ok {
			soft.StoreTail(mem, in.word[:tail])
			region.Release()
		} else {
			err = errStale
		}
	}
	return err
}

// payload fills cur from the buffer and then from the socket.
func (in *inbox) payload(cur *soft.Cursor) error {
	if err := in.fromBuffer(cur); err != nil {
		return err
	}
	for cur.Left() > 0 {
		in.lo, in.hi = 0, 0
		left := cur.Left()
		runs := cur.Append(in.runs[:0])
		if in.summing && left > sumBytes && in.stream.direct() {
			runs = shorten(runs, sumBytes)
		} else {
			runs = append(runs, in.buf)
		}
		n, err := in.read(runs)
		if err != nil {
			return err
		}
		if !in.stream.direct() {
			in.hi = n
			if err := in.fromBuffer(cur); err != nil {
				return err
			}
			continue
		}
		in.sum(runs, min(n, left))
		cur.Advance(min(n, left))
		in.hi = max(0, n-left)
	}
	return nil
}

// fromBuffer moves buffered bytes to cur.
func (in *inbox) fromBuffer(cur *soft.Cursor) error {
	if in.lo == in.hi || cur.Left() == 0 {
		return nil
	}
	region, ok := in.guard.enter()
	if !ok {
		return errStale
	}
	n := cur.Fill(in.buf[in.lo:in.hi])
	leave(region)
	if in.summing {
		in.crc = crc64nvme.Update(in.crc, in.buf[in.lo:in.lo+n])
	}
	in.lo += n
	return nil
}

// sum adds the first n bytes of runs, which have just come, to the checksum.
func (in *inbox) sum(runs [][]byte, n int) {
	for i := 0; in.summing && n > 0; i++ {
		k := min(n, len(runs[i]))
		in.crc = crc64nvme.Update(in.crc, runs[i][:k])
		n -= k
	}
}

// shorten cuts runs down to n bytes, which they have, in place.
func shorten(runs [][]byte, n int) [][]byte {
	for i, r := range runs {
		if n <= len(r) {
			runs[i] = r[:n]
			return runs[:i+1]
		}
		n -= len(r)
	}
	return runs
}

// serveRead checks a remote read and queues its answer.
func (q *queuePair) serveRead(f *frame) error {
	region, _ := q.dev.table.Acquire(rdma.RegionKey(f.key), rdma.RemoteRead, f.addr, int(f.length))
	if region == nil {
		return q.refuse(rdma.StatusRemoteAccess)
	}
	region.Release()
	q.mu.Lock()
	if !q.answers.push(answer{key: rdma.RegionKey(f.key), addr: f.addr, n: int(f.length)}) {
		q.mu.Unlock()
		return errProtocol
	}
	q.executed++
	q.kickLocked()
	return nil
}

// serveReadData scatters the answer to our oldest unanswered read.
func (q *queuePair) serveReadData(f *frame) error {
	q.mu.Lock()
	slot := q.oldestReadLocked()
	q.mu.Unlock()
	if slot == nil || slot.Length != int(f.length) {
		return errProtocol
	}
	cur := soft.CursorOfSend(slot)
	q.in.guard.on = false
	if err := q.in.payload(&cur); err != nil {
		return err
	}
	q.hold()
	defer q.release()
	q.mu.Lock()
	slot.Answered = true
	q.reads--
	q.completeLocked()
	q.kickLocked()
	return nil
}

func (q *queuePair) oldestReadLocked() *soft.SendSlot {
	for i := max(q.nextRead, q.sq.Head); i < q.tx; i++ {
		if s := q.sq.At(i); s.Op == rdma.OpRead && !s.Answered {
			q.nextRead = i
			return s
		}
	}
	return nil
}

// serveNak ends the pair: the request after those acknowledged has failed at the peer.
func (q *queuePair) serveNak(f *frame) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.acked == q.tx {
		return errProtocol
	}
	q.failLocked(f.status)
	return net.ErrClosed
}

// refuse tells the peer that its request failed, after all answers it still expects.
func (q *queuePair) refuse(status rdma.Status) error {
	q.mu.Lock()
	if q.state != stateReady {
		q.mu.Unlock()
		return net.ErrClosed
	}
	q.state = stateError
	q.failStatus = rdma.StatusFlushed
	q.nak = status
	q.rnrTimer.Stop()
	q.ackTimer.Stop()
	_ = q.conn.SetDeadline(time.Now().Add(q.dev.cfg.PeerTimeout))
	q.kickLocked()
	return errTold
}

// end completes all work once nobody touches its memory, then ends the other goroutine and the socket.
func (q *queuePair) end(cause error, writer *sync.WaitGroup) {
	q.mu.Lock()
	q.failLocked(rdma.StatusDisconnected)
	for q.writing {
		q.calm.Wait()
	}
	whole := len(q.out.runs) == 0 && !q.out.seal.on
	q.sent = q.tx
	q.completeLocked()
	q.flushLocked()
	q.mu.Unlock()
	close(q.stop)
	writer.Wait()
	q.farewell(cause, whole)
	_ = q.conn.Close()
	q.dev.log.Debug("queue pair ended", "cause", cause)
	close(q.done)
}

// farewell gives the peer a chance to read the last frames before the socket is closed.
func (q *queuePair) farewell(cause error, whole bool) {
	if cause != errTold {
		if whole && q.told != q.executed {
			q.lastAck()
		}
		return
	}
	if tc, ok := q.conn.(*net.TCPConn); ok {
		_ = tc.CloseWrite()
	}
	_ = q.conn.SetReadDeadline(time.Now().Add(lingerMax))
	_, _ = io.Copy(io.Discard, io.LimitReader(q.conn, maxMessage))
}
