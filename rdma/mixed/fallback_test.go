package mixed

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

var errNoRoute = errors.New("no route to GID")

// faulty is a device whose pairs do not connect while broken, that makes no pairs while it is full, and that
// registers no memory while it is short of it.
type faulty struct {
	rdma.Device
	broken, hangs, full, short atomic.Bool
	registered                 atomic.Int64
	hanging                    chan struct{} // has one when a pair hangs
}

type faultyPair struct {
	rdma.QueuePair
	dev *faulty
}

func (d *faulty) NewQP(cfg rdma.QPConfig) (rdma.QueuePair, error) {
	if d.full.Load() {
		return nil, errors.New("no queue pairs left")
	}
	qp, err := d.Device.NewQP(cfg)
	if err != nil {
		return nil, err
	}
	return &faultyPair{qp, d}, nil
}

func (d *faulty) Register(mem []byte, access rdma.Access) (rdma.Region, error) {
	if d.short.Load() {
		return nil, errors.New("locked memory")
	}
	d.registered.Add(1)
	return d.Device.Register(mem, access)
}

func (q *faultyPair) Connect(ctx context.Context, remote []byte) error {
	switch {
	case q.dev.broken.Load():
		q.Abort()
		return errNoRoute
	case q.dev.hangs.Load():
		select {
		case q.dev.hanging <- struct{}{}:
		default:
		}
		<-ctx.Done()
		q.Abort()
		return context.Cause(ctx)
	}
	return q.QueuePair.Connect(ctx, remote)
}

// faultyDevices makes two devices of mem and tcp each, whose mem may fail.
func faultyDevices(t *testing.T) (a, b *Device, memA, memB *faulty, f *mem.Fabric) {
	f = newFabric(1)
	memA, memB = &faulty{Device: f.Device("a")}, &faulty{Device: f.Device("b"), hanging: make(chan struct{}, 1)}
	return newMixed(t, devices(memA, tcpDevice(t))), newMixed(t, devices(memB, tcpDevice(t))), memA, memB, f
}

// carriers connects a new pair and returns which device carries it, at each end.
func carriers(t *testing.T, a, b *Device) [2]string {
	t.Helper()
	x, y := link(t, a, b, 8)
	return [2]string{carrierOf(x.qp), carrierOf(y.qp)}
}

// connectInVain joins two sides whose second one fails, or hangs until it may be blamed, which hanging signals; the
// first gives up then.
func connectInVain(x, y *side, hanging <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	addrX, addrY := x.qp.Address(), y.qp.Address()
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { _ = x.qp.Connect(ctx, addrY) })
	others.Go(func() {
		select {
		case <-hanging:
			<-time.After(blameAfter)
			cancel()
		case <-ctx.Done():
		}
	})
	err := y.qp.Connect(ctx, addrX)
	cancel()
	return err
}

// TestFallBack: a provider that fails between two hosts, at one end or at both, at once or by hanging, fails that pair;
// the next takes another provider at both ends. Other hosts are not concerned.
func TestFallBack(t *testing.T) {
	for _, c := range []struct {
		name  string
		fail  func(memA, memB *faulty)
		hangs bool
	}{
		{"AtBoth", func(a, b *faulty) { a.broken.Store(true); b.broken.Store(true) }, false},
		{"AtOne", func(_, b *faulty) { b.broken.Store(true) }, false},
		{"Hanging", func(a, b *faulty) { a.hangs.Store(true); b.hangs.Store(true) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b, memA, memB, fabric := faultyDevices(t)
			c.fail(memA, memB)
			x, y := newSide(t, a, 8), newSide(t, b, 8)
			if err := y.qp.PostRecv(rdma.RecvWR{ID: 3, List: y.list(0, 8)}); err != nil {
				t.Fatal(err)
			}
			errB := connectInVain(x, y, memB.hanging)
			if !errors.Is(errB, ErrRoute) || !strings.Contains(errB.Error(), "later queue pairs of the two use tcp for 1m0s") {
				t.Fatalf("error %v", errB)
			}
			if !c.hangs && !errors.Is(errB, errNoRoute) {
				t.Fatalf("error %v hides its cause", errB)
			}
			y.want(rdma.StatusFlushed, 3)
			if got := carriers(t, a, b); got != [2]string{"tcp", "tcp"} {
				t.Errorf("next pair carried by %q", got)
			}
			if got := b.Members()[0]; got.Avoided != 1 || got.Pairs != 0 {
				t.Errorf("state %+v", got)
			}
			memB.broken.Store(false)
			memB.hangs.Store(false)
			if got := carriers(t, newMixed(t, devices(fabric.Device("c"), tcpDevice(t))), b); got != [2]string{"mem:c",
				"mem:b"} {
				t.Errorf("pair with another host carried by %q", got)
			}
		})
	}
}

