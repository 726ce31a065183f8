package ring

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
	"github.com/rdmcfs/rdmcfs/rdma/tcp"
)

// patience bounds every wait of the tests, also in an emulated machine.
const patience = 30 * time.Second

// provider makes two devices that reach each other. killB, if not nil, ends the second as the death of its process
// would.
type provider struct {
	name string
	open func(t testing.TB) (a, b rdma.Device, killB func())
}

func providers() []provider {
	all := []provider{{"mem", memDevices}, {"tcp", tcpDevices}}
	if openVerbs != nil && os.Getenv("RDMCFS_TEST_VERBS") != "" {
		all = append(all, provider{"verbs", openVerbs})
	}
	return all
}

// openVerbs is set where there are verbs; test/vm/run.sh has a device.
var openVerbs func(t testing.TB) (a, b rdma.Device, killB func())

func closeLater(t testing.TB, d rdma.Device) rdma.Device {
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
	})
	return d
}

func memDevices(t testing.TB) (a, b rdma.Device, killB func()) {
	f := mem.NewFabric(mem.Config{Seed: 5, PeerTimeout: 50 * time.Millisecond})
	return closeLater(t, f.Device("a")), closeLater(t, f.Device("b")), func() { f.Kill("b") }
}

func tcpDevices(t testing.TB) (a, b rdma.Device, killB func()) {
	var d [2]rdma.Device
	for i := range d {
		dev, err := tcp.New(tcp.Config{ReceiverTimeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dev.Listen("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		d[i] = closeLater(t, dev)
	}
	return d[0], d[1], nil
}

// each runs a test over all providers, with the ring and without.
func each(t *testing.T, test func(t *testing.T, p provider, cfg Config)) {
	for _, p := range providers() {
		for name, spin := range map[string]time.Duration{"Ring": 2 * time.Millisecond, "SendReceive": -1} {
			t.Run(p.name+"/"+name, func(t *testing.T) { test(t, p, Config{Spin: spin}) })
		}
	}
}

// link is two connected channels.
type link struct {
	dev   [2]rdma.Device
	end   [2]*Endpoint
	c     [2]*Channel
	killB func()
}

func newLink(t testing.TB, p provider, cfg Config) *link {
	t.Helper()
	l := &link{}
	l.dev[0], l.dev[1], l.killB = p.open(t)
	for i, d := range l.dev {
		l.end[i] = openEndpoint(t, d, cfg)
	}
	l.c[0], l.c[1] = connect(t, l.end[0], l.end[1])
	if l.killB == nil {
		l.killB = l.c[1].qp.Abort
	}
	return l
}

func openEndpoint(t testing.TB, d rdma.Device, cfg Config) *Endpoint {
	t.Helper()
	e, err := NewEndpoint(d, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close endpoint: %v", err)
		}
	})
	return e
}

// connect makes a channel between two endpoints.
func connect(t testing.TB, x, y *Endpoint) (a, b *Channel) {
	t.Helper()
	a, err := x.NewChannel()
	if err != nil {
		t.Fatal(err)
	}
	if b, err = y.NewChannel(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var errA, errB error
	wg.Go(func() { errA = a.Connect(bound(t), b.Address()) })
	wg.Go(func() { errB = b.Connect(bound(t), a.Address()) })
	wg.Wait()
	if errA != nil || errB != nil {
		t.Fatalf("connect: %v, %v", errA, errB)
	}
	return a, b
}

// bound is a context that ends when a test's patience does.
func bound(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// await waits until a condition holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(patience); !holds(); <-ticker.C {
		if time.Now().After(end) {
			t.Fatalf("never came: %s", what)
		}
	}
}

// countsOf returns what a channel has done.
func countsOf(c *Channel) counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}
