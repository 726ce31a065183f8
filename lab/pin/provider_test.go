package pin

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
	"github.com/rdmcfs/rdmcfs/rdma/tcp"
)

// openVerbs is set where there are verbs; test/vm/run.sh has a device.
var openVerbs func(t testing.TB) (a, b rdma.Device)

// each runs a test over all providers.
func each(t *testing.T, test func(t *testing.T, a, b rdma.Device)) {
	t.Run("mem", func(t *testing.T) {
		f := mem.NewFabric(mem.Config{Seed: 5, PeerTimeout: 50 * time.Millisecond})
		test(t, closeLater(t, f.Device("a")), closeLater(t, f.Device("b")))
	})
	t.Run("tcp", func(t *testing.T) {
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
		test(t, d[0], d[1])
	})
	if openVerbs != nil && os.Getenv("RDMCFS_TEST_VERBS") != "" {
		t.Run("verbs", func(t *testing.T) {
			a, b := openVerbs(t)
			test(t, a, b)
		})
	}
}

func closeLater(t testing.TB, d rdma.Device) rdma.Device {
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
	})
	return d
}

// pair is two domains, joined by links.
type pair struct {
	t   testing.TB
	dom [2]*Domain
	end [2]*Link
}

// small has several fragments in small messages.
var small = LinkConfig{SlotBytes: 8 << 10, Slots: 4, Fragment: 64 << 10, Depth: 3}

func newPair(t testing.TB, a, b rdma.Device, budget int64, cfg LinkConfig) *pair {
	t.Helper()
	p := &pair{t: t}
	for i, dev := range []rdma.Device{a, b} {
		p.dom[i] = NewDomain(dev, Config{Budget: budget})
	}
	p.end[0], p.end[1] = p.link(cfg)
	return p
}

// link makes one more link between the domains.
func (p *pair) link(cfg LinkConfig) (a, b *Link) {
	p.t.Helper()
	var ends [2]*Link
	for i, d := range p.dom {
		l, err := NewLink(d, cfg)
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() {
			if err := l.Close(); err != nil {
				p.t.Errorf("close link: %v", err)
			}
		})
		ends[i] = l
	}
	ctx := bound(p.t)
	var wg sync.WaitGroup
	var errs [2]error
	for i, l := range ends {
		wg.Go(func() { errs[i] = l.Connect(ctx, ends[1-i].Address()) })
	}
	wg.Wait()
	if errs[0] != nil || errs[1] != nil {
		p.t.Fatalf("connect: %v", errs)
	}
	return ends[0], ends[1]
}

// into gives memory to receive into.
func into(m Memory) func(int64) (Memory, error) {
	return func(int64) (Memory, error) { return m, nil }
}

// move sends a message and answers what both ends say.
func move(t testing.TB, from, to *Link, s Strategy, src, dst Memory) (sendErr, receiveErr error) {
	t.Helper()
	ctx := bound(t)
	var wg sync.WaitGroup
	wg.Go(func() { sendErr = from.Send(ctx, s, src) })
	wg.Go(func() { _, receiveErr = to.Receive(ctx, into(dst)) })
	wg.Wait()
	return sendErr, receiveErr
}
