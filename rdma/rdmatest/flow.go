package rdmatest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

var flowChecks = []check{
	{"Flow/SendWaitsForReceive", flowWaits},
	{"Flow/ReceiverNotReady", flowNotReady},
	{"Flow/BothWaitForTheOther", flowCrossed},
	{"Flow/QueueFull", flowQueueFull},
	{"Flow/Flood", flowFlood},
	{"Flow/FloodBothWays", flowFloodBoth},
	{"Flow/ManyPairsOneQueue", flowManyPairs},
	{"Flow/CompletionQueueGrows", flowGrows},
	{"Flow/WaitWakes", flowWait},
	{"Flow/Dispatch", flowDispatch},
}

// flowWaits: a send posted before its receive arrives when the receive is posted.
func flowWaits(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	for i := range uint64(5) {
		a.post(rdma.SendWR{ID: i, Op: rdma.OpSend, List: a.list(0, 100)})
		a.empty(a.sent)
		b.recv(i, 0, 100)
		b.takeRcvd(i, rdma.StatusOK)
		a.takeSent(i, rdma.StatusOK)
	}
}

func flowNotReady(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	b.recv(1, 0, 10)
	for i := range uint64(3) {
		a.post(rdma.SendWR{ID: i, Op: rdma.OpSend, List: a.list(0, 10)})
	}
	a.recv(4, 0, 10)
	a.takeSent(0, rdma.StatusOK)
	a.takeSent(1, rdma.StatusReceiverNotReady)
	a.takeSent(2, rdma.StatusFlushed)
	a.takeRcvd(4, rdma.StatusFlushed)
}

// flowCrossed: a send that waits does not hold up the acknowledgements of the other direction.
func flowCrossed(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	a.post(rdma.SendWR{ID: 1, Op: rdma.OpSend, List: a.list(0, 100000)})
	a.recv(1, 0, 100)
	b.post(rdma.SendWR{ID: 2, Op: rdma.OpSend, List: b.list(0, 100)})
	b.takeSent(2, rdma.StatusOK)
	a.takeRcvd(1, rdma.StatusOK)
	b.recv(2, 0, 100000)
	b.takeRcvd(2, rdma.StatusOK)
	a.takeSent(1, rdma.StatusOK)
}

func flowQueueFull(t *testing.T, p *Pair) {
	a, b := p.link(t, options{sendDepth: 8, recvDepth: 8})
	for i := range uint64(8) {
		a.post(rdma.SendWR{ID: i, Op: rdma.OpSend, List: a.list(0, 8)})
	}
	wantError(t, a.qp.PostSend(rdma.SendWR{Op: rdma.OpSend}), rdma.ErrQueueFull)
	for i := range uint64(8) {
		b.recv(i, 0, 8)
	}
	for i := range uint64(8) {
		a.takeSent(i, rdma.StatusOK)
	}
	b.take(b.rcvd, 8)
	for i := range uint64(8) {
		b.recv(i, 0, 8)
	}
	wantError(t, b.qp.PostRecv(rdma.RecvWR{}), rdma.ErrQueueFull)
}

// flood is one direction of small messages.
type flood struct {
	from, to  *end
	messages  int
	signalAll bool
}

// floodDepth is the number of receives the receiving side keeps posted.
const floodDepth = 64

func (f *flood) prime() {
	for i := range floodDepth {
		f.to.recv(uint64(i), 64*i, 64)
	}
}

func (f *flood) send() error {
	const signalEvery = 16
	out := make([]rdma.Completion, signalEvery)
	for i := 0; i < f.messages; {
		quiet := !f.signalAll && i%signalEvery != 0 && i != f.messages-1
		wr := rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, List: f.from.list(64*(i%floodDepth), 16), Imm: uint32(i),
			Unsignaled: quiet}
		err := f.from.qp.PostSend(wr)
		switch {
		case err == nil:
			i++
		case errors.Is(err, rdma.ErrQueueFull):
			if _, err := takeN(f.from.sent, 1, f.from.patience); err != nil {
				return err
			}
		default:
			return err
		}
		f.from.sent.Poll(out)
	}
	return nil
}

