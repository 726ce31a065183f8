package rdmatest

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// Of providers whose queue pairs are rdma.Waiters; others pass with nothing done.
var waitChecks = []check{
	{"Wait/RelaysByItself", waitRelays},
	{"Wait/CountsFromTheBeginning", waitCounts},
	{"Wait/HoldsUpWhatIsBehind", waitOrder},
	{"Wait/ManyWaitForOne", waitFanOut},
	{"Wait/WritesWithImmediateCount", waitWrites},
	{"Wait/AwaitedPairFails", waitFails},
	{"Wait/AwaitedPeerDies", waitPeerDies},
	{"Wait/AwaitedPairFailsTooLate", waitFailsLate},
	{"Wait/AwaitedPairFailedBefore", waitFailedBefore},
	{"Wait/Flush", waitFlush},
	{"Wait/EachForTheOther", waitCycle},
	{"Wait/BadRequests", waitRefused},
	{"Wait/InvalidatedRegion", waitInvalidated},
}

// relay is a device that takes messages from one pair and hands them on to another; both peers are on the other device.
type relay struct {
	from, in, out, to *end
}

// relay connects both pairs, or answers nil if the provider's pairs can't wait.
func (p *Pair) relay(t *testing.T) *relay {
	t.Helper()
	var r relay
	r.from, r.in = p.link(t, options{})
	r.to, r.out = p.link(t, options{})
	_, ok := r.out.qp.(rdma.Waiter)
	if ok != p.Waits {
		t.Fatalf("queue pairs are Waiters: %t, want %t", ok, p.Waits)
	}
	if !ok {
		return nil
	}
	return &r
}

// after posts sends that wait for the first count receives of on.
func (e *end) after(on *end, count uint64, wrs ...rdma.SendWR) {
	e.t.Helper()
	if err := e.postAfter(on, count, wrs...); err != nil {
		e.t.Fatalf("post send after %d receives: %v", count, err)
	}
}

func (e *end) postAfter(on *end, count uint64, wrs ...rdma.SendWR) error {
	return e.qp.(rdma.Waiter).PostSendAfter(rdma.Receipts{QP: on.qp, Count: count}, wrs...)
}

// send sends a message of 8 bytes and takes its completion.
func (e *end) send(id uint64) {
	e.t.Helper()
	e.post(rdma.SendWR{ID: id, Op: rdma.OpSend, List: e.list(0, 8), Imm: uint32(id)})
	e.takeSent(id, rdma.StatusOK)
}

// waitRelays: messages pass a device that has posted all its part before the first of them, from the memory that they come into.
func waitRelays(t *testing.T, p *Pair) {
	r := p.relay(t)
	if r == nil {
		return
	}
	const messages, size = 24, 20000
	random(r.from.bytes(0, messages*size), 5)
	list := func(e *end, i uint64) []rdma.SGE { // in: at the region of in, from which out sends too
		return []rdma.SGE{{Region: e.mem, Offset: int(i) * size, Length: size}}
	}
	for i := range uint64(messages) {
		r.to.recv(i, int(i)*size, size)
		r.in.recv(i, int(i)*size, size)
		r.out.after(r.in, i+1, rdma.SendWR{ID: i, Op: rdma.OpSend, List: list(r.in, i), Imm: uint32(i)})
	}
	for i := range uint64(messages) {
		r.from.post(rdma.SendWR{ID: i, Op: rdma.OpSend, List: list(r.from, i)})
	}
	for i := range uint64(messages) {
		if c := r.to.takeRcvd(i, rdma.StatusOK); c.Imm != uint32(i) {
			t.Fatalf("message %d is number %d", i, c.Imm)
		}
	}
	wantBytes(t, r.to.bytes(0, messages*size), r.from.bytes(0, messages*size), "relayed messages")
	for i := range uint64(messages) {
		r.in.takeRcvd(i, rdma.StatusOK)
		r.out.takeSent(i, rdma.StatusOK)
	}
}

// waitCounts: receives that came before the post count, and all of the number are waited for.
func waitCounts(t *testing.T, p *Pair) {
	r := p.relay(t)
	if r == nil {
		return
	}
	for i := range uint64(3) {
		r.in.recv(i, 0, 8)
		r.to.recv(i, 0, 8)
	}
	r.from.send(0)
	r.in.takeRcvd(0, rdma.StatusOK)
	send := rdma.SendWR{Op: rdma.OpSend, List: r.out.list(0, 8)}
	r.out.after(r.in, 0, send)
	r.out.after(r.in, 1, send)
	r.to.takeRcvd(0, rdma.StatusOK)
	r.to.takeRcvd(1, rdma.StatusOK)
	r.out.after(r.in, 3, send)
	r.from.send(1)
	r.in.takeRcvd(1, rdma.StatusOK)
	pingPong(p.link(t, options{})) // time enough for what must not happen
	r.to.empty(r.to.rcvd)
	r.from.send(2)
	r.to.takeRcvd(2, rdma.StatusOK)
}

