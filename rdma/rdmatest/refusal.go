package rdmatest

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

var refusalChecks = []check{
	{"Refusal/ReceiveTooSmall", refuseSmallReceive},
	{"Refusal/RemoteAccess", refuseRemoteAccess},
	{"Refusal/AfterGoodRequests", refuseAfterGood},
	{"Refusal/LocalBounds", refuseLocalBounds},
	{"Refusal/Limits", refuseLimits},
	{"Refusal/ForeignObjects", refuseForeign},
	{"Refusal/InvalidatedRegion", refuseInvalidated},
	{"Refusal/ClosedRegion", refuseClosedRegion},
}

func refuseSmallReceive(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	b.recv(1, 0, 99)
	b.recv(2, 0, 1000)
	a.post(rdma.SendWR{ID: 1, Op: rdma.OpSend, List: a.list(0, 100)},
		rdma.SendWR{ID: 2, Op: rdma.OpSend, List: a.list(0, 100)})
	a.takeSent(1, rdma.StatusLength)
	a.takeSent(2, rdma.StatusFlushed)
	b.takeRcvd(1, rdma.StatusLength)
	b.takeRcvd(2, rdma.StatusFlushed)
	wantError(t, a.qp.PostSend(rdma.SendWR{Op: rdma.OpSend}), rdma.ErrState)
}

// refuseRemoteAccess: each wrong access fails with its status and changes no byte.
func refuseRemoteAccess(t *testing.T, p *Pair) {
	const size = 4096
	for _, c := range []struct {
		name   string
		op     rdma.Opcode
		access rdma.Access
		keyXor rdma.RegionKey
		addr   uint64
		n      int
	}{
		{"bad key", rdma.OpWrite, allRights, 1 << 7, 0, 8},
		{"no key", rdma.OpRead, allRights, 1<<63 | 1, 0, 8},
		{"behind the end", rdma.OpWrite, allRights, 0, size - 7, 8},
		{"far behind the end", rdma.OpRead, allRights, 0, 1 << 40, 8},
		{"address overflow", rdma.OpWrite, allRights, 0, ^uint64(0) - 3, 8},
		{"larger than the region", rdma.OpWrite, allRights, 0, 0, size + 1},
		{"no right to write", rdma.OpWrite, rdma.RemoteRead, 0, 0, 8},
		{"no right to write with immediate", rdma.OpWriteImm, rdma.RemoteRead, 0, 0, 8},
		{"no right to read", rdma.OpRead, rdma.RemoteWrite, 0, 0, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := p.end(t, 0, options{}), p.end(t, 1, options{access: c.access, bytes: size})
			connect(t, a, b)
			b.recv(3, 0, 10)
			random(a.bytes(0, 2*size), 1)
			a.post(rdma.SendWR{ID: 1, Op: c.op, List: a.list(0, c.n), RemoteKey: b.mem.Key() ^ c.keyXor, RemoteAddr: c.addr},
				rdma.SendWR{ID: 2, Op: rdma.OpSend})
			a.takeSent(1, rdma.StatusRemoteAccess)
			a.takeSent(2, rdma.StatusFlushed)
			wantBytes(t, b.mem.Bytes(), make([]byte, size), "memory after a refused access")
			b.qp.Abort()
			b.takeRcvd(3, rdma.StatusFlushed)
		})
	}
}

// refuseAfterGood: requests before the refused one complete well, reads among them.
func refuseAfterGood(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	b.recv(1, 0, 100)
	random(b.bytes(0, 90000), 4)
	a.post(
		rdma.SendWR{ID: 1, Op: rdma.OpRead, List: a.list(0, 90000), RemoteKey: b.mem.Key()},
		rdma.SendWR{ID: 2, Op: rdma.OpSend, List: a.list(500000, 0)},
		rdma.SendWR{ID: 3, Op: rdma.OpRead, List: a.list(90000, 5), RemoteKey: b.mem.Key()},
		rdma.SendWR{ID: 4, Op: rdma.OpWrite, List: a.list(0, 8), RemoteKey: b.mem.Key() + 1},
		rdma.SendWR{ID: 5, Op: rdma.OpRead, List: a.list(0, 5), RemoteKey: b.mem.Key()})
	for id := range uint64(3) {
		a.takeSent(id+1, rdma.StatusOK)
	}
	a.takeSent(4, rdma.StatusRemoteAccess)
	a.takeSent(5, rdma.StatusFlushed)
	b.takeRcvd(1, rdma.StatusOK)
	wantBytes(t, a.bytes(0, 90000), b.bytes(0, 90000), "read before the refusal")
}

