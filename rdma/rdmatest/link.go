package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// end is one side of a connection with a region and completion queues of its own.
type end struct {
	t          testing.TB
	patience   time.Duration
	dev        rdma.Device
	qp         rdma.QueuePair
	sent, rcvd rdma.CompletionQueue
	mem        rdma.Region
}

// linkBytes is the size of the region of each end.
const linkBytes = 1 << 20

// options of a link; zero values are the defaults.
type options struct {
	sendDepth, recvDepth int
	access               rdma.Access
	bytes                int
	wantCRC              bool
}

const allRights = rdma.RemoteRead | rdma.RemoteWrite

// link makes two connected ends on the first two devices.
func (p *Pair) link(t testing.TB, o options) (a, b *end) {
	t.Helper()
	a, b = p.end(t, 0, o), p.end(t, 1, o)
	connect(t, a, b)
	return a, b
}

// end makes an end that is not connected yet.
func (p *Pair) end(t testing.TB, device int, o options) *end {
	t.Helper()
	if o.bytes == 0 {
		o.bytes = linkBytes
	}
	if o.access == 0 {
		o.access = allRights
	}
	e := &end{t: t, patience: p.Patience, dev: p.Devices[device]}
	var err error
	if e.mem, err = e.dev.AllocRegion(o.bytes, o.access); err != nil {
		t.Fatal(err)
	}
	e.sent, e.rcvd = newCQ(t, e.dev), newCQ(t, e.dev)
	e.qp, err = e.dev.NewQP(rdma.QPConfig{SendCQ: e.sent, RecvCQ: e.rcvd, SendDepth: o.sendDepth, RecvDepth: o.recvDepth,
		WantCRC: o.wantCRC})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func newCQ(t testing.TB, d rdma.Device) rdma.CompletionQueue {
	t.Helper()
	q, err := d.NewCQ(256)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// connect joins two ends, both at the same time.
func connect(t testing.TB, a, b *end) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), a.patience)
	defer cancel()
	var wg sync.WaitGroup
	var errA, errB error
	addrA, addrB := a.qp.Address(), b.qp.Address()
	wg.Go(func() { errA = a.qp.Connect(ctx, addrB) })
	wg.Go(func() { errB = b.qp.Connect(ctx, addrA) })
	wg.Wait()
	if errA != nil || errB != nil {
		t.Fatalf("connect: %v, %v", errA, errB)
	}
}

// sge is a piece of the end's own region.
func (e *end) sge(offset, length int) rdma.SGE {
	return rdma.SGE{Region: e.mem, Offset: offset, Length: length}
}

func (e *end) list(offset, length int) []rdma.SGE { return []rdma.SGE{e.sge(offset, length)} }

func (e *end) bytes(offset, length int) []byte { return e.mem.Bytes()[offset : offset+length] }

func (e *end) post(wrs ...rdma.SendWR) {
	e.t.Helper()
	if err := e.qp.PostSend(wrs...); err != nil {
		e.t.Fatalf("post send: %v", err)
	}
}

func (e *end) recv(id uint64, offset, length int) {
	e.t.Helper()
	if err := e.qp.PostRecv(rdma.RecvWR{ID: id, List: e.list(offset, length)}); err != nil {
		e.t.Fatalf("post receive: %v", err)
	}
}

// take waits for n completions of q.
func (e *end) take(q rdma.CompletionQueue, n int) []rdma.Completion {
	e.t.Helper()
	out, err := takeN(q, n, e.patience)
	if err != nil {
		e.t.Fatalf("%d of %d completions: %v", len(out), n, err)
	}
	return out
}

// takeN is take for goroutines of a test.
func takeN(q rdma.CompletionQueue, n int, patience time.Duration) ([]rdma.Completion, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out := make([]rdma.Completion, n)
	for got := 0; got < n; {
		if err := q.Wait(ctx); err != nil {
			return out[:got], err
		}
		got += q.Poll(out[got:])
	}
	return out, nil
}

// takeSent waits for one send completion and checks id and status.
func (e *end) takeSent(id uint64, status rdma.Status) rdma.Completion {
	e.t.Helper()
	return e.one(e.sent, id, status)
}

// takeRcvd waits for one receive completion and checks id and status.
func (e *end) takeRcvd(id uint64, status rdma.Status) rdma.Completion {
	e.t.Helper()
	return e.one(e.rcvd, id, status)
}

func (e *end) one(q rdma.CompletionQueue, id uint64, status rdma.Status) rdma.Completion {
	e.t.Helper()
	c := e.take(q, 1)[0]
	if c.ID != id || c.Status != status || c.QP != e.qp {
		e.t.Fatalf("completion %d %v %v of own pair %v, want %d %v", c.ID, c.Op, c.Status, c.QP == e.qp, id, status)
	}
	return c
}

// empty checks that a queue has nothing.
func (e *end) empty(q rdma.CompletionQueue) {
	e.t.Helper()
	var out [1]rdma.Completion
	if q.Poll(out[:]) != 0 {
		e.t.Fatalf("unexpected completion %d %v %v", out[0].ID, out[0].Op, out[0].Status)
	}
}

// random fills b from a seed.
func random(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func wantBytes(t testing.TB, got, want []byte, what string) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: %d bytes differ from what was sent", what, len(got))
	}
}

// errAny stands for ErrState or ErrClosed where both tell the truth.
var errAny = errors.New("wrong state or closed")

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if want == errAny && (errors.Is(err, rdma.ErrState) || errors.Is(err, rdma.ErrClosed)) {
		return
	}
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}
