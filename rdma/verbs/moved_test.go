//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// listed is the index of an address in the table of the device of the VM; -1 if it is not there.
func listed(t *testing.T, addr string) int {
	t.Helper()
	all, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all[0].Ports[0].GIDs {
		if g.GID.Unmap() == netip.MustParseAddr(addr) {
			return g.Index
		}
	}
	return -1
}

// until waits until ok.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not seen: ", what)
		}
	}
}

// exchange sends a message from x to y.
func exchange(t *testing.T, x, y *side) {
	t.Helper()
	if err := y.qp.PostRecv(rdma.RecvWR{List: y.list(0, 100)}); err != nil {
		t.Fatal(err)
	}
	if err := x.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, List: x.list(0, 100)}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*side{x, y} {
		if c, err := s.take(1); err != nil || c[0].Status != rdma.StatusOK {
			t.Fatalf("%+v, %v", c, err)
		}
	}
}

// TestAddressMoves: an address that goes and comes back lies elsewhere in the port's table, as pairs still hold the
// old place; new pairs use the new one.
func TestAddressMoves(t *testing.T) {
	deviceName(t)
	const moving, other = "10.78.0.1", "10.78.0.2"
	there := func() bool { return listed(t, moving) >= 0 && listed(t, other) >= 0 }
	add := func(addresses ...string) {
		for _, a := range addresses {
			command(t, "ip", "addr", "add", a+"/32", "dev", "dummy0")
		}
		until(t, "addresses", there)
	}
	remove := func() {
		for _, a := range []string{moving, other} {
			command(t, "ip", "addr", "del", a+"/32", "dev", "dummy0")
		}
		until(t, "no addresses", func() bool { return listed(t, moving) < 0 && listed(t, other) < 0 })
	}
	add(moving, other)
	defer remove()
	one, two := quick, quick
	one.GID, two.GID = moving, "10.77.0.2"
	here, peer := testDevice(t, one), testDevice(t, two)
	x, y := joined(t, here, peer, 4096)
	exchange(t, x, y)
	before := listed(t, moving)
	remove()
	add(other, moving)
	now := listed(t, moving)
	t.Logf("index %d, was %d", now, before)
	if now == before {
		t.Fatal("the address has not moved: the test shows nothing")
	}
	until(t, "the device knows its address", func() bool { return here.at.Load().gid.Index == now })
	for _, s := range []*side{x, y} {
		if err := s.qp.Close(); err != nil {
			t.Error(err)
		}
	}
	x, y = joined(t, here, peer, 4096)
	exchange(t, x, y)
	exchange(t, y, x)
	b := here.bell
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.left) != 0 || len(b.routes) != 1 {
		t.Errorf("%d routes of before, %d of now", len(b.left), len(b.routes))
	}
}

// TestOpenWhileAddressesChange: events that come while a device is set up, or closed, find all that they need.
func TestOpenWhileAddressesChange(t *testing.T) {
	deviceName(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	wg.Go(func() {
		for {
			for _, do := range []string{"add", "del"} {
				command(t, "ip", "addr", do, "10.78.1.1/32", "dev", "dummy0")
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for range 20 {
		cfg := quick
		cfg.Device, cfg.GID = deviceName(t), "10.77.0.1"
		d, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNextDevice: a device that can't be set up, as cards without reliable queue pairs or datagrams, does not keep
// the next one from being used.
func TestNextDevice(t *testing.T) {
	deviceName(t)
	command(t, "ip", "link", "add", "dummy9", "type", "dummy")
	defer command(t, "ip", "link", "delete", "dummy9")
	command(t, "ip", "addr", "add", "10.79.0.1/24", "dev", "dummy9")
	command(t, "ip", "link", "set", "dummy9", "up")
	command(t, "rdma", "link", "add", "rxe9", "type", "rxe", "netdev", "dummy9")
	defer command(t, "rdma", "link", "delete", "rxe9")
	until(t, "both devices are active", func() bool {
		all, err := Devices()
		return err == nil && len(all) == 2 && all[0].Ports[0].Active() && all[1].Ports[0].Active()
	})
	cfg, err := quick.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	l, err := loadLibrary()
	if err != nil {
		t.Fatal(err)
	}
	var tried []string
	bad := errors.New("no datagrams")
	d, err := l.find(cfg, func(cfg Config, name string, handle uintptr) (*device, error) {
		if tried = append(tried, name); len(tried) == 1 {
			return nil, bad
		}
		return l.try(cfg, name, handle)
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(tried) != 2 || d.info.Name != tried[1] {
		t.Errorf("tried %q, found %s", tried, d.Name())
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	_, err = l.find(cfg, func(Config, string, uintptr) (*device, error) { return nil, bad })
	if !errors.Is(err, ErrNoDevice) || !errors.Is(err, bad) {
		t.Error(err)
	}
}
