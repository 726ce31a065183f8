package tcp

import (
	"context"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// wire is two network namespaces joined by a veth pair.
type wire struct {
	spaces [2]netns.NsHandle
	links  [2]*netlink.Handle
}

var wireAddrs = [2]string{"10.213.7.1", "10.213.7.2"}

// newWire needs root; elsewhere the test is skipped.
func newWire(t *testing.T) *wire {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	w := &wire{}
	for i := range w.spaces {
		w.spaces[i] = newSpace(t)
		h, err := netlink.NewHandleAt(w.spaces[i])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.Close)
		w.links[i] = h
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "w0"}, PeerName: "w1",
		PeerNamespace: netlink.NsFd(w.spaces[1])}
	if err := w.links[0].LinkAdd(veth); err != nil {
		t.Skipf("no veth: %v", err)
	}
	for i, name := range [2]string{"w0", "w1"} {
		link, err := w.links[i].LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		addr, err := netlink.ParseAddr(wireAddrs[i] + "/24")
		if err != nil {
			t.Fatal(err)
		}
		if err := w.links[i].AddrAdd(link, addr); err != nil {
			t.Fatal(err)
		}
		if err := w.links[i].LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// newSpace makes a namespace without a name: it goes with its last descriptor.
func newSpace(t *testing.T) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	old, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	space, err := netns.New()
	if err != nil {
		runtime.UnlockOSThread()
		t.Skipf("no network namespaces: %v", err)
	}
	if err := netns.Set(old); err != nil {
		t.Fatal(err) // the thread stays locked and ends with the test's goroutine
	}
	runtime.UnlockOSThread()
	t.Cleanup(func() { _ = space.Close() })
	return space
}

// in runs do on a thread in namespace i: sockets opened by it stay there.
func (w *wire) in(i int, do func() error) error {
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if err := netns.Set(w.spaces[i]); err != nil {
			failed <- err
			return
		}
		failed <- do()
	}()
	return <-failed
}

// cut takes the cable of side 1 away: packets vanish, and neither side gets an error.
func (w *wire) cut(t *testing.T) {
	t.Helper()
	link, err := w.links[1].LinkByName("w1")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(wireAddrs[1] + "/24")
	if err != nil {
		t.Fatal(err)
	}
	// A foreign address instead of the peer's: its packets are dropped, the link stays up.
	if err := w.links[1].AddrDel(link, addr); err != nil {
		t.Fatal(err)
	}
}

func (w *wire) device(t *testing.T, i int, timeout time.Duration) *Device {
	t.Helper()
	d, err := New(Config{PeerTimeout: timeout, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		var conn net.Conn
		err := w.in(i, func() (err error) {
			conn, err = dialer("")(ctx, addr)
			return err
		})
		return conn, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	err = w.in(i, func() error {
		_, err := d.Listen(wireAddrs[i] + ":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestSilentPeerIsNoticed: when the path is gone without a word, a pair with work outstanding hears of it
// within twice PeerTimeout, and an idle one by keepalive.
func TestSilentPeerIsNoticed(t *testing.T) {
	const timeout = time.Second
	w := newWire(t)
	a, b := w.device(t, 0, timeout), w.device(t, 1, timeout)
	busy, idle := pairOf(t, a), pairOf(t, a)
	peers := [2]*queuePair{pairOf(t, b), pairOf(t, b)}
	connectBoth(t, busy, peers[0])
	connectBoth(t, idle, peers[1])
	if err := idle.PostRecv(rdma.RecvWR{ID: 1}); err != nil {
		t.Fatal(err)
	}
	if err := peers[0].PostRecv(rdma.RecvWR{ID: 7}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	w.cut(t)
	mem, err := a.AllocRegion(1<<20, 0)
	if err != nil {
		t.Fatal(err)
	}
	send := rdma.SendWR{ID: 2, Op: rdma.OpWrite, List: []rdma.SGE{{Region: mem, Length: 1 << 20}}, RemoteKey: 1}
	if err := busy.PostSend(send); err != nil {
		t.Fatal(err)
	}
	for name, q := range map[string]*queuePair{"busy": busy, "idle": idle} {
		select {
		case <-q.done:
			t.Logf("%s pair: noticed after %v", name, time.Since(start).Round(time.Millisecond))
		case <-time.After(patience):
			t.Errorf("%s pair: not noticed in %v", name, patience)
		}
	}
	if busy.failStatus != rdma.StatusDisconnected {
		t.Errorf("busy pair failed with %v", busy.failStatus)
	}
}
