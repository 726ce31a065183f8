package rdmatest

import (
	"context"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

var endChecks = []check{
	{"End/FlushInOrder", endFlushOrder},
	{"End/AbortBeforeConnect", endBeforeConnect},
	{"End/CloseCompletesAll", endCloseCompletes},
	{"End/RegionCloseWaits", endRegionWaits},
	{"End/PeerAborts", endPeerAborts},
	{"End/PeerDiesBeforeConnect", endDiesBefore},
	{"End/PeerDiesWhileConnecting", endDiesConnecting},
	{"End/PeerDiesIdle", endDiesIdle},
	{"End/PeerDiesInTransfer", endDiesTransfer},
	{"End/PeerDiesInWrites", endDiesWrites},
	{"End/PeerDiesInReads", endDiesReads},
	{"End/PeerDiesAfterAbort", endDiesAborted},
	{"End/PeerDiesOwingReceives", endDiesOwing},
	{"End/OtherPairsLive", endOthersLive},
	{"End/DeviceClose", endDeviceClose},
}

// endFlushOrder: after Abort everything completes, in order, on both queues.
func endFlushOrder(t *testing.T, p *Pair) {
	a, _ := p.link(t, options{})
	for i := range uint64(20) {
		a.post(rdma.SendWR{ID: i, Op: rdma.OpSend, List: a.list(0, 10), Unsignaled: i%3 == 0})
		a.recv(i, 0, 10)
	}
	a.qp.Abort()
	for i := range uint64(20) {
		a.takeSent(i, rdma.StatusFlushed)
		a.takeRcvd(i, rdma.StatusFlushed)
	}
	wantError(t, a.qp.PostSend(rdma.SendWR{Op: rdma.OpSend}), rdma.ErrState)
	wantError(t, a.qp.PostRecv(rdma.RecvWR{}), rdma.ErrState)
}

func endBeforeConnect(t *testing.T, p *Pair) {
	e := p.end(t, 0, options{})
	e.recv(1, 0, 10)
	e.recv(2, 0, 10)
	e.qp.Abort()
	e.takeRcvd(1, rdma.StatusFlushed)
	e.takeRcvd(2, rdma.StatusFlushed)
	ctx, cancel := context.WithTimeout(context.Background(), p.Patience)
	defer cancel()
	wantError(t, e.qp.Connect(ctx, p.end(t, 1, options{}).qp.Address()), errAny)
}

// endCloseCompletes: when Close has returned, every completion is in the queues.
func endCloseCompletes(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	for i := range uint64(10) {
		a.recv(i, 0, 10)
		a.post(rdma.SendWR{ID: i, Op: rdma.OpSend, List: a.list(0, 100000)})
		if i < 5 {
			b.recv(i, 0, 100000)
		}
	}
	if err := a.qp.Close(); err != nil {
		t.Fatal(err)
	}
	out := make([]rdma.Completion, 64)
	if n := a.sent.Poll(out); n != 10 {
		t.Errorf("%d send completions after close, want 10", n)
	}
	if n := a.rcvd.Poll(out); n != 10 {
		t.Errorf("%d receive completions after close, want 10", n)
	}
}

// endRegionWaits: Region.Close returns only when the work that uses the region has completed.
func endRegionWaits(t *testing.T, p *Pair) {
	a, _ := p.link(t, options{})
	a.recv(1, 0, 10)
	a.mem.Invalidate()
	closed := make(chan error, 1)
	go func() { closed <- a.mem.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("region closed under a posted receive: %v", err)
	default:
	}
	a.qp.Abort()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if n := a.rcvd.Poll(make([]rdma.Completion, 1)); n != 1 {
		t.Error("region closed before its work completed")
	}
}

// gone checks that an end notices the end of its peer at the latest by a send, and flushes in order.
func (e *end) gone(receives uint64) {
	e.t.Helper()
	wr := rdma.SendWR{ID: 99, Op: rdma.OpSend, List: e.list(0, 100)}
	if err := e.qp.PostSend(wr, wr); err == nil {
		for i, c := range e.take(e.sent, 2) {
			if c.Status != rdma.StatusFlushed && (i > 0 || c.Status != rdma.StatusDisconnected) {
				e.t.Fatalf("send %d to a dead peer: %v", i, c.Status)
			}
		}
	} else {
		wantError(e.t, err, rdma.ErrState)
	}
	for i := range receives {
		e.takeRcvd(i, rdma.StatusFlushed)
	}
	e.empty(e.rcvd)
}

func endPeerAborts(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	for i := range uint64(4) {
		b.recv(i, 0, 100)
	}
	a.qp.Abort()
	b.gone(4)
}

// endDiesBefore: a pair whose peer died before it was called does not get connected, and can be given up.
func endDiesBefore(t *testing.T, p *Pair) {
	a, b := p.end(t, 0, options{}), p.end(t, 1, options{})
	a.recv(0, 0, 10)
	address := b.qp.Address()
	p.Kill(1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := a.qp.Connect(ctx, address); err == nil {
		t.Error("connected to a dead peer")
	}
	a.takeRcvd(0, rdma.StatusFlushed)
}

func endDiesConnecting(t *testing.T, p *Pair) {
	a, b := p.end(t, 0, options{}), p.end(t, 1, options{})
	a.recv(0, 0, 10)
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	addr := b.qp.Address()
	go func() { failed <- a.qp.Connect(ctx, addr) }()
	p.Kill(1)
	cancel()
	if err := <-failed; err == nil {
		t.Error("connected to a dead peer")
	}
	a.takeRcvd(0, rdma.StatusFlushed)
}

func endDiesIdle(t *testing.T, p *Pair) {
	a, _ := p.link(t, options{})
	for i := range uint64(3) {
		a.recv(i, 0, 100)
	}
	p.Kill(1)
	a.gone(3)
}

// Requests of the tests in which a peer dies in their midst.
const (
	dyingRequests = 16
	dyingBytes    = 8 << 20
)

// endDiesTransfer kills the peer while large sends are on the way.
func endDiesTransfer(t *testing.T, p *Pair) {
	a, b := p.link(t, options{bytes: dyingBytes})
	for i := range uint64(dyingRequests) {
		b.recv(i, 0, dyingBytes)
		a.post(rdma.SendWR{ID: i, Op: rdma.OpSend, List: a.list(0, dyingBytes)})
	}
	a.recv(0, 0, 10)
	b.takeRcvd(0, rdma.StatusOK)
	p.Kill(1)
	a.endedInMidst(0)
}

func endDiesWrites(t *testing.T, p *Pair) { diesInOneSided(t, p, rdma.OpWrite) }

func endDiesReads(t *testing.T, p *Pair) { diesInOneSided(t, p, rdma.OpRead) }

// diesInOneSided kills the peer while large writes or reads are on the way, which it has no part in.
func diesInOneSided(t *testing.T, p *Pair, op rdma.Opcode) {
	a, b := p.link(t, options{bytes: dyingBytes})
	for i := range uint64(dyingRequests) {
		a.post(rdma.SendWR{ID: i, Op: op, List: a.list(0, dyingBytes), RemoteKey: b.mem.Key()})
	}
	a.recv(0, 0, 10)
	a.takeSent(0, rdma.StatusOK)
	p.Kill(1)
	a.endedInMidst(1)
}

// endedInMidst checks that of the requests from number first on some ended well, the next with the death of the peer,
// and the others as flushed, like the receive that is posted.
func (e *end) endedInMidst(first uint64) {
	e.t.Helper()
	worst := rdma.StatusOK
	for i, c := range e.take(e.sent, int(dyingRequests-first)) {
		if c.ID != first+uint64(i) {
			e.t.Fatalf("completion %d has id %d", i, c.ID)
		}
		switch {
		case c.Status == rdma.StatusOK && worst == rdma.StatusOK:
		case c.Status == rdma.StatusDisconnected && worst == rdma.StatusOK:
			worst = rdma.StatusDisconnected
		case c.Status == rdma.StatusFlushed && worst == rdma.StatusDisconnected:
		default:
			e.t.Fatalf("completion %d: %v after %v", i, c.Status, worst)
		}
	}
	if worst == rdma.StatusOK { // all had arrived before: only another send is sure to notice
		e.gone(1)
		return
	}
	e.takeRcvd(0, rdma.StatusFlushed)
}

// endDiesAborted: the death of the peer of a pair that is in error already changes nothing.
func endDiesAborted(t *testing.T, p *Pair) {
	a, _ := p.link(t, options{})
	a.recv(0, 0, 10)
	a.qp.Abort()
	a.takeRcvd(0, rdma.StatusFlushed)
	p.Kill(1)
	wantError(t, a.qp.PostSend(rdma.SendWR{Op: rdma.OpSend}), rdma.ErrState)
	if err := a.qp.Close(); err != nil {
		t.Error(err)
	}
	a.empty(a.sent)
	a.empty(a.rcvd)
}

// endDiesOwing: a send waits for a receive of a peer that dies instead of posting one.
func endDiesOwing(t *testing.T, p *Pair) {
	a, _ := p.link(t, options{})
	a.post(rdma.SendWR{ID: 1, Op: rdma.OpSend, List: a.list(0, 10)})
	p.Kill(1)
	a.takeSent(1, rdma.StatusDisconnected)
}

// endOthersLive: the failure of one pair leaves the others of the same devices alone.
func endOthersLive(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	c, d := p.link(t, options{})
	a.post(rdma.SendWR{ID: 1, Op: rdma.OpRead, List: a.list(0, 10), RemoteKey: b.mem.Key() + 1})
	a.takeSent(1, rdma.StatusRemoteAccess)
	if err := b.qp.Close(); err != nil {
		t.Error(err)
	}
	pingPong(c, d)
	pingPong(d, c)
}

// endDeviceClose: closing a device completes all its work, and later calls say closed.
func endDeviceClose(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	for i := range uint64(3) {
		a.recv(i, 0, 10)
		b.recv(i, 0, 10)
	}
	if err := a.dev.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(3) {
		a.takeRcvd(i, rdma.StatusFlushed)
	}
	b.gone(3)
	_, err := a.dev.NewQP(rdma.QPConfig{SendCQ: a.sent, RecvCQ: a.rcvd})
	wantError(t, err, rdma.ErrClosed)
	_, err = a.dev.AllocRegion(10, 0)
	wantError(t, err, rdma.ErrClosed)
	wantError(t, a.qp.PostRecv(rdma.RecvWR{}), errAny)
}
