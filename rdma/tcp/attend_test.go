package tcp

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// socketOf is the bed's end of its connection.
func (b *bed) socketOf() *rawStream {
	b.t.Helper()
	s, ok := b.qp.(*queuePair).stream.(*rawStream)
	if !ok {
		b.t.Fatal("the pair does not use its socket directly")
	}
	return s
}

// eventually waits, with the processor in hand, until a socket is so.
func (b *bed) eventually(s *rawStream, what string, is func(fd int) bool) {
	b.t.Helper()
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		var yes bool
		if err := s.rc.Control(func(fd uintptr) { yes = is(int(fd)) }); err != nil {
			b.t.Fatal(err)
		}
		if yes {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("the socket is not %s", what)
		}
	}
}

func endedByPeer(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State == unix.BPF_TCP_CLOSE_WAIT
}

// isWatched reports whether the pair has a seat.
func (b *bed) isWatched() bool {
	q := b.qp.(*queuePair)
	w := &q.dev.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	return q.seat.number != 0
}

// TestSmallTalkIsWatched: a pair that talks in small frames is read by the device's watch, until a large one comes, and
// again later.
func TestSmallTalkIsWatched(t *testing.T) {
	b := newBed(t, Config{answerDelay: time.Hour, watch: true})
	conn := b.raw()
	post := func(n int) {
		if err := b.qp.PostRecv(rdma.RecvWR{ID: 1, List: []rdma.SGE{{Region: b.mem, Length: n}}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for i := range uint32(2 * joinAfter) {
			post(answerSize)
			b.write(conn, append(header(frame{kind: frameSend, length: answerSize, imm: i}), make([]byte, answerSize)...))
			if c := b.next(); c.Status != rdma.StatusOK || c.Imm != i {
				t.Fatalf("completion %+v", c)
			}
		}
		if !b.isWatched() {
			t.Fatal("a pair that talks in small frames has no seat")
		}
		post(1 << 16)
		b.write(conn, append(header(frame{kind: frameSend, length: 1 << 16}), make([]byte, 1<<16)...))
		if c := b.next(); c.Status != rdma.StatusOK || c.Bytes != 1<<16 {
			t.Fatalf("completion %+v", c)
		}
		if b.isWatched() {
			t.Fatal("a pair to which a large frame came is still watched")
		}
	}
}

// TestWatchedPairCloses: a pair that is watched ends when it is closed, its peer goes, or the device is closed.
func TestWatchedPairCloses(t *testing.T) {
	for _, end := range []struct {
		name string
		how  func(b *bed, conn net.Conn) error
	}{
		{"close", func(b *bed, _ net.Conn) error { return b.qp.Close() }},
		{"peer", func(b *bed, conn net.Conn) error { return conn.Close() }},
		{"device", func(b *bed, _ net.Conn) error { return b.qp.(*queuePair).dev.Close() }},
	} {
		t.Run(end.name, func(t *testing.T) {
			b := newBed(t, Config{answerDelay: time.Hour, watch: true})
			conn := b.raw()
			b.talk(conn, 2*joinAfter)
			if !b.isWatched() {
				t.Fatal("a pair that talks in small frames has no seat")
			}
			if err := b.qp.PostRecv(rdma.RecvWR{ID: 5, List: []rdma.SGE{{Region: b.mem, Length: answerSize}}}); err != nil {
				t.Fatal(err)
			}
			if err := end.how(b, conn); err != nil {
				t.Fatal(err)
			}
			if c := b.next(); c.ID != 5 || c.Status != rdma.StatusFlushed {
				t.Errorf("completion %+v", c)
			}
			if b.isWatched() {
				t.Error("a pair that has ended has a seat")
			}
		})
	}
}

// TestEndBehindTheLastBytes: the end of a connection is noticed even if it came together with the last frame, so that
// the poller reported both at once.
func TestEndBehindTheLastBytes(t *testing.T) {
	const turns = 2 * joinAfter
	b := newBed(t, Config{answerDelay: time.Hour, watch: true})
	conn := b.raw()
	b.talk(conn, turns)
	for i := range uint64(2) {
		if err := b.qp.PostRecv(rdma.RecvWR{ID: i, List: []rdma.SGE{{Region: b.mem, Length: answerSize}}}); err != nil {
			t.Fatal(err)
		}
	}
	came, ended := make(chan rdma.Completion, 2), make(chan struct{})
	ctx, stop := context.WithCancel(b.context())
	dispatched := make(chan struct{})
	go func() {
		defer close(dispatched)
		_ = b.cq.(rdma.Dispatcher).Dispatch(ctx, func(c *rdma.Completion) {
			came <- *c
			<-ended // readLoop reads nothing until then
		})
	}()
	last := header(frame{kind: frameAck, ack: turns, credit: 100})
	b.write(conn, append(header(frame{kind: frameSend, length: answerSize, ack: turns, credit: 100}),
		make([]byte, answerSize)...))
	if c := <-came; c.ID != 0 || c.Status != rdma.StatusOK {
		t.Errorf("completion %+v", c)
	}
	b.write(conn, last)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b.eventually(b.socketOf(), "ended by its peer", endedByPeer)
	close(ended)
	select {
	case c := <-came:
		if c.ID != 1 || c.Status != rdma.StatusFlushed {
			t.Errorf("completion %+v", c)
		}
	case <-time.After(patience):
		t.Error("the end of the connection was not seen")
	}
	stop()
	<-dispatched
}

// TestFramesInAnyPieces: nothing that comes is missed, however it is cut and whenever it comes.
func TestFramesInAnyPieces(t *testing.T) { inBothWays(t, testFramesInAnyPieces) }

func testFramesInAnyPieces(t *testing.T, cfg Config) {
	const frames, most = 20000, 8
	b := newBed(t, cfg)
	conn := b.raw()
	post := func() {
		if err := b.qp.PostRecv(rdma.RecvWR{ID: 1, List: []rdma.SGE{{Region: b.mem, Length: 1 << 16}}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 * most {
		post()
	}
	room := make(chan struct{}, most)
	go func() { _, _ = io.Copy(io.Discard, conn) }() // ends with the connection
	failed := make(chan error, 1)
	go func() { failed <- writePieces(conn, room, frames) }()
	rng := rand.New(rand.NewPCG(1, 0))
	for i := range frames {
		c := b.next()
		if want := pieceBytes(rng); c.Status != rdma.StatusOK || c.Imm != uint32(i) || c.Bytes != want {
			t.Fatalf("frame %d of %d bytes came as %+v", i, want, c)
		}
		post()
		<-room
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// pieceBytes is the payload of the next frame: mostly what fits a read.
func pieceBytes(rng *rand.Rand) int {
	if rng.IntN(50) == 0 {
		return rng.IntN(1 << 16)
	}
	return rng.IntN(200)
}

// writePieces writes frames in pieces, each when there is room for it.
func writePieces(conn net.Conn, room chan<- struct{}, frames int) error {
	rng, cut := rand.New(rand.NewPCG(1, 0)), rand.New(rand.NewPCG(2, 0))
	var out []byte
	for i := range frames {
		n := pieceBytes(rng)
		out = append(append(out, header(frame{kind: frameSend, length: uint32(n), imm: uint32(i)})...), make([]byte, n)...)
		for len(out) > 0 && (len(room) == cap(room) || cut.IntN(4) > 0 || i == frames-1) {
			k := 1 + cut.IntN(len(out))
			if _, err := conn.Write(out[:k]); err != nil {
				return errors.Join(errors.New("write"), err)
			}
			out = out[k:]
		}
		room <- struct{}{}
	}
	return nil
}
