package tcp

import (
	"errors"
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

var (
	errAgain = errors.New("tcp: socket full")
	errStale = errors.New("tcp: region went away in mid-transfer")
)

// guard is a remote access: its region is held only while bytes are copied, never while waiting for the
// network, so that no peer can keep a region from being closed.
type guard struct {
	table *soft.Table
	key   rdma.RegionKey
	need  rdma.Access
	addr  uint64
	n     int
	on    bool
}

// enter acquires the region; nil if there is nothing to guard. ok is false if it is gone.
func (g *guard) enter() (r *soft.Region, ok bool) {
	if !g.on {
		return nil, true
	}
	r, _ = g.table.Acquire(g.key, g.need, g.addr, g.n)
	return r, r != nil
}

func leave(r *soft.Region) {
	if r != nil {
		r.Release()
	}
}

// batch is what one vectored write sends.
type batch struct {
	runs  [][]byte // what is left to send
	bytes int      // in runs
	guard guard    // of the last run, if on
}

func (b *batch) reset() {
	clear(b.runs)
	b.runs, b.bytes, b.guard.on = b.runs[:0], 0, false
}

func (b *batch) add(run []byte) {
	if len(run) > 0 {
		b.runs = append(b.runs, run)
		b.bytes += len(run)
	}
}

// stream is a connection with vectored, guarded I/O.
type stream interface {
	// write sends rest (and shortens it). If wait is false and the socket is full, or the stream can only block, it
	// returns errAgain.
	write(rest *[][]byte, g *guard, wait bool) error
	// read fills runs in order and returns how many bytes came, at least one. It calls idle before it blocks.
	read(runs [][]byte, g *guard, idle func()) (int, error)
	// direct reports whether read should be given the final memory in addition to the header buffer.
	direct() bool
}

func newStream(conn net.Conn) stream {
	if tc, ok := conn.(*net.TCPConn); ok {
		if rc, err := tc.SyscallConn(); err == nil {
			s := &rawStream{rc: rc}
			s.readFn, s.writeFn, s.a.fn = s.tryRead, s.tryWrite, s.tryAttend
			return s
		}
	}
	return &connStream{conn: conn}
}

// rawStream uses the socket itself, without a copy and without an allocation per call.
type rawStream struct {
	rc      syscall.RawConn
	readFn  func(fd uintptr) bool
	writeFn func(fd uintptr) bool
	r, w    rawCall
	a       attention
}

// rawCall holds the arguments and results of a call through syscall.RawConn.
type rawCall struct {
	iov   []unix.Iovec
	guard *guard
	wait  bool
	idle  func()
	n     int
	err   error
}

func (s *rawStream) direct() bool { return true }

func (s *rawStream) write(rest *[][]byte, g *guard, wait bool) error {
	for len(*rest) > 0 {
		s.w.iov = iovecs(s.w.iov[:0], *rest, callBytes)
		s.w.guard, s.w.wait, s.w.n, s.w.err = g, wait, 0, nil
		if err := s.rc.Write(s.writeFn); err != nil {
			return err
		}
		if s.w.err != nil {
			return s.w.err
		}
		*rest = skip(*rest, s.w.n)
	}
	return nil
}

func (s *rawStream) tryWrite(fd uintptr) bool {
	c := &s.w
	r, ok := c.guard.enter()
	if !ok {
		c.err = errStale
		return true
	}
	var errno error
	c.n, errno = vector(unix.SYS_WRITEV, fd, c.iov)
	leave(r)
	if errno != unix.EAGAIN {
		c.err = errno
		return true
	}
	if !c.wait {
		c.err = errAgain
	}
	return !c.wait
}

func (s *rawStream) read(runs [][]byte, g *guard, idle func()) (int, error) {
	s.r.iov = iovecs(s.r.iov[:0], runs, callBytes)
	s.r.guard, s.r.idle, s.r.n, s.r.err = g, idle, 0, nil
	if err := s.rc.Read(s.readFn); err != nil {
		return 0, err
	}
	if s.r.err == nil && s.r.n == 0 {
		return 0, io.EOF
	}
	return s.r.n, s.r.err
}

func (s *rawStream) tryRead(fd uintptr) bool {
	c := &s.r
	r, ok := c.guard.enter()
	if !ok {
		c.err = errStale
		return true
	}
	var errno error
	c.n, errno = vector(unix.SYS_READV, fd, c.iov)
	leave(r)
	if errno == unix.EAGAIN {
		c.idle()
		return false
	}
	c.err = errno
	return true
}

// callBytes bounds a system call: a block of 1 MiB with its header and trailer, as other processes run between two
// calls and take its place in the caches. The sockets do not block, so a call is nothing but copying, for 100 to 300
// µs. The Go scheduler is not informed of calls (which at 64 KiB would cost a quarter more CPU), so it has to do
// without the thread for that long.
const callBytes = 1<<20 + 4<<10

// vector is readv or writev, again after EINTR.
func vector(trap, fd uintptr, iov []unix.Iovec) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.EINTR {
			return 0, errnoError(errno)
		}
	}
}

// iovecs appends runs to out, up to limit bytes.
func iovecs(out []unix.Iovec, runs [][]byte, limit int) []unix.Iovec {
	for _, r := range runs {
		if limit == 0 {
			break
		}
		r = r[:min(len(r), limit)]
		limit -= len(r)
		v := unix.Iovec{Base: unsafe.SliceData(r)}
		v.SetLen(len(r))
		out = append(out, v)
	}
	return out
}

// skip takes n bytes from the front of runs, in place.
func skip(runs [][]byte, n int) [][]byte {
	for n > 0 {
		if n < len(runs[0]) {
			runs[0] = runs[0][n:]
			return runs
		}
		n -= len(runs[0])
		runs[0] = nil
		runs = runs[1:]
	}
	return runs
}

// connStream serves any net.Conn, such as a TLS one, through a bounce buffer.
type connStream struct {
	conn    net.Conn
	scratch []byte
}

// scratchBytes bounds what a connStream copies for one Write.
const scratchBytes = 64 << 10

func (s *connStream) direct() bool { return false }

func (s *connStream) write(rest *[][]byte, g *guard, wait bool) error {
	if !wait {
		return errAgain
	}
	if s.scratch == nil {
		s.scratch = make([]byte, scratchBytes)
	}
	for len(*rest) > 0 {
		r, ok := g.enter()
		if !ok {
			return errStale
		}
		n := 0
		for _, run := range *rest {
			n += copy(s.scratch[n:], run)
		}
		leave(r)
		if _, err := s.conn.Write(s.scratch[:n]); err != nil {
			return err
		}
		*rest = skip(*rest, n)
	}
	return nil
}

func (s *connStream) read(runs [][]byte, _ *guard, idle func()) (int, error) {
	idle()
	return s.conn.Read(runs[len(runs)-1])
}
