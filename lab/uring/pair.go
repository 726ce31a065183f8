//go:build linux

package uring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// headBytes is the size of a request's head on the wire: op, immediate, length, key, address.
const headBytes = 32

// stepBytes bounds one operation on a socket. A write of megabytes to a paced socket leaves it idle while the
// processor copies, and a read of them holds back acknowledgements; a card cuts what it sends into packets by itself,
// whatever the length of the request.
const stepBytes = 256 << 10

// user_data of requests: the pair's number, and which side of it.
const (
	userSend = 0
	userRecv = 1
)

// pair is a queue pair: one TCP connection, with one send and one receive under way at a time.
type pair struct {
	d        *Device
	number   int
	cfg      rdma.QPConfig
	send     *queue
	recv     *queue
	listener net.Listener
	file     *os.File
	fd       int32
	broken   bool

	sends   []rdma.SendWR // the first is under way
	sending bool          // an operation is in the kernel
	heads   [2]struct {   // of what is sent and what comes
		b  [headBytes]byte
		at int
	}
	piece, offset int // of the first send: entry of its list, bytes of it

	recvs  []rdma.RecvWR
	coming bool // an operation is in the kernel
	op     rdma.Opcode
	imm    uint32
	total  int
	into   rdma.SGE // where what comes goes on
	came   int
}

// NewQP makes a queue pair that can be dialled.
func (d *Device) NewQP(cfg rdma.QPConfig) (rdma.QueuePair, error) {
	send, ok1 := cfg.SendCQ.(*queue)
	recv, ok2 := cfg.RecvCQ.(*queue)
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("uring: completion queue of another device: %w", rdma.ErrRequest)
	}
	for i := range d.pairs {
		if d.pairs[i] != nil {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(d.cfg.Listen, "0"))
		if err != nil {
			return nil, fmt.Errorf("uring: %w", err)
		}
		d.pairs[i] = &pair{d: d, number: i, cfg: cfg, send: send, recv: recv, listener: l}
		return d.pairs[i], nil
	}
	return nil, fmt.Errorf("uring: %d queue pairs: %w", pairsMax, rdma.ErrQueueFull)
}

// Address is where the pair can be dialled.
func (q *pair) Address() []byte { return []byte(q.listener.Addr().String()) }

// User is the configuration's.
func (q *pair) User() any { return q.cfg.User }

