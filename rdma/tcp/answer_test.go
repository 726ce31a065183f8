package tcp

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

const answerSize = 8

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

// request sends one request, and reads it and the acknowledgements that come before it. alone is how many of these were
// for an answer.
func (b *bed) request(conn net.Conn, n uint32) (f frame, alone int) {
	b.t.Helper()
	if err := b.qp.PostSend(rdma.SendWR{ID: uint64(n), Op: rdma.OpSend,
		List: []rdma.SGE{{Region: b.mem, Length: answerSize}}}); err != nil {
		b.t.Fatal(err)
	}
	for {
		if f = nextFrame(b.t, conn); f.kind == frameSend {
			return f, alone
		}
		if f.ack == n-1 {
			alone++
		}
	}
}

// answer gives one, and waits until it and the request have completed.
func (b *bed) answer(conn net.Conn, n uint32) {
	b.t.Helper()
	b.write(conn, append(header(frame{kind: frameSend, length: answerSize, ack: n, credit: 100}),
		make([]byte, answerSize)...))
	for range 2 {
		if c := b.next(); c.Status != rdma.StatusOK {
			b.t.Fatalf("completion %+v", c)
		}
	}
}

// talk makes the pair send requests that are answered, and returns how many of the answers had an acknowledgement of
// their own.
func (b *bed) talk(conn net.Conn, times uint32) (alone int) {
	b.t.Helper()
	b.write(conn, header(frame{kind: frameAck, credit: 100}))
	return b.talkOn(conn, 0, times)
}

// talkOn is talk after so many requests.
func (b *bed) talkOn(conn net.Conn, before, times uint32) (alone int) {
	b.t.Helper()
	for range times - before {
		if err := b.qp.PostRecv(rdma.RecvWR{ID: 100, List: []rdma.SGE{{Region: b.mem, Length: answerSize}}}); err != nil {
			b.t.Fatal(err)
		}
	}
	for n := before + 1; n <= times; n++ {
		f, k := b.request(conn, n)
		if alone += k; f.ack != n-1 {
			b.t.Fatalf("request %d acknowledges %d", n, f.ack)
		}
		b.answer(conn, n)
	}
	return alone
}

// TestAnswersAreAcknowledgedByWhatFollows: a pair that talks in turns for a while gets no frames for acknowledgements
// alone.
func TestAnswersAreAcknowledgedByWhatFollows(t *testing.T) {
	const times = 60
	b := newBed(t, Config{answerDelay: time.Hour})
	if alone := b.talk(b.raw(), times); alone > turnsEnough+1 {
		t.Errorf("%d of %d answers were acknowledged alone, want only the first", alone, times)
	}
}

// TestLastAnswerIsAcknowledged: where nothing follows the acknowledgement comes alone, later, and those of the next
// answers at once.
func TestLastAnswerIsAcknowledged(t *testing.T) {
	b := newBed(t, Config{answerDelay: 2 * time.Second})
	q, conn := b.qp.(*queuePair), b.raw()
	b.talk(conn, 2)
	if f := nextFrame(t, conn); f.ack != 2 {
		t.Fatalf("came %+v", f)
	}
	q.mu.Lock()
	q.talk.inTurn, q.talk.answeredAt = turnsEnough, time.Time{}
	q.mu.Unlock()
	for n := uint32(3); n <= 4; n++ {
		start := time.Now()
		if err := b.qp.PostRecv(rdma.RecvWR{ID: 100, List: []rdma.SGE{{Region: b.mem, Length: answerSize}}}); err != nil {
			t.Fatal(err)
		}
		b.request(conn, n)
		b.answer(conn, n)
		if f := nextFrame(t, conn); f.kind != frameAck || f.ack != n {
			t.Errorf("after answer %d came %+v, want its acknowledgement", n, f)
		}
		if late := time.Since(start) >= q.dev.cfg.answerDelay; late != (n == 3) {
			t.Errorf("acknowledgement of answer %d after %v", n, time.Since(start))
		}
	}
}

// TestTimerOfAnEarlierAnswer: the timer that runs for an answer leaves a later one its time.
func TestTimerOfAnEarlierAnswer(t *testing.T) {
	const times = 40
	b := newBed(t, Config{answerDelay: time.Hour})
	q, conn := b.qp.(*queuePair), b.raw()
	b.talk(conn, times)
	age := func(age time.Duration) { // of the last answer, once it is waited with
		for end := time.Now().Add(patience); ; runtime.Gosched() {
			q.mu.Lock()
			noted := !q.talk.answeredAt.IsZero()
			if noted {
				q.talk.answeredAt, q.talk.inTurn = time.Now().Add(-age), turnsMax
			}
			q.mu.Unlock()
			if noted {
				return
			}
			if time.Now().After(end) {
				t.Fatal("the answer is not waited with")
			}
		}
	}
	age(0)
	q.ackLate()
	// the credit for this talk, and the last answer of the first one
	if alone := b.talkOn(conn, times, 2*times); alone > 2 {
		t.Errorf("%d answers were acknowledged alone", alone)
	}
	age(time.Hour)
	q.ackLate()
	if f := nextFrame(t, conn); f.kind != frameAck || f.ack != 2*times {
		t.Errorf("came %+v, want the acknowledgement", f)
	}
}

// TestReaderWokenForNothing: looking again before it waits, with nothing new, the reader goes on waiting with the
// acknowledgement.
func TestReaderWokenForNothing(t *testing.T) {
	q := &queuePair{dev: &Device{cfg: Config{answerDelay: time.Hour}}, state: stateReady, executed: 1, answered: true,
		talk: talk{inTurn: turnsMax}}
	q.ackTimer = time.AfterFunc(time.Hour, func() {})
	defer q.ackTimer.Stop()
	if !q.delayAck() || !q.delayAck() || q.talk.inTurn != turnsMax {
		t.Errorf("an answer is not waited with when it is looked at again: %d in turn", q.talk.inTurn)
	}
	q.executed++
	if q.delayAck() || q.talk.inTurn != 0 {
		t.Errorf("two answers in a row are waited with: %d in turn", q.talk.inTurn)
	}
}

// TestTalkThatFalters: after a long talk one late request does not end the waiting of acknowledgements, a few in a
// row do.
func TestTalkThatFalters(t *testing.T) {
	q := &queuePair{dev: &Device{cfg: Config{answerDelay: time.Hour}}}
	turn := func(ago time.Duration) bool {
		q.talk.answeredAt = time.Now().Add(-ago)
		q.talk.request(q.dev.cfg.answerDelay)
		return q.talk.inTurn >= turnsEnough
	}
	for n := 1; n <= 10*turnsMax; n++ {
		if waits := turn(0); waits != (n >= turnsEnough) {
			t.Fatalf("turn %d: waits %t", n, waits)
		}
	}
	if !turn(time.Hour) || !turn(time.Hour) {
		t.Error("two late requests ended a long talk")
	}
	if turn(time.Hour) {
		t.Error("three late requests did not end the talk")
	}
}
