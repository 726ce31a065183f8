package tcp

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Small frames are served in one stay in the runtime's poller: a read that leaves room in the buffer has emptied the socket, so the
// next thing is to wait, without a read to learn that there is nothing. That is safe because the wait begins with what the poller has
// noted since the last one ended, and each arrival is noted. Only an end of the stream that came together with the last bytes is not
// told again; for that the socket is looked at when the pair has been silent for Config.lookAfter.

const (
	// quickEnough is how many reads must come without such a silence until reads are saved: a slow talk shall not cost a timer a message.
	quickEnough = 8
	// attendMax bounds the reads between two looks at the socket's deadline, which ends a pair whose peer never stops sending.
	attendMax = 64
)

// attention is how a rawStream waits for small frames.
type attention struct {
	buf  []byte
	take func(n int) bool
	idle func()
	fn   func(fd uintptr) bool
	err  error
	read int // calls in this stay

	quick int           // reads without a silence, up to quickEnough
	calm  atomic.Bool   // there was one
	waits atomic.Uint64 // waits without a look that the socket is empty
	seen  atomic.Uint64 // waits when the timer last ran
	armed atomic.Bool   // the timer runs
	timer *time.Timer
	after time.Duration // Config.lookAfter
}

// startLooking has look called when the stream has been silent. The timer is not set yet.
func (a *attention) startLooking(after time.Duration, look func()) {
	a.after = after
	a.timer = time.AfterFunc(time.Hour, look)
	a.timer.Stop()
}

// attend reads into buf and has take use the n bytes that came, until take has left some, or the stream ends or fails, or a while has
// passed. It calls idle before it waits.
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
		case n < len(a.buf) && s.isQuick():
			a.idle()
			s.waitUnseen()
			a.read = 0
			return false
		}
	}
}

// isQuick counts a read, and reports whether the next may be saved.
func (s *rawStream) isQuick() bool {
	a := &s.a
	if a.calm.Load() {
		a.calm.Store(false)
		a.quick = 0
	}
	a.quick = min(a.quick+1, quickEnough)
	return a.quick == quickEnough
}

// waitUnseen notes a wait for a socket that was not seen to be empty.
func (s *rawStream) waitUnseen() {
	s.a.waits.Add(1)
	s.armLook()
}

func (s *rawStream) armLook() {
	if a := &s.a; a.armed.CompareAndSwap(false, true) {
		a.timer.Reset(a.after)
	}
}

// silent reports, when the timer has run, whether nothing has come for a while; if something has the timer runs again.
func (s *rawStream) silent() bool {
	a := &s.a
	waits := a.waits.Load()
	if a.seen.Swap(waits) != waits {
		a.timer.Reset(a.after)
		return false
	}
	a.calm.Store(true)
	a.armed.Store(false)
	if a.waits.Load() != waits { // it may have come before armed was false
		s.armLook()
		return false
	}
	return true
}

// waiting reports whether there is something to read, or the end.
func (s *rawStream) waiting() bool {
	var n int
	err := s.rc.Control(func(fd uintptr) {
		n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}, 0)
	})
	return err == nil && n > 0
}

// look runs when a pair that talked has perhaps been silent for a while.
func (q *queuePair) look(s *rawStream) {
	if !s.silent() || !s.waiting() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == stateReady {
		q.nudged = true
		_ = q.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// nudgedOnly reports whether reading ended only because look had it read again.
func (q *queuePair) nudgedOnly(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.nudged || q.state != stateReady {
		return false
	}
	q.nudged = false
	return q.conn.SetReadDeadline(time.Time{}) == nil
}

// serveWhole serves the frames that come in one piece, until one does not: of that the buffer has the beginning.
func (q *queuePair) serveWhole(s *rawStream) error {
	in := &q.in
	in.lo, in.hi, in.err = 0, 0, nil
	err := s.attend(in.buf, in.take, in.idle)
	if in.err != nil {
		return in.err
	}
	if err != nil && q.nudgedOnly(err) {
		return nil
	}
	return err
}

// takeWhole serves the frames that are whole in the first n bytes of the buffer, and reports whether those were all of them.
func (q *queuePair) takeWhole(n int) bool {
	in := &q.in
	in.lo, in.hi = 0, n
	for in.err == nil && in.isWhole() {
		in.err = q.readFrame()
	}
	return in.err == nil && in.lo == in.hi
}

// isWhole reports whether the buffer holds a frame with its payload.
func (in *inbox) isWhole() bool {
	b := in.buf[in.lo:in.hi]
	if len(b) < frameBytes {
		return false
	}
	return !frameKind(b[0]).carries() || uint64(binary.LittleEndian.Uint32(b[4:])) <= uint64(len(b)-frameBytes)
}

// receive is recvfrom, again after EINTR. See callBytes on why the scheduler is not told.
func receive(fd uintptr, buf []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), 0, 0, 0)
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
