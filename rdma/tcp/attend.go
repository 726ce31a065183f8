package tcp

import (
	"encoding/binary"
	"io"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attendMax bounds the reads between two looks at the socket's deadline, which ends a pair whose peer never stops
// sending.
const attendMax = 64

// attention is how a rawStream waits for small frames: they are served in one stay in the runtime's poller.
type attention struct {
	buf  []byte
	take func(n int) bool
	idle func()
	fn   func(fd uintptr) bool
	err  error
	read int // calls in this stay
}

// attend reads into buf and lets take use the n bytes that came, until take has had enough, or the stream ends or
// fails, or a while has passed. It calls idle before it waits.
func (s *rawStream) attend(buf []byte, take func(n int) bool, idle func()) error {
	a := &s.a
	a.buf, a.take, a.idle, a.err, a.read = buf, take, idle, nil, 0
	if err := s.rc.Read(a.fn); err != nil {
		return err
	}
	return a.err
}

// tryAttend is called by the poller's wait: false waits.
func (s *rawStream) tryAttend(fd uintptr) bool {
	for a := &s.a; ; a.read++ {
		n, errno := receive(fd, a.buf)
		switch {
		case errno == unix.EAGAIN:
			a.idle()
			a.read = 0
			return false
		case errno != nil:
			a.err = errno
			return true
		case n == 0:
			a.err = io.EOF
			return true
		case !a.take(n) || a.read == attendMax:
			return true
		}
	}
}

// serveWhole serves the frames that come in one piece, until one does not: the buffer then has the beginning of that
// frame. A pair that talks only in small frames may be read by the device's watch.
func (q *queuePair) serveWhole(s *rawStream) error {
	in := &q.in
	in.lo, in.hi, in.err = 0, 0, nil
	if q.isWatchable() && q.stay(s) {
		return in.err
	}
	in.buf = in.own
	err := s.attend(in.buf, in.take, in.idle)
	if in.err != nil {
		return in.err
	}
	return err
}

// takeWhole serves the frames that are whole in the first n bytes of the buffer, and reports whether those were all
// of them and the pair's own goroutine is to read on.
func (q *queuePair) takeWhole(n int) bool {
	in := &q.in
	in.lo, in.hi = 0, n
	q.serveBuffered()
	return in.err == nil && in.lo == in.hi && !q.isWatchable()
}

// isWatchable reports whether the watch may take the pair.
func (q *queuePair) isWatchable() bool { return q.dev.cfg.watch && q.in.small >= joinAfter }

// serveBuffered serves the frames that are whole in the buffer.
func (q *queuePair) serveBuffered() {
	for in := &q.in; in.err == nil && in.isWhole(); {
		in.err = q.readFrame()
	}
}

// isWhole reports whether the buffer holds a frame with its payload.
func (in *inbox) isWhole() bool {
	return in.hi-in.lo >= frameBytes && in.need() <= in.hi-in.lo
}

// isLong reports whether the buffer is too small for the frame that it has the beginning of.
func (in *inbox) isLong() bool {
	return in.hi-in.lo >= frameBytes && in.need() > len(in.buf)
}

// need is the bytes of the frame whose header is at the beginning of what is buffered.
func (in *inbox) need() int {
	if b := in.buf[in.lo:]; frameKind(b[0]).carries() {
		return frameBytes + int(binary.LittleEndian.Uint32(b[4:]))
	}
	return frameBytes
}

// receive is recvfrom, repeated after EINTR. See callBytes on why the Go scheduler does not know of the call.
func receive(fd uintptr, buf []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(buf))),
			uintptr(len(buf)), 0, 0, 0)
		if errno != unix.EINTR {
			return int(n), errnoError(errno)
		}
	}
}

// errnoError is nil for 0, and does not allocate for EAGAIN.
func errnoError(errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.EAGAIN:
		return unix.EAGAIN
	}
	return errno
}
