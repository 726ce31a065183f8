package pin

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

// patience bounds every wait of the tests, also in an emulated machine.
const patience = 60 * time.Second

// counted is a device that counts what is registered on it, by itself.
type counted struct {
	rdma.Device
	now, peak atomic.Int64
}

type countedRegion struct {
	rdma.Region
	d *counted
}

func (c *counted) Register(mem []byte, access rdma.Access) (rdma.Region, error) {
	r, err := c.Device.Register(mem, access)
	if err != nil {
		return nil, err
	}
	n := c.now.Add(int64(len(mem)))
	for p := c.peak.Load(); n > p && !c.peak.CompareAndSwap(p, n); p = c.peak.Load() {
		continue
	}
	return &countedRegion{r, c}, nil
}

func (r *countedRegion) Close() error {
	n := len(r.Bytes())
	err := r.Region.Close()
	r.d.now.Add(-int64(n))
	return err
}

func newCounted(t testing.TB) *counted {
	d := mem.NewFabric(mem.Config{Seed: 1}).Device("a")
	t.Cleanup(func() { _ = d.Close() })
	return &counted{Device: d}
}

func pages(t testing.TB, n int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	return m
}

func bound(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestDomainKeepsAndEvicts(t *testing.T) {
	dev := newCounted(t)
	d := NewDomain(dev, Config{Budget: 8 << 12})
	m := pages(t, 16<<12)
	use := func(from, to int) {
		t.Helper()
		p, err := d.Try(Ask{Memory: m[from<<12 : to<<12], Keep: true})
		if err != nil {
			t.Fatal(err)
		}
		if s := p.SGE(); &s.Region.Bytes()[s.Offset] != &m[from<<12] || s.Length != (to-from)<<12 {
			t.Fatal("a pin of other memory")
		}
		if err := p.Release(); err != nil {
			t.Fatal(err)
		}
	}
	use(0, 4)
	use(1, 3)
	use(4, 8)
	use(8, 10)
	s := d.Stats()
	if s.Hits != 1 || s.Made != 3 || s.Evicted != 1 || s.Bytes != 6<<12 || dev.now.Load() != s.Bytes {
		t.Fatalf("%+v, device has %d", s, dev.now.Load())
	}
	if err := d.Flush(); err != nil || dev.now.Load() != 0 {
		t.Fatalf("%v, %d bytes left", err, dev.now.Load())
	}
}

func TestDomainInvalidateInUse(t *testing.T) {
	dev := newCounted(t)
	d := NewDomain(dev, Config{})
	m := pages(t, 4<<12)
	lost := 0
	p, err := d.Try(Ask{Memory: m, Keep: true, Access: rdma.RemoteWrite, Lost: func() { lost++ }})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Invalidate(m[3<<12:]); err != nil || lost != 1 {
		t.Fatalf("%v, %d users told", err, lost)
	}
	if dev.now.Load() == 0 {
		t.Fatal("deregistered under its user")
	}
	q, err := d.Try(Ask{Memory: m, Keep: true, Access: rdma.RemoteWrite})
	if err != nil || q.e == p.e {
		t.Fatalf("%v: a stale registration was found", err)
	}
	if err := q.Release(); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.Drain(ended, m[3<<12:]); !errors.Is(err, context.Canceled) {
		t.Fatalf("drained with a user: %v", err)
	}
	drained := make(chan error, 1)
	go func() { drained <- d.Drain(bound(t), m[3<<12:]) }()
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	if err := d.Invalidate(m); err != nil { // the kept one of q
		t.Fatal(err)
	}
	if err := <-drained; err != nil || dev.now.Load() != 0 {
		t.Fatalf("%v, %d bytes left", err, dev.now.Load())
	}
}

// TestDomainBudgetHolds: many users, the device itself never holds more than the budget.
func TestDomainBudgetHolds(t *testing.T) {
	dev := newCounted(t)
	const budget = 10 << 12
	d := NewDomain(dev, Config{Budget: budget})
	m := pages(t, 32<<12)
	ctx := bound(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 200 {
				from := (i*7 + k*3) % 28
				p, err := d.Register(ctx, Ask{Memory: m[from<<12 : (from+1+k%4)<<12], Keep: k%3 > 0})
				if err == nil {
					err = p.Release()
				}
				if err == nil && k%50 == 0 {
					err = d.Invalidate(m[from<<12 : (from+2)<<12])
				}
				if err != nil && !errors.Is(err, ErrStale) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if p := dev.peak.Load(); p > budget || p < budget/2 {
		t.Fatalf("at most %d bytes were registered, budget %d", p, budget)
	}
	if s := d.Stats(); s.Peak > budget || s.Bytes != dev.now.Load() {
		t.Fatalf("%+v, device has %d", s, dev.now.Load())
	}
	if _, err := d.Register(ctx, Ask{Memory: m}); !errors.Is(err, ErrBudget) {
		t.Fatalf("memory beyond the budget: %v", err)
	}
}

func TestDomainRefusedByTheDevice(t *testing.T) {
	dev := newCounted(t)
	d := NewDomain(dev, Config{})
	m := pages(t, 1<<12)
	_ = dev.Close()
	if _, err := d.Try(Ask{Memory: m, Keep: true}); !errors.Is(err, rdma.ErrClosed) {
		t.Fatal(err)
	}
	if s := d.Stats(); s.Entries != 0 || s.Bytes != 0 {
		t.Fatalf("left in the book: %+v", s)
	}
}