// Connect joins two pairs; the one with the smaller address dials.
func (q *pair) Connect(ctx context.Context, remote []byte) error {
	conn, err := q.meet(ctx, string(remote))
	if err != nil {
		return fmt.Errorf("uring: connect: %w", err)
	}
	defer conn.Close()
	_ = conn.SetNoDelay(true)
	if q.file, err = conn.File(); err != nil {
		return fmt.Errorf("uring: connect: %w", err)
	}
	q.fd = int32(q.file.Fd())
	if err := unix.SetNonblock(int(q.fd), false); err != nil { // else the kernel does not wait for us
		return fmt.Errorf("uring: connect: %w", err)
	}
	// as rdma/tcp; else that of the machine
	_ = unix.SetsockoptString(int(q.fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	if n := q.d.cfg.SocketBuffer; n > 0 {
		_ = unix.SetsockoptInt(int(q.fd), unix.SOL_SOCKET, unix.SO_SNDBUF, n)
		_ = unix.SetsockoptInt(int(q.fd), unix.SOL_SOCKET, unix.SO_RCVBUF, n)
	}
	if rate := q.d.cfg.PacingBytesPerSec; rate > 0 {
		if err := unix.SetsockoptUint64(int(q.fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate); err != nil {
			return fmt.Errorf("uring: pace the socket: %w", err)
		}
	}
	q.nextHead()
	return q.d.drive(0)
}

func (q *pair) meet(ctx context.Context, remote string) (*net.TCPConn, error) {
	if strings.Compare(q.listener.Addr().String(), remote) < 0 {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", remote)
		if err != nil {
			return nil, err
		}
		return conn.(*net.TCPConn), nil
	}
	if end, ok := ctx.Deadline(); ok {
		_ = q.listener.(*net.TCPListener).SetDeadline(end)
	}
	conn, err := q.listener.Accept()
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// PostSend queues requests.
func (q *pair) PostSend(wrs ...rdma.SendWR) error {
	if q.broken || q.file == nil {
		return fmt.Errorf("uring: post send: %w", rdma.ErrState)
	}
	for _, w := range wrs {
		for _, e := range w.List {
			r, ok := e.Region.(*region)
			if !ok || r.d != q.d || r.stale || e.Offset < 0 || e.Length < 0 || e.Offset > len(r.mem)-e.Length {
				return fmt.Errorf("uring: post send of %d bytes at %d: %w", e.Length, e.Offset, rdma.ErrBounds)
			}
		}
		if len(w.Inline) > 0 || w.Op != rdma.OpSend && w.Op != rdma.OpWrite && w.Op != rdma.OpWriteImm {
			return fmt.Errorf("uring: post %v: %w", w.Op, rdma.ErrRequest)
		}
		w.List = append([]rdma.SGE(nil), w.List...)
		q.sends = append(q.sends, w)
	}
	q.nextSend()
	return nil
}

// nextSend begins the first queued request if none is under way.
func (q *pair) nextSend() {
	if q.sending || q.broken || len(q.sends) == 0 {
		return
	}
	w := &q.sends[0]
	h := &q.heads[userSend]
	total := 0
	for _, e := range w.List {
		total += e.Length
	}
	h.b[0] = byte(w.Op)
	binary.LittleEndian.PutUint32(h.b[4:], w.Imm)
	binary.LittleEndian.PutUint64(h.b[8:], uint64(total))
	binary.LittleEndian.PutUint64(h.b[16:], uint64(w.RemoteKey))
	binary.LittleEndian.PutUint64(h.b[24:], w.RemoteAddr)
	h.at, q.piece, q.offset = 0, 0, 0
	q.pushSend()
}

// pushSend asks the kernel to send what is next of the first request; it reports whether anything is left.
func (q *pair) pushSend() bool {
	w, h := &q.sends[0], &q.heads[userSend]
	s := sqe{fd: q.fd, user: uint64(q.number)<<1 | userSend}
	if h.at < headBytes {
		s.opcode, s.addr, s.length = opSend, address(h.b[h.at:]), uint32(headBytes-h.at)
		s.op = unix.MSG_NOSIGNAL
		if len(w.List) > 0 {
			s.op |= unix.MSG_MORE
		}
	} else {
		for q.piece < len(w.List) && q.offset == w.List[q.piece].Length {
			q.piece, q.offset = q.piece+1, 0
		}
		if q.piece == len(w.List) {
			return false
		}
		e := w.List[q.piece]
		r := e.Region.(*region)
		s.opcode, s.buffer = opWriteFixed, uint16(r.slot)
		s.addr, s.length = address(r.mem[e.Offset+q.offset:]), uint32(min(e.Length-q.offset, stepBytes))
		s.off = ^uint64(0)
	}
	q.sending = true
	q.d.ring.push(s)
	return true
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// sentSome handles the end of an operation of the sending side.
func (q *pair) sentSome(n int32) {
	q.sending = false
	switch {
	case n == -int32(unix.EINTR) || n == -int32(unix.EAGAIN):
		n = 0
	case n < 0 || q.broken:
		q.fail()
		return
	}
	if h := &q.heads[userSend]; h.at < headBytes {
		h.at += int(n)
	} else {
		q.offset += int(n)
	}
	if q.pushSend() {
		return
	}
	w := q.sends[0]
	q.sends = q.sends[1:]
	if !w.Unsignaled {
		q.send.push(rdma.Completion{ID: w.ID, QP: q, Op: w.Op})
	}
	q.nextSend()
}

// PostRecv queues receives.
func (q *pair) PostRecv(wrs ...rdma.RecvWR) error {
	if q.broken {
		return fmt.Errorf("uring: post receive: %w", rdma.ErrState)
	}
	for _, w := range wrs {
		w.List = append([]rdma.SGE(nil), w.List...)
		q.recvs = append(q.recvs, w)
	}
	return nil
}

// nextHead asks for the head of the next request.
func (q *pair) nextHead() {
	q.heads[userRecv].at, q.total, q.came = 0, -1, 0
	q.pushRecv()
}

// pushRecv asks the kernel for what is next.
func (q *pair) pushRecv() {
	s := sqe{fd: q.fd, user: uint64(q.number)<<1 | userRecv}
	if h := &q.heads[userRecv]; q.total < 0 {
		s.opcode, s.addr, s.length, s.op = opRecv, address(h.b[h.at:]), uint32(headBytes-h.at), unix.MSG_WAITALL
	} else {
		r := q.into.Region.(*region)
		s.opcode, s.buffer = opReadFixed, uint16(r.slot)
		s.addr, s.length = address(r.mem[q.into.Offset+q.came:]), uint32(min(q.total-q.came, stepBytes))
		s.off = ^uint64(0)
	}
	q.coming = true
	q.d.ring.push(s)
}

// cameSome handles the end of an operation of the receiving side.
func (q *pair) cameSome(n int32) {
	q.coming = false
	switch {
	case n == -int32(unix.EINTR) || n == -int32(unix.EAGAIN):
		q.pushRecv()
		return
	case n <= 0 || q.broken:
		q.fail()
		return
	}
	h := &q.heads[userRecv]
	if q.total >= 0 {
		q.came += int(n)
	} else if h.at += int(n); h.at == headBytes {
		if err := q.begin(); err != nil {
			q.fail()
			return
		}
	}
	if q.total < 0 || q.came < q.total {
		q.pushRecv()
		return
	}
	if q.op != rdma.OpWrite {
		w := q.recvs[0]
		q.recvs = q.recvs[1:]
		q.recv.push(rdma.Completion{ID: w.ID, QP: q, Op: q.op, Bytes: q.total, Imm: q.imm, HasImm: true})
	}
	q.nextHead()
}

var errRefused = errors.New("uring: request refused")

// begin reads a head and finds where the bytes go.
func (q *pair) begin() error {
	b := &q.heads[userRecv].b
	length, key, addr := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]),
		binary.LittleEndian.Uint64(b[24:])
	q.imm = binary.LittleEndian.Uint32(b[4:])
	op := rdma.Opcode(b[0])
	if len(q.recvs) == 0 && op != rdma.OpWrite || length > 1<<30 {
		return errRefused
	}
	q.total = int(length)
	switch op {
	case rdma.OpSend:
		q.op = rdma.OpRecv
		if l := q.recvs[0].List; len(l) != 1 || l[0].Length < q.total {
			return errRefused
		}
		q.into = q.recvs[0].List[0]
	case rdma.OpWrite, rdma.OpWriteImm:
		if q.op = op; op == rdma.OpWriteImm {
			q.op = rdma.OpRecvWriteImm
		}
		r := q.d.table[rdma.RegionKey(key)]
		if r == nil || r.stale || r.access&rdma.RemoteWrite == 0 || addr > uint64(len(r.mem)) ||
			length > uint64(len(r.mem))-addr {
			return errRefused
		}
		q.into = rdma.SGE{Region: r, Offset: int(addr), Length: q.total}
	default:
		return errRefused
	}
	return nil
}

// fail ends the pair: what is queued completes as flushed once the kernel has let go of it.
func (q *pair) fail() {
	if !q.broken {
		q.broken = true
		if q.file != nil {
			_ = unix.Shutdown(int(q.fd), unix.SHUT_RDWR)
		}
	}
	if !q.sending {
		for i, w := range q.sends {
			status := rdma.StatusFlushed
			if i == 0 {
				status = rdma.StatusDisconnected
			}
			q.send.push(rdma.Completion{ID: w.ID, QP: q, Op: w.Op, Status: status})
		}
		q.sends = nil
	}
	if !q.coming {
		for _, w := range q.recvs {
			q.recv.push(rdma.Completion{ID: w.ID, QP: q, Op: rdma.OpRecv, Status: rdma.StatusFlushed})
		}
		q.recvs = nil
	}
}

// Abort ends the pair.
func (q *pair) Abort() { q.fail() }

// closePatience bounds the wait for operations of a socket that was shut down.
const closePatience = 5 * time.Second

// Close ends the pair and waits until the kernel has let go of all memory.
func (q *pair) Close() error {
	if q.d.pairs[q.number] != q {
		return nil
	}
	q.fail()
	end := time.Now().Add(closePatience)
	for (q.sending || q.coming) && time.Now().Before(end) {
		if err := q.d.drive(waitSlice); err != nil {
			return err
		}
	}
	if q.sending || q.coming {
		return fmt.Errorf("uring: close: operations did not end: %w", rdma.ErrState)
	}
	q.d.pairs[q.number] = nil
	err := q.listener.Close()
	if q.file != nil {
		err = errors.Join(err, q.file.Close())
	}
	return err
}
