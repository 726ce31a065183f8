package tcp

import (
	"runtime"
	"time"
)

// When to acknowledge to the peer what was executed: a frame that is sent anyway carries the acknowledgement for
// nothing, a frame just for it wakes the peer.
const (
	// ackEvery and ackBytes bound what a busy stream leaves unacknowledged.
	ackEvery = 16
	ackBytes = 1 << 20
	// idleYields is how often others run before an acknowledgement goes out alone.
	idleYields = 3
	// turnsEnough is how often in a row an answer has to be followed by a request within a fifth of answerDelay until
	// acknowledgements wait. Of up to turnsMax a later request takes turnsLate away: a talk that falters now and then
	// goes on.
	turnsEnough = 8
	turnsMax    = 16
	turnsLate   = 4
	// answerBytes bounds an answer: the memory of anything larger is wanted back at once.
	answerBytes = 4 << 10
)

// executedLocked counts a request of the peer, and acknowledges if much is due. It releases q.mu.
func (q *queuePair) executedLocked(n int) {
	if q.told == q.executed {
		q.in.unacked = 0
	}
	q.executed++
	q.in.unacked += n
	if q.executed-q.told < ackEvery && q.in.unacked < ackBytes {
		q.mu.Unlock()
		return
	}
	q.ackDue = true
	q.kickLocked()
}

// owesAck reports whether some of what was executed is not acknowledged to the peer yet.
func (q *queuePair) owesAck() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.told != q.executed && q.state == stateReady
}

// idle runs before readLoop blocks: what was executed is acknowledged, by a frame that answers it if one is about to
// be sent.
func (q *queuePair) idle() {
	for range idleYields {
		if !q.owesAck() {
			return
		}
		runtime.Gosched()
	}
	if !q.delayAck() {
		q.ackNow()
	}
}

// ackNow acknowledges to the peer what was executed, in a frame of its own if there is no other.
func (q *queuePair) ackNow() {
	q.mu.Lock()
	if q.told == q.executed || q.state != stateReady {
		q.mu.Unlock()
		return
	}
	q.ackDue = true
	q.kickLocked()
}

// delayAck leaves it to ackTimer to acknowledge an answer (a frame that also acknowledged a request of this side) if
// the two sides have been talking in turns: then this side soon sends again, and a frame for the acknowledgement alone
// would wake the peer for nothing.
func (q *queuePair) delayAck() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.answered || q.told == q.executed || q.state != stateReady {
		return false
	}
	if !q.talk.answeredAt.IsZero() {
		if q.talk.executed == q.executed {
			return q.ackArmed // the poller has woken the reader for nothing
		}
		q.talk.inTurn = 0 // two answers in a row
	}
	q.talk.answeredAt, q.talk.executed = time.Now(), q.executed
	if q.talk.inTurn < turnsEnough {
		return false
	}
	if !q.ackArmed {
		q.ackArmed = true
		q.ackTimer.Reset(q.dev.cfg.answerDelay)
	}
	return true
}

// talk is how far the two sides send in turns: a request, its answer, the next request.
type talk struct {
	answeredAt time.Time // when the last answer came that this side has sent nothing since
	executed   uint32    // queuePair.executed then
	inTurn     int       // answers that a request followed soon, see turnsEnough
}

// request notes that this side sends a request. delay is Config.answerDelay.
func (t *talk) request(delay time.Duration) {
	switch {
	case t.answeredAt.IsZero():
		return
	case time.Since(t.answeredAt) > delay/5:
		t.inTurn = max(t.inTurn-turnsLate, 0)
	default:
		t.inTurn = min(t.inTurn+1, turnsMax)
	}
	t.answeredAt = time.Time{}
}

// ackLate acknowledges what no frame has acknowledged yet. An answer that came after the one that the timer was set for
// gets its full time.
func (q *queuePair) ackLate() {
	q.mu.Lock()
	q.ackArmed = false
	if q.told == q.executed || q.state != stateReady {
		q.mu.Unlock()
		return
	}
	if left := q.dev.cfg.answerDelay - time.Since(q.talk.answeredAt); left > 0 {
		q.ackArmed = true
		q.ackTimer.Reset(left)
		q.mu.Unlock()
		return
	}
	q.talk.inTurn = 0
	q.mu.Unlock()
	q.ackNow()
}

// lastAck acknowledges what was executed before an abort, if the socket takes it at once; a stream that can only block
// has a second.
func (q *queuePair) lastAck() {
	q.mu.Lock()
	q.out.rewind()
	q.buildControlLocked(frame{kind: frameAck})
	q.mu.Unlock()
	_ = q.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_ = q.stream.write(&q.out.runs, &q.out.guard, !q.stream.direct())
}