// waitOrder: what was posted before a wait goes, what was posted behind it does not overtake.
func waitOrder(t *testing.T, p *Pair) {
	r := p.relay(t)
	if r == nil {
		return
	}
	r.in.recv(0, 0, 8)
	for i := range uint64(4) {
		r.to.recv(i, 0, 8)
	}
	send := func(id uint64) rdma.SendWR { return rdma.SendWR{ID: id, Op: rdma.OpSend, Imm: uint32(id)} }
	r.out.post(send(0))
	r.out.after(r.in, 1, send(1), send(2))
	r.out.post(send(3))
	r.out.takeSent(0, rdma.StatusOK)
	pingPong(p.link(t, options{}))
	r.out.empty(r.out.sent)
	r.from.send(0)
	for i := range uint64(4) {
		if c := r.to.takeRcvd(i, rdma.StatusOK); c.Imm != uint32(i) {
			t.Fatalf("message %d came as number %d", c.Imm, i)
		}
	}
	for i := range uint64(3) {
		r.out.takeSent(i+1, rdma.StatusOK)
	}
}

// waitFanOut: several pairs may wait for the same receive.
func waitFanOut(t *testing.T, p *Pair) {
	r := p.relay(t)
	if r == nil {
		return
	}
	var to []*end
	r.in.recv(0, 0, 8)
	for range 4 {
		far, near := p.link(t, options{})
		far.recv(7, 0, 8)
		near.after(r.in, 1, rdma.SendWR{Op: rdma.OpSend, List: r.in.list(0, 8)})
		to = append(to, far)
	}
	random(r.from.bytes(0, 8), 3)
	r.from.send(0)
	for _, e := range to {
		e.takeRcvd(7, rdma.StatusOK)
		wantBytes(t, e.bytes(0, 8), r.from.bytes(0, 8), "message")
	}
}

// waitWrites: a write with immediate consumes a receive, a write does not.
func waitWrites(t *testing.T, p *Pair) {
	r := p.relay(t)
	if r == nil {
		return
	}
	r.in.recv(0, 0, 0)
	r.to.recv(0, 0, 8)
	r.out.after(r.in, 1, rdma.SendWR{Op: rdma.OpSend, List: r.in.list(500, 8)})
	random(r.from.bytes(0, 8), 3)
	write := rdma.SendWR{Op: rdma.OpWrite, List: r.from.list(0, 8), RemoteKey: r.in.mem.Key(), RemoteAddr: 500}
	r.from.post(write)
	r.from.takeSent(0, rdma.StatusOK)
	pingPong(p.link(t, options{}))
	r.to.empty(r.to.rcvd)
	write.Op = rdma.OpWriteImm
	r.from.post(write)
	r.to.takeRcvd(0, rdma.StatusOK)
	wantBytes(t, r.to.bytes(0, 8), r.from.bytes(0, 8), "what was written")
}

// waiting is a relay that waits for its second receive, with one send before that and one behind.
func waiting(t *testing.T, p *Pair) *relay {
	t.Helper()
	r := p.relay(t)
	if r == nil {
		return nil
	}
	for i := range uint64(3) {
		r.in.recv(i, 0, 8)
		r.to.recv(i, 0, 8)
	}
	r.out.recv(9, 0, 8)
	r.out.after(r.in, 1, rdma.SendWR{ID: 1, Op: rdma.OpSend})
	r.out.after(r.in, 2, rdma.SendWR{ID: 2, Op: rdma.OpSend, Unsignaled: true})
	r.out.post(rdma.SendWR{ID: 3, Op: rdma.OpSend})
	r.from.send(0)
	r.to.takeRcvd(0, rdma.StatusOK)
	return r
}

// failed checks that the relay of waiting failed as one whose awaited pair did.
func (r *relay) failed() {
	t := r.out.t
	t.Helper()
	r.out.takeSent(1, rdma.StatusOK)
	r.out.takeSent(2, rdma.StatusAwaited)
	r.out.takeSent(3, rdma.StatusFlushed)
	r.out.takeRcvd(9, rdma.StatusFlushed)
	wantError(t, r.out.qp.PostSend(rdma.SendWR{Op: rdma.OpSend}), rdma.ErrState)
	r.to.gone(0)
}

func waitFails(t *testing.T, p *Pair) {
	if r := waiting(t, p); r != nil {
		r.in.qp.Abort()
		r.to.takeRcvd(1, rdma.StatusFlushed)
		r.to.takeRcvd(2, rdma.StatusFlushed)
		r.failed()
	}
}

// waitPeerDies: the source of an awaited pair ends; the target of the waiting one, on the same device, notices by that.
func waitPeerDies(t *testing.T, p *Pair) {
	if r := waiting(t, p); r != nil {
		r.from.qp.Abort()
		if err := r.in.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, List: r.in.list(0, 8)}); err != nil {
			wantError(t, err, rdma.ErrState)
		}
		r.to.takeRcvd(1, rdma.StatusFlushed)
		r.to.takeRcvd(2, rdma.StatusFlushed)
		r.failed()
	}
}

