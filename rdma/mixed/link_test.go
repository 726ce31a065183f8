package mixed

import (
	"context"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

const patience = 10 * time.Second

// side is one side of a connection.
type side struct {
	t   testing.TB
	dev *Device
	cq  rdma.CompletionQueue
	qp  rdma.QueuePair
	mem rdma.Region
}

const sideBytes = 64 << 10

func newSide(t testing.TB, d *Device, depth int) *side {
	t.Helper()
	s := &side{t: t, dev: d}
	var err error
	if s.cq, err = d.NewCQ(64); err != nil {
		t.Fatal(err)
	}
	if s.qp, err = d.NewQP(rdma.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, SendDepth: depth, RecvDepth: depth}); err != nil {
		t.Fatal(err)
	}
	if s.mem, err = d.AllocRegion(sideBytes, rdma.RemoteRead|rdma.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *side) list(offset, length int) []rdma.SGE {
	return []rdma.SGE{{Region: s.mem, Offset: offset, Length: length}}
}

// take waits for n completions.
func (s *side) take(n int) []rdma.Completion {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out := make([]rdma.Completion, n)
	for got := 0; got < n; {
		if err := s.cq.Wait(ctx); err != nil {
			s.t.Fatalf("%d of %d completions: %v", got, n, err)
		}
		got += s.cq.Poll(out[got:])
	}
	return out
}

// want waits for completions of these ids; the first has the status, and the others are flushed if that is not OK.
func (s *side) want(status rdma.Status, ids ...uint64) {
	s.t.Helper()
	for i, c := range s.take(len(ids)) {
		if c.ID != ids[i] || c.Status != status || c.QP != s.qp {
			s.t.Fatalf("completion %d: %d %v %v, want %d %v", i, c.ID, c.Op, c.Status, ids[i], status)
		}
		if status != rdma.StatusOK {
			status = rdma.StatusFlushed
		}
	}
}

// connectErrors joins two sides at the same time.
func connectErrors(ctx context.Context, a, b *side) (errA, errB error) {
	addrA, addrB := a.qp.Address(), b.qp.Address()
	done := make(chan error, 1)
	go func() { done <- a.qp.Connect(ctx, addrB) }()
	errB = b.qp.Connect(ctx, addrA)
	return <-done, errB
}

func mustConnect(t testing.TB, a, b *side) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if errA, errB := connectErrors(ctx, a, b); errA != nil || errB != nil {
		t.Fatalf("connect: %v, %v", errA, errB)
	}
}

// link makes two connected sides.
func link(t testing.TB, a, b *Device, depth int) (*side, *side) {
	t.Helper()
	x, y := newSide(t, a, depth), newSide(t, b, depth)
	mustConnect(t, x, y)
	return x, y
}

// memTcp makes two devices of mem and tcp each, on a fabric where they are a and b.
func memTcp(t testing.TB) (a, b *Device, f *mem.Fabric) {
	f = newFabric(1)
	return newMixed(t, devices(f.Device("a"), tcpDevice(t))), newMixed(t, devices(f.Device("b"), tcpDevice(t))), f
}