func (f *flood) receive() error {
	for i := range f.messages {
		c, err := takeN(f.to.rcvd, 1, f.to.patience)
		if err != nil {
			return err
		}
		if c[0].Imm != uint32(i) || c[0].Status != rdma.StatusOK || c[0].ID != uint64(i%floodDepth) {
			return errors.New("flood: message out of order")
		}
		id := uint64(i % floodDepth)
		if err := f.to.qp.PostRecv(rdma.RecvWR{ID: id, List: f.to.list(64*int(id), 64)}); err != nil {
			return err
		}
	}
	return nil
}

func runFloods(t *testing.T, floods ...*flood) {
	t.Helper()
	var wg sync.WaitGroup
	for _, f := range floods {
		f.prime()
		for _, run := range []func() error{f.send, f.receive} {
			wg.Go(func() {
				if err := run(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
}

func flowFlood(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	runFloods(t, &flood{from: a, to: b, messages: 5000})
}

func flowFloodBoth(t *testing.T, p *Pair) {
	a, b := p.link(t, options{sendDepth: 16})
	runFloods(t, &flood{from: a, to: b, messages: 3000}, &flood{from: b, to: a, messages: 3000, signalAll: true})
}

// flowManyPairs: completions of many pairs in one queue name their pair and keep each pair's order.
func flowManyPairs(t *testing.T, p *Pair) {
	const pairs, messages = 24, 20
	var as, bs [pairs]*end
	shared := newCQ(t, p.Devices[1])
	next := map[rdma.QueuePair]uint64{}
	for i := range pairs {
		as[i], bs[i] = p.end(t, 0, options{bytes: 4096}), p.end(t, 1, options{bytes: 4096})
		qp, err := p.Devices[1].NewQP(rdma.QPConfig{SendCQ: shared, RecvCQ: shared, User: i})
		if err != nil {
			t.Fatal(err)
		}
		bs[i].qp = qp
		connect(t, as[i], bs[i])
		for m := range messages {
			bs[i].recv(uint64(m), 0, 100)
		}
	}
	for m := range messages {
		for i := range pairs {
			as[i].post(rdma.SendWR{ID: uint64(m), Op: rdma.OpSend, List: as[i].list(0, 100), Imm: uint32(i)})
		}
	}
	for _, c := range bs[0].take(shared, pairs*messages) {
		if c.ID != next[c.QP] || c.QP.User() != int(c.Imm) || c.Status != rdma.StatusOK {
			t.Fatalf("completion %+v of pair %v, want id %d", c, c.QP.User(), next[c.QP])
		}
		next[c.QP]++
	}
}

// flowGrows: no completion is lost when more come than the queue was made for.
func flowGrows(t *testing.T, p *Pair) {
	a, b := p.end(t, 0, options{}), p.end(t, 1, options{})
	small, err := p.Devices[1].NewCQ(2)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := p.Devices[1].NewQP(rdma.QPConfig{SendCQ: small, RecvCQ: small})
	if err != nil {
		t.Fatal(err)
	}
	b.qp, b.rcvd = qp, small
	connect(t, a, b)
	for i := range uint64(50) {
		b.recv(i, 0, 10)
		a.post(rdma.SendWR{ID: i, Op: rdma.OpSend, List: a.list(0, 10)})
	}
	a.take(a.sent, 50)
	for i, c := range b.take(b.rcvd, 50) {
		if c.ID != uint64(i) {
			t.Fatalf("completion %d has id %d", i, c.ID)
		}
	}
}

// flowWait: Wait returns for a completion (to all callers that wait), for its context, and for Close.
func flowWait(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	b.recv(1, 0, 10)
	ctx, cancel := context.WithTimeout(context.Background(), p.Patience)
	defer cancel()
	woken := make(chan error, 3)
	for range 3 {
		go func() { woken <- b.rcvd.Wait(ctx) }()
	}
	a.post(rdma.SendWR{ID: 1, Op: rdma.OpSend})
	for range 3 {
		if err := <-woken; err != nil {
			t.Fatal(err)
		}
	}
	b.takeRcvd(1, rdma.StatusOK)

	short, stop := context.WithCancel(ctx)
	go func() { woken <- b.rcvd.Wait(short) }()
	stop()
	wantError(t, <-woken, context.Canceled)

	lone := newCQ(t, p.Devices[0])
	for range 2 {
		go func() { woken <- lone.Wait(ctx) }()
	}
	if err := lone.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		wantError(t, <-woken, rdma.ErrClosed)
	}
}
