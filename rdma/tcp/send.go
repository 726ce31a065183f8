package tcp

import (
	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

// Bounds of one batch.
const (
	batchRuns  = 64
	batchBytes = 1 << 20
)

// outbox is the batch being written and the memory of its control header.
type outbox struct {
	batch
	backing [batchRuns][]byte
	control [frameBytes]byte
	seal    seal
}

func (o *outbox) init(t *soft.Table) {
	o.guard.table = t
	o.runs = o.backing[:0]
}

// rewind empties the batch and takes the whole backing again.
func (o *outbox) rewind() {
	o.reset()
	clear(o.backing[:])
	o.runs = o.backing[:0]
	o.seal = seal{}
}

// take moves what may be written next of a message that is to be sealed into the batch, unless the batch has some of it
// already.
func (o *outbox) take() {
	if !o.seal.on || o.seal.begun && len(o.runs) > 0 {
		return
	}
	if o.seal.begun {
		o.runs = o.backing[:0]
	}
	o.runs = o.seal.next(o.runs)
}

// answer is a remote read that is to be served.
type answer struct {
	key  rdma.RegionKey
	addr uint64
	n    int
}

// answerRing holds the reads of the peer not served yet; the peer may have maxReads outstanding.
type answerRing struct {
	ring [maxReads]answer
	head int
	n    int
}

func (r *answerRing) push(a answer) bool {
	if r.n == len(r.ring) {
		return false
	}
	r.ring[(r.head+r.n)%len(r.ring)] = a
	r.n++
	return true
}

func (r *answerRing) pop() answer {
	a := r.ring[r.head]
	r.head = (r.head + 1) % len(r.ring)
	r.n--
	return a
}

// kickLocked starts writing unless another goroutine is writing, without blocking. It releases q.mu.
func (q *queuePair) kickLocked() {
	if q.writing || !q.buildLocked() {
		q.mu.Unlock()
		return
	}
	q.writing = true
	q.mu.Unlock()
	q.drain(false)
}

// poke makes writeLoop look for something to write.
func (q *queuePair) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// writeLoop writes what was handed over, and what it is poked for, until stop.
func (q *queuePair) writeLoop() {
	for {
		select {
		case <-q.wake:
		case <-q.stop:
			return
		}
		if q.takeOutbox() {
			q.drain(true)
		}
	}
}

// takeOutbox makes the caller the owner of a batch, if there is one that nobody writes.
func (q *queuePair) takeOutbox() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.handed {
		q.handed = false
		return true
	}
	if q.writing || !q.buildLocked() {
		return false
	}
	q.writing = true
	return true
}

// drain writes the batch and those after it. The caller owns the outbox, but no longer when drain returns.
func (q *queuePair) drain(wait bool) {
	for {
		if !wait && q.out.bytes > q.dev.cfg.InlineBytes {
			q.handOver()
			return
		}
		q.out.take()
		err := q.stream.write(&q.out.runs, &q.out.guard, wait)
		if err == errAgain {
			q.handOver()
			return
		}
		if err == nil && q.out.seal.on {
			continue
		}
		if !q.wrote(err) {
			return
		}
	}
}

func (q *queuePair) handOver() {
	q.mu.Lock()
	q.handed = true
	q.mu.Unlock()
	q.poke()
}

// wrote books a finished batch and reports whether another one was built.
func (q *queuePair) wrote(err error) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		q.nak = rdma.StatusOK
		q.failLocked(rdma.StatusDisconnected)
	} else {
		q.sent = q.tx
		q.completeLocked()
		if q.buildLocked() {
			return true
		}
	}
	q.writing = false
	q.calm.Broadcast()
	return false
}

// buildLocked fills the outbox with what comes next: an answer to a read, the last frame of a failed
// pair, requests, or a bare acknowledgement. It reports whether there is anything.
func (q *queuePair) buildLocked() bool {
	q.out.rewind()
	switch {
	case q.state != stateReady && q.nak == rdma.StatusOK:
		return false
	case q.answers.n > 0:
		q.buildAnswerLocked(q.answers.pop())
		return true
	case q.nak != rdma.StatusOK:
		q.buildControlLocked(frame{kind: frameNak, status: q.nak})
		q.nak = rdma.StatusOK
		return true
	}
	if q.buildRequestsLocked() {
		return true
	}
	if q.ackDue {
		q.buildControlLocked(frame{kind: frameAck})
		return true
	}
	return false
}

func (q *queuePair) buildControlLocked(f frame) {
	q.stampLocked(&f)
	f.encode(&q.out.control)
	q.out.add(q.out.control[:])
}

func (q *queuePair) buildAnswerLocked(a answer) {
	region, mem := q.dev.table.Acquire(a.key, rdma.RemoteRead, a.addr, a.n)
	leave(region) // the guard acquires it again for each write
	q.buildControlLocked(frame{kind: frameReadData, length: uint32(a.n)})
	if region != nil {
		q.out.add(mem)
	}
	g := &q.out.guard
	g.key, g.need, g.addr, g.n, g.on = a.key, rdma.RemoteRead, a.addr, a.n, true
}

// stampLocked puts the counters of this side into a frame.
func (q *queuePair) stampLocked(f *frame) {
	f.ack, f.credit = q.executed, q.posted
	q.told, q.advertised, q.ackDue = q.executed, q.posted, false
}

// buildRequestsLocked adds as many posted requests as bounds, credits and reads allow.
func (q *queuePair) buildRequestsLocked() bool {
	for q.tx < q.sq.Tail && q.out.bytes < batchBytes {
		s := q.sq.At(q.tx)
		if len(q.out.runs)+2+len(s.Pieces) > batchRuns || q.out.seal.on {
			break
		}
		kind := kindOf(s.Op)
		if kind.consumes() && q.used == q.peerPosted {
			q.awaitReceiverLocked()
			break
		}
		if kind == frameRead && q.reads == maxReads {
			break
		}
		q.addRequestLocked(kind, s)
	}
	return len(q.out.runs) > 0
}

func (q *queuePair) addRequestLocked(kind frameKind, s *soft.SendSlot) {
	f := frame{kind: kind, length: uint32(s.Length), imm: s.Imm, key: uint64(s.RemoteKey), addr: s.RemoteAddr}
	q.stampLocked(&f)
	f.encode(&s.Header)
	q.out.add(s.Header[:])
	if kind == frameRead {
		q.reads++
	} else {
		q.addPayload(s)
	}
	if s.Length > smallMax {
		q.dev.watch.large.Store(true)
	}
	if kind.consumes() {
		q.used++
	}
	q.talk.request(q.dev.cfg.answerDelay)
	if q.rnrOn {
		q.rnrOn = false
		q.rnrTimer.Stop()
	}
	q.tx++
}

// addPayload adds the bytes of a request to the batch, or behind it if they have to be summed up first.
func (q *queuePair) addPayload(s *soft.SendSlot) {
	if s.Seal {
		q.out.seal = newSeal(s.Pieces)
		q.out.bytes += s.Length
		return
	}
	q.out.add(s.Inline)
	for i := range s.Pieces {
		q.out.add(s.Pieces[i].Mem)
	}
}

// awaitReceiverLocked starts the clock for the request at tx, which needs a receive at the peer.
func (q *queuePair) awaitReceiverLocked() {
	if q.rnrOn {
		return
	}
	q.rnrOn, q.rnrAt, q.rnrLeft = true, q.tx, rnrRounds
	q.rnrTimer.Reset(q.dev.cfg.ReceiverTimeout)
}
