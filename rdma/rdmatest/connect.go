package rdmatest

import (
	"context"
	"sync"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

var connectChecks = []check{
	{"Connect/Both", connectBoth},
	{"Connect/OneAfterTheOther", connectLate},
	{"Connect/CancelledByContext", connectCancelled},
	{"Connect/AbortedMeanwhile", connectAborted},
	{"Connect/BadAddress", connectBadAddress},
	{"Connect/ReceivesPostedBefore", connectReceivesBefore},
	{"Connect/StatesRefuse", connectStates},
}

func connectBoth(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	if n := len(a.qp.Address()); n == 0 || n > 256 {
		t.Errorf("address of %d bytes", n)
	}
	pingPong(a, b)
	pingPong(b, a)
}

// pingPong sends one message each way.
func pingPong(a, b *end) {
	a.t.Helper()
	random(a.bytes(0, 100), 7)
	b.recv(1, 1000, 100)
	a.post(rdma.SendWR{ID: 2, Op: rdma.OpSend, List: a.list(0, 100), Imm: 77})
	c := b.takeRcvd(1, rdma.StatusOK)
	if c.Op != rdma.OpRecv || c.Bytes != 100 || !c.HasImm || c.Imm != 77 {
		b.t.Fatalf("receive completion %+v", c)
	}
	a.takeSent(2, rdma.StatusOK)
	wantBytes(a.t, b.bytes(1000, 100), a.bytes(0, 100), "message")
}

// connectLate: whichever side starts, it waits for the other.
func connectLate(t *testing.T, p *Pair) {
	for first := range 2 {
		ends := [2]*end{p.end(t, 0, options{}), p.end(t, 1, options{})}
		ctx, cancel := context.WithTimeout(context.Background(), p.Patience)
		began := make(chan struct{})
		var wg sync.WaitGroup
		var err error
		remote := ends[1-first].qp.Address()
		wg.Go(func() {
			close(began)
			err = ends[first].qp.Connect(ctx, remote)
		})
		<-began
		if err2 := ends[1-first].qp.Connect(ctx, ends[first].qp.Address()); err2 != nil {
			t.Errorf("second side: %v", err2)
		}
		wg.Wait()
		cancel()
		if err != nil {
			t.Fatalf("first side: %v", err)
		}
		pingPong(ends[0], ends[1])
	}
}

func connectCancelled(t *testing.T, p *Pair) {
	for i := range 2 {
		e, peer := p.end(t, i, options{}), p.end(t, 1-i, options{})
		e.recv(9, 0, 10)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		wantError(t, e.qp.Connect(ctx, peer.qp.Address()), context.Canceled)
		e.takeRcvd(9, rdma.StatusFlushed)
		wantError(t, e.qp.PostRecv(rdma.RecvWR{}), errAny)
	}
}

func connectAborted(t *testing.T, p *Pair) {
	for i := range 2 {
		e, peer := p.end(t, i, options{}), p.end(t, 1-i, options{})
		e.recv(3, 0, 10)
		ctx, cancel := context.WithTimeout(context.Background(), p.Patience)
		failed := make(chan error, 1)
		go func() { failed <- e.qp.Connect(ctx, peer.qp.Address()) }()
		e.qp.Abort()
		if err := <-failed; err == nil {
			t.Error("an aborted pair connected")
		}
		cancel()
		e.takeRcvd(3, rdma.StatusFlushed)
	}
}

func connectBadAddress(t *testing.T, p *Pair) {
	for _, bad := range [][]byte{nil, {1, 2, 3}, make([]byte, 300)} {
		e := p.end(t, 0, options{})
		e.recv(1, 0, 1)
		ctx, cancel := context.WithTimeout(context.Background(), p.Patience)
		if err := e.qp.Connect(ctx, bad); err == nil {
			t.Errorf("connected to address %x", bad)
		}
		cancel()
		e.takeRcvd(1, rdma.StatusFlushed)
	}
}

func connectReceivesBefore(t *testing.T, p *Pair) {
	a, b := p.end(t, 0, options{}), p.end(t, 1, options{})
	for i := range 5 {
		b.recv(uint64(i), 100*i, 100)
	}
	connect(t, a, b)
	for i := range 5 {
		a.post(rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, List: a.list(0, 10*i), Imm: uint32(i)})
	}
	for i, c := range b.take(b.rcvd, 5) {
		if c.ID != uint64(i) || c.Bytes != 10*i || c.Imm != uint32(i) {
			t.Errorf("receive %d: %+v", i, c)
		}
	}
}

func connectStates(t *testing.T, p *Pair) {
	e := p.end(t, 0, options{})
	wantError(t, e.qp.PostSend(rdma.SendWR{Op: rdma.OpSend}), rdma.ErrState)
	a, b := p.link(t, options{})
	wantError(t, a.qp.Connect(context.Background(), b.qp.Address()), rdma.ErrState)
	pingPong(a, b) // the refused call changed nothing
	if err := a.qp.Close(); err != nil {
		t.Error(err)
	}
	wantError(t, a.qp.PostSend(rdma.SendWR{Op: rdma.OpSend}), errAny)
	if err := a.qp.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}
