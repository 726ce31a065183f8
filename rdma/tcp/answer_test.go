package tcp

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

const answerSize = 8

// answered has the bed's pair send a request over conn and take an answer.
func (b *bed) answered(conn net.Conn, n uint32) {
	b.t.Helper()
	if err := b.qp.PostRecv(rdma.RecvWR{ID: 100, List: []rdma.SGE{{Region: b.mem, Length: answerSize}}}); err != nil {
		b.t.Fatal(err)
	}
	if err := b.qp.PostSend(rdma.SendWR{ID: uint64(n), Op: rdma.OpSend, List: []rdma.SGE{{Region: b.mem, Length: answerSize}}}); err != nil {
		b.t.Fatal(err)
	}
	for { // the receive may be told of first, since the peer waits for one
		if f := nextFrame(b.t, conn); f.kind == frameSend {
			break
		}
	}
	b.write(conn, append(header(frame{kind: frameSend, length: answerSize, ack: n, credit: 10}), make([]byte, answerSize)...))
	for range 2 {
		if c := b.next(); c.Status != rdma.StatusOK {
			b.t.Fatalf("completion %+v", c)
		}
	}
}

// nextFrame reads a frame with its payload.
func nextFrame(t testing.TB, conn net.Conn) frame {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	var h [frameBytes]byte
	if _, err := io.ReadFull(conn, h[:]); err != nil {
		t.Fatal(err)
	}
	f, err := decodeFrame(h[:])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, conn, int64(f.length)); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestAnswersAreAcknowledgedByWhatFollows: who talks in turns gets no frames for acknowledgements alone.
func TestAnswersAreAcknowledgedByWhatFollows(t *testing.T) {
	b := newBed(t, Config{answerDelay: time.Hour})
	conn := b.raw()
	b.write(conn, header(frame{kind: frameAck, credit: 10}))
	b.answered(conn, 1)
	if err := b.qp.PostSend(rdma.SendWR{ID: 2, Op: rdma.OpSend, List: []rdma.SGE{{Region: b.mem, Length: answerSize}}}); err != nil {
		t.Fatal(err)
	}
	if f := nextFrame(t, conn); f.kind != frameSend || f.ack != 1 {
		t.Errorf("after the answer came %+v, want the next request with the acknowledgement", f)
	}
}

// TestLastAnswerIsAcknowledged: where nothing follows the acknowledgement comes alone, later.
func TestLastAnswerIsAcknowledged(t *testing.T) {
	b := newBed(t, Config{})
	conn := b.raw()
	b.write(conn, header(frame{kind: frameAck, credit: 10}))
	b.answered(conn, 1)
	if f := nextFrame(t, conn); f.kind != frameAck || f.ack != 1 {
		t.Errorf("after the answer came %+v, want an acknowledgement", f)
	}
}