// TestShortWaitIsNoFailure: a Connect that its caller soon ends says nothing of the provider.
func TestShortWaitIsNoFailure(t *testing.T) {
	a, b, memA, memB, _ := faultyDevices(t)
	memA.hangs.Store(true)
	memB.hangs.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	errA, errB := connectErrors(ctx, newSide(t, a, 8), newSide(t, b, 8))
	if errors.Is(errA, ErrRoute) || !errors.Is(errA, context.DeadlineExceeded) ||
		!errors.Is(errB, context.DeadlineExceeded) {
		t.Fatalf("connected a hanging provider: %v, %v", errA, errB)
	}
	memA.hangs.Store(false)
	memB.hangs.Store(false)
	if got := carriers(t, a, b); got != [2]string{"mem:a", "mem:b"} {
		t.Errorf("carried by %q", got)
	}
}

// TestPreferredAgain: when the time is over the preferred provider is tried again, and its success forgets.
func TestPreferredAgain(t *testing.T) {
	a, b, memA, memB, _ := faultyDevices(t)
	memA.broken.Store(true)
	memB.broken.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connectErrors(ctx, newSide(t, a, 8), newSide(t, b, 8))
	memA.broken.Store(false)
	memB.broken.Store(false)
	past := time.Now().Add(-avoidMin)
	for _, d := range []*Device{a, b} {
		if len(d.routes.failed) != 1 {
			t.Fatalf("%d routes failed", len(d.routes.failed))
		}
		for r, f := range d.routes.failed {
			f.until = past
			d.routes.failed[r] = f
		}
	}
	if got := carriers(t, a, b); got != [2]string{"mem:a", "mem:b"} {
		t.Errorf("carried by %q", got)
	}
	if len(a.routes.failed)+len(b.routes.failed) != 0 {
		t.Error("a route that works is remembered as failed")
	}
}

// TestNoPairsLeft: a device that makes no queue pairs is left out, and is not asked again for a while.
func TestNoPairsLeft(t *testing.T) {
	a, b, memA, _, _ := faultyDevices(t)
	memA.full.Store(true)
	if got := carriers(t, a, b); got != [2]string{"tcp", "tcp"} {
		t.Errorf("carried by %q", got)
	}
	memA.full.Store(false)
	if got := carriers(t, a, b); got != [2]string{"tcp", "tcp"} || !a.Members()[0].Benched {
		t.Errorf("carried by %q although benched", got)
	}
	a.members[0].benched.Store(0)
	if got := carriers(t, a, b); got != [2]string{"mem:a", "mem:b"} {
		t.Errorf("carried by %q afterwards", got)
	}
}

// TestNoLockedMemory: a post whose memory the carrier cannot register fails, and later pairs do without it.
func TestNoLockedMemory(t *testing.T) {
	a, b, memA, _, _ := faultyDevices(t)
	x, _ := link(t, a, b, 8)
	plain, err := a.AllocRegion(100, 0)
	if err != nil {
		t.Fatal(err)
	}
	memA.short.Store(true)
	wr := rdma.SendWR{ID: 1, Op: rdma.OpSend, List: []rdma.SGE{{Region: plain, Length: 10}}}
	if err := x.qp.PostSend(wr); err == nil || !strings.Contains(err.Error(), "locked memory") {
		t.Fatalf("post: %v", err)
	}
	x2, y2 := link(t, a, b, 8) // its region has remote rights
	if got := carrierOf(x2.qp); got != "tcp" {
		t.Errorf("carried by %q", got)
	}
	if err := y2.qp.PostRecv(rdma.RecvWR{ID: 2, List: y2.list(0, 10)}); err != nil {
		t.Fatal(err)
	}
	if err := x2.qp.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	x2.want(rdma.StatusOK, 1)
	y2.want(rdma.StatusOK, 2)
}

// TestCloseWhileConnecting: Close, Abort and the device's Close end a Connect that waits, and flush its receives.
func TestCloseWhileConnecting(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(s *side)
	}{
		{"Close", func(s *side) { _ = s.qp.Close() }},
		{"Abort", func(s *side) { s.qp.Abort() }},
		{"DeviceClose", func(s *side) { _ = s.dev.Close() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b, _ := memTcp(t)
			x, y := newSide(t, a, 8), newSide(t, b, 8)
			if err := x.qp.PostRecv(rdma.RecvWR{ID: 1, List: x.list(0, 8)}, rdma.RecvWR{ID: 2}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			done := make(chan error, 1)
			addr := y.qp.Address()
			go func() { done <- x.qp.Connect(ctx, addr) }()
			for start := time.Now(); carrierOf(x.qp) == ""; {
				if time.Since(start) > patience {
					t.Fatal("nothing was chosen")
				}
				select {
				case err := <-done:
					t.Fatalf("ended early: %v", err)
				case <-time.After(time.Millisecond):
				}
			}
			c.end(x)
			if err := <-done; !errors.Is(err, rdma.ErrState) && !errors.Is(err, rdma.ErrClosed) {
				t.Errorf("connect: %v", err)
			}
			x.want(rdma.StatusFlushed, 1, 2)
			if a.Members()[0].Avoided != 0 {
				t.Error("the provider was blamed")
			}
		})
	}
}

// carrierOf is the name of the device that carries a pair of a mixed device; empty while none does.
func carrierOf(qp rdma.QueuePair) string {
	p, ok := qp.(*pair)
	if !ok {
		return qp.(*thinPair).dev.members[0].Name()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.carrier < 0 {
		return ""
	}
	return p.dev.members[p.carrier].Name()
}
