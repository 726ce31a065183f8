package tcp

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// joinAfter is how many frames in a row must be small until the watch takes a pair.
	joinAfter = 8
	// watchBytes is the buffer of a pair in the watch, smallMax the payload of a frame that fits.
	watchBytes = 16 << 10
	smallMax   = watchBytes - frameBytes
	// watchEvents is how many pairs' arrivals are taken at a time.
	watchEvents = 64
	// busyMax bounds the arrivals after which acknowledgements go out although the watch was never idle.
	busyMax = 64
	// othersMax is how long the watch runs on until what waits in the runtime's poller is looked for.
	othersMax = time.Millisecond
)

// watch reads the pairs of a device that talk in small frames, all of them on one goroutine. What comes for one pair
// is mostly followed by something for another, or by an answer: it is seen without a goroutine that wakes up, and by
// polling if that pays (eagerness). The sockets stay known to the runtime's poller, so a pair comes and goes without
// a trace, and the watch itself waits there for its epoll instance. A pair leaves when a frame comes that does not
// fit its buffer.
//
// That is for processes with one processor. With more the runtime wakes threads for each arrival and each goroutine
// that has work, so polling gains nothing, and there is a processor for each pair's own goroutine.
//
// The goroutine begins with the first pair and is ended by close.
type watch struct {
	eager eagerness
	await func(fd uintptr) bool
	since time.Time // when there was nothing more to serve
	n     int       // of events
	event [watchEvents]unix.EpollEvent
	owing []*queuePair // pairs that were served since acknowledgements went out
	busy  int          // arrivals since then
	large atomic.Bool  // a frame that is not small has come or been sent

	others  glance
	looked  time.Time // when the runtime's poller was waited in last
	waiting bool      // it is waited in

	mu      sync.Mutex // protects all below, and the pairs' seats; taken after a pair's lock, never before
	state   watchState
	done    chan struct{} // closed when the goroutine has ended
	file    *os.File      // the epoll instance
	epoll   int
	seats   map[int32]*queuePair
	last    int32      // seat that was given away last
	serving *queuePair // its inbox is being filled
	unseat  bool       // serving has to leave
}

// watchState is where a watch is in its life; it only ever grows.
type watchState uint8

const (
	watchUnused watchState = iota
	watchOpen
	watchClosed
)

// seat is a pair's place in the watch.
type seat struct {
	number int32         // 0: none
	fd     int           // of the pair's socket
	left   chan struct{} // capacity 1: the pair has left the watch
	owing  bool          // it is in watch.owing; belongs to the watch's goroutine
}

// stay makes the watch read the pair until a frame does not fit its buffer, the stream ends or fails, or the pair
// fails. It reports whether the pair was there at all. The buffer then has the beginning of what the watch could not
// serve.
func (q *queuePair) stay(s *rawStream) (was bool) {
	q.idle() // the watch acknowledges what it has served
	if q.in.shared == nil {
		q.in.shared = make([]byte, watchBytes)
	}
	q.in.buf = q.in.shared
	_ = s.rc.Read(func(fd uintptr) bool { // keeps the descriptor; fails when the pair does
		if was = q.dev.watch.take(q, int(fd)); was {
			<-q.seat.left
		}
		return true
	})
	if !was {
		q.in.small = 0
	}
	return was
}

// take gives a ready pair a seat, if that is possible.
func (w *watch) take(q *queuePair, fd int) bool {
	q.mu.Lock() // so that it does not fail unnoticed
	defer q.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if q.state != stateReady || !w.openLocked() {
		return false
	}
	for w.last++; w.last <= 0 || w.seats[w.last] != nil; w.last++ {
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: w.last}
	if unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &event) != nil {
		return false
	}
	w.seats[w.last] = q
	q.seat.number, q.seat.fd = w.last, fd
	return true
}

// leave makes a pair that fails leave the watch, now or as soon as what came for it is served.
func (w *watch) leave(q *queuePair) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case q.seat.number == 0:
	case w.serving == q:
		w.unseat = true
	default:
		w.unseatLocked(q)
	}
}

func (w *watch) unseatLocked(q *queuePair) {
	_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, q.seat.fd, nil)
	delete(w.seats, q.seat.number)
	q.seat.number = 0
	q.seat.left <- struct{}{}
}

// openLocked starts the watch with the first pair, and reports whether it is open.
func (w *watch) openLocked() bool {
	if w.state != watchUnused {
		return w.state == watchOpen
	}
	w.state = watchClosed
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	if err := unix.SetNonblock(epoll, true); err != nil {
		_ = unix.Close(epoll)
		return false
	}
	w.file, w.epoll = os.NewFile(uintptr(epoll), "watch"), epoll
	rc, err := w.file.SyscallConn()
	if err == nil {
		err = w.others.open()
	}
	if err != nil {
		_ = w.file.Close()
		return false
	}
	w.seats, w.done, w.await, w.state = make(map[int32]*queuePair), make(chan struct{}), w.tryAwait, watchOpen
	go w.run(rc) // ended by close
	return true
}