// waitFailsLate: what has come counts, whatever becomes of the pair afterwards.
func waitFailsLate(t *testing.T, p *Pair) {
	r := p.relay(t)
	if r == nil {
		return
	}
	r.in.recv(0, 0, 8)
	r.out.after(r.in, 1, rdma.SendWR{ID: 1, Op: rdma.OpSend}) // and waits for a receive
	r.from.send(0)
	r.in.takeRcvd(0, rdma.StatusOK)
	r.in.qp.Abort()
	r.out.after(r.in, 1, rdma.SendWR{ID: 2, Op: rdma.OpSend})
	r.to.recv(1, 0, 8)
	r.to.recv(2, 0, 8)
	for id := range uint64(2) {
		r.to.takeRcvd(id+1, rdma.StatusOK)
		r.out.takeSent(id+1, rdma.StatusOK)
	}
}

func waitFailedBefore(t *testing.T, p *Pair) {
	r := p.relay(t)
	if r == nil {
		return
	}
	r.in.qp.Abort()
	r.out.after(r.in, 1, rdma.SendWR{ID: 1, Op: rdma.OpSend})
	r.out.takeSent(1, rdma.StatusAwaited)
}

// waitFlush: the end of a waiting pair flushes it as any, and leaves the awaited one alone.
func waitFlush(t *testing.T, p *Pair) {
	r := waiting(t, p)
	if r == nil {
		return
	}
	r.out.takeSent(1, rdma.StatusOK)
	r.out.qp.Abort()
	r.out.takeSent(2, rdma.StatusFlushed)
	r.out.takeSent(3, rdma.StatusFlushed)
	r.out.takeRcvd(9, rdma.StatusFlushed)
	wantError(t, r.out.postAfter(r.in, 1, rdma.SendWR{Op: rdma.OpSend}), rdma.ErrState)
	r.from.send(1)
	r.in.takeRcvd(0, rdma.StatusOK)
	r.in.takeRcvd(1, rdma.StatusOK)
	if err := r.out.qp.Close(); err != nil {
		t.Error(err)
	}
	r.from.send(2) // the pair that waited for it is gone
	r.in.takeRcvd(2, rdma.StatusOK)
}

// waitCycle: two pairs that each send only after having received can still be ended, with their regions.
func waitCycle(t *testing.T, p *Pair) {
	r := p.relay(t)
	if r == nil {
		return
	}
	far, near := r.from, r.in
	for _, e := range []*end{far, near} {
		e.recv(0, 0, 8)
		e.after(e, 1, rdma.SendWR{ID: 1, Op: rdma.OpSend, List: e.list(0, 8)})
	}
	pingPong(p.link(t, options{}))
	near.empty(near.rcvd)
	near.qp.Abort()
	near.takeSent(1, rdma.StatusFlushed)
	near.takeRcvd(0, rdma.StatusFlushed)
	if err := near.mem.Close(); err != nil {
		t.Error(err)
	}
}

func waitRefused(t *testing.T, p *Pair) {
	r := p.relay(t)
	if r == nil {
		return
	}
	r.in.recv(0, 0, 8)
	good := rdma.SendWR{ID: 7, Op: rdma.OpSend, List: r.out.list(0, 8)}
	bad := rdma.SendWR{Op: rdma.OpSend, List: []rdma.SGE{r.out.sge(linkBytes-7, 8)}}
	wantError(t, r.out.postAfter(r.in, 1, good, bad), rdma.ErrBounds)
	wantError(t, r.out.postAfter(r.in, 1, rdma.SendWR{Op: rdma.OpRecv}), rdma.ErrRequest)
	wantError(t, r.out.postAfter(r.from, 1, good), rdma.ErrRequest) // of another device
	wantError(t, r.out.qp.(rdma.Waiter).PostSendAfter(rdma.Receipts{Count: 1}, good), rdma.ErrRequest)
	unconnected := p.end(t, 1, options{})
	wantError(t, unconnected.postAfter(r.in, 1, good), rdma.ErrState)
	pingPong(r.out, r.to) // nothing of all that is left, and nothing waits
	r.to.recv(1, 0, 8)
	r.out.after(r.in, 1, good)
	r.from.send(0)
	r.out.takeSent(7, rdma.StatusOK)
}

// waitInvalidated: a stale region takes no new requests, also of those that wait; posted ones go on, and Close waits for them.
func waitInvalidated(t *testing.T, p *Pair) {
	r := p.relay(t)
	if r == nil {
		return
	}
	r.in.recv(0, 0, 8)
	r.to.recv(0, 0, 8)
	send := rdma.SendWR{ID: 7, Op: rdma.OpSend, List: r.out.list(0, 8)}
	r.out.after(r.in, 1, send)
	r.out.mem.Invalidate()
	wantError(t, r.out.postAfter(r.in, 1, send), rdma.ErrState)
	closed := make(chan error, 1)
	go func() { closed <- r.out.mem.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("region closed under a request that waits: %v", err)
	default:
	}
	r.from.send(0)
	r.out.takeSent(7, rdma.StatusOK)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}