func refuseLocalBounds(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	const maxInt = int(^uint(0) >> 1)
	for _, s := range []rdma.SGE{
		a.sge(-1, 5), a.sge(0, -1), a.sge(0, linkBytes+1), a.sge(linkBytes, 1), a.sge(maxInt, maxInt), a.sge(5, maxInt),
	} {
		for _, op := range []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead} {
			wantError(t, a.qp.PostSend(rdma.SendWR{Op: op, List: []rdma.SGE{s}}), rdma.ErrBounds)
		}
		wantError(t, a.qp.PostRecv(rdma.RecvWR{List: []rdma.SGE{s}}), rdma.ErrBounds)
	}
	pingPong(a, b)
}

func refuseLimits(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	l := a.dev.Limits()
	many := make([]rdma.SGE, l.MaxSGE+1)
	for i := range many {
		many[i] = a.sge(i, 1)
	}
	wantError(t, a.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, List: many}), rdma.ErrRequest)
	wantError(t, a.qp.PostRecv(rdma.RecvWR{List: many}), rdma.ErrRequest)
	for _, op := range []rdma.Opcode{0, rdma.OpRecv, rdma.OpRecvWriteImm, 200} {
		wantError(t, a.qp.PostSend(rdma.SendWR{Op: op}), rdma.ErrRequest)
	}
	_, err := a.dev.NewQP(rdma.QPConfig{SendCQ: a.sent, RecvCQ: a.rcvd, SendDepth: l.MaxQueueDepth + 1})
	wantError(t, err, rdma.ErrRequest)
	_, err = a.dev.AllocRegion(0, 0)
	wantError(t, err, rdma.ErrRequest)
	_, err = a.dev.NewCQ(0)
	wantError(t, err, rdma.ErrRequest)
	pingPong(a, b)
}

func refuseForeign(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	wantError(t, a.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, List: b.list(0, 1)}), rdma.ErrRequest)
	wantError(t, a.qp.PostRecv(rdma.RecvWR{List: []rdma.SGE{{}}}), rdma.ErrRequest)
	_, err := a.dev.NewQP(rdma.QPConfig{})
	wantError(t, err, rdma.ErrRequest)
	pingPong(a, b)
}

// refuseInvalidated: a stale region takes no new posts and no remote access, but posted work goes on.
func refuseInvalidated(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	b.recv(1, 0, 100)
	key := b.mem.Key()
	b.mem.Invalidate()
	wantError(t, b.qp.PostRecv(rdma.RecvWR{List: b.list(0, 1)}), rdma.ErrState)
	a.post(rdma.SendWR{ID: 1, Op: rdma.OpSend, List: a.list(0, 100)})
	b.takeRcvd(1, rdma.StatusOK)
	a.takeSent(1, rdma.StatusOK)
	a.post(rdma.SendWR{ID: 2, Op: rdma.OpWrite, List: a.list(0, 8), RemoteKey: key})
	a.takeSent(2, rdma.StatusRemoteAccess)
}

func refuseClosedRegion(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	extra, err := b.dev.AllocRegion(4096, allRights)
	if err != nil {
		t.Fatal(err)
	}
	key := extra.Key()
	for range 2 {
		if err := extra.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, b.qp.PostRecv(rdma.RecvWR{List: []rdma.SGE{{Region: extra, Length: 1}}}), errAny)
	a.post(rdma.SendWR{ID: 2, Op: rdma.OpRead, List: a.list(0, 8), RemoteKey: key})
	a.takeSent(2, rdma.StatusRemoteAccess)
}