// close ends the watch. All pairs have left.
func (w *watch) close() {
	w.mu.Lock()
	w.state = watchClosed
	done := w.done
	w.mu.Unlock()
	if done != nil {
		_ = w.file.Close()
		<-done
	}
}

func (w *watch) run(rc syscall.RawConn) {
	defer close(w.done)
	defer w.others.close()
	w.looked = time.Now()
	for {
		w.since = time.Now()
		if err := rc.Read(w.await); err != nil {
			w.empty()
			return
		}
		for _, e := range w.event[:w.n] {
			w.serve(e.Fd)
		}
		if w.busy++; w.busy == busyMax {
			w.acknowledge()
		}
		if w.since.Sub(w.looked) > othersMax {
			w.looked = w.since
			w.others.look()
		}
		runtime.Gosched() // pairs that have completions now send, and acknowledge with that
	}
}

// empty makes the pairs that are still there leave: they read by themselves.
func (w *watch) empty() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = watchClosed
	for _, q := range w.seats {
		w.unseatLocked(q)
	}
}

// tryAwait is called by the poller's wait: false waits.
func (w *watch) tryAwait(fd uintptr) bool {
	var polled time.Time // when nothing had come yet
	for w.n = w.look(fd); ; w.n = events(fd, w.event[:]) {
		if w.n != 0 {
			w.eager.came(time.Since(w.since), !polled.IsZero())
			return true
		}
		if len(w.owing) > 0 {
			w.idle()
		}
		now := time.Now()
		if !polled.IsZero() && now.Sub(polled) > pollLost {
			w.eager.lost()
		}
		if w.large.Load() {
			w.large.Store(false)
			w.eager.calm()
		}
		if !w.eager.polls(now.Sub(w.since)) {
			w.waiting = true
			return false
		}
		polled = now
		runtime.Gosched()
		yield()
	}
}

// look is the first look after something was served, or after the runtime's poller has woken the watch.
func (w *watch) look(fd uintptr) int {
	switch {
	case w.waiting:
		w.waiting, w.looked = false, time.Now()
		return events(fd, w.event[:])
	case w.eager.defers():
		yield()
		w.eager.deferred(time.Since(w.since))
		return events(fd, w.event[:])
	}
	n := events(fd, w.event[:])
	w.eager.looked(n != 0)
	return n
}

// yield lets other processes have the processor.
func yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// idle lets what was executed be acknowledged, by frames that answer it if some are about to be sent.
func (w *watch) idle() {
	for range idleYields {
		if !slices.ContainsFunc(w.owing, (*queuePair).owesAck) {
			break
		}
		runtime.Gosched()
	}
	w.acknowledge()
}

// events is epoll_wait without waiting. See callBytes on why the Go scheduler does not know of the call.
func events(fd uintptr, list []unix.EpollEvent) int {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd, uintptr(unsafe.Pointer(unsafe.SliceData(list))),
			uintptr(len(list)), 0, 0, 0)
		if errno == 0 {
			return int(n)
		}
		if errno != unix.EINTR {
			panic(fmt.Sprintf("tcp: epoll_pwait: %v", errno)) // tidy: no argument can be wrong, the descriptor is kept
		}
	}
}

// serve takes what has come for the pair in a seat. The pair may have left meanwhile.
func (w *watch) serve(number int32) {
	w.mu.Lock()
	q := w.seats[number]
	w.serving, w.unseat = q, false
	w.mu.Unlock()
	if q == nil {
		return
	}
	stays := q.serveArrival()
	if stays && !q.seat.owing {
		q.seat.owing = true
		w.owing = append(w.owing, q)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serving = nil
	if !stays || w.unseat {
		w.unseatLocked(q)
	}
}

// acknowledge acknowledges to the peers what was executed, if nothing else has.
func (w *watch) acknowledge() {
	for i, q := range w.owing {
		if q.owesAck() && !q.delayAck() {
			q.ackNow()
		}
		q.seat.owing = false
		w.owing[i] = nil
	}
	w.owing, w.busy = w.owing[:0], 0
}

// serveArrival serves what has come, and reports whether the watch goes on with the pair.
func (q *queuePair) serveArrival() bool {
	in := &q.in
	n, errno := receive(uintptr(q.seat.fd), in.buf[in.hi:])
	switch {
	case errno == unix.EAGAIN:
		return true
	case errno != nil:
		in.err = errno
		return false
	case n == 0:
		in.err = io.EOF
		return false
	}
	in.hi += n
	q.serveBuffered()
	if in.err != nil || in.isLong() {
		return false
	}
	in.lo, in.hi = 0, copy(in.buf, in.buf[in.lo:in.hi])
	return true
}
