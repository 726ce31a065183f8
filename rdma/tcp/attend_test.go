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

// TestReadsAreSaved: who talks in turns is not asked whether there is more.
func TestReadsAreSaved(t *testing.T) {
	const times = 60
	b := newBed(t, Config{answerDelay: time.Hour, lookAfter: time.Hour})
	b.talk(b.raw(), times)
	if saved := b.socketOf().a.waits.Load(); saved < times-2*quickEnough {
		t.Errorf("%d reads of %d were saved", saved, times)
	}
}

// TestEndBehindTheLastBytes: the end of a connection is seen also where it came together with the last frame, so that the poller told
// of both at once.
func TestEndBehindTheLastBytes(t *testing.T) {
	const turns = 2 * quickEnough
	b := newBed(t, Config{answerDelay: time.Hour})
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
	b.write(conn, append(header(frame{kind: frameSend, length: answerSize, ack: turns, credit: 100}), make([]byte, answerSize)...))
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

// TestFramesInAnyPieces: nothing that comes is missed, however it is cut and whenever it comes. No silence is looked into.
func TestFramesInAnyPieces(t *testing.T) {
	const frames, most = 20000, 8
	b := newBed(t, Config{lookAfter: time.Hour})
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
