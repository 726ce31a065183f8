package mixed

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/rdmcfs/rdmcfs/rdma"
)

func wordAt(r rdma.Region, offset int) *uint64 { return (*uint64)(unsafe.Pointer(&r.Bytes()[offset])) }

func awaitWord(t *testing.T, r rdma.Region, offset int, want uint64) {
	t.Helper()
	for start := time.Now(); atomic.LoadUint64(wordAt(r, offset)) != want; runtime.Gosched() {
		if time.Since(start) > patience {
			t.Fatalf("word at %d is %d, want %d", offset, atomic.LoadUint64(wordAt(r, offset)), want)
		}
	}
}

// TestKeyOfALaterRegion: a region that is made after Connect can be used by its key at once, also by a sender that
// never polls its queue, on every combination of devices.
func TestKeyOfALaterRegion(t *testing.T) {
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			cfgA, cfgB := s.make(t)
			a, b := link(t, newMixed(t, cfgA), newMixed(t, cfgB), 32)
			if got := carrierOf(b.qp); got != s.carrier {
				t.Errorf("carried by %q, want %q", got, s.carrier)
			}
			for i := range 20 {
				later, err := b.dev.AllocRegion(4096, rdma.RemoteWrite)
				if err != nil {
					t.Fatal(err)
				}
				*wordAt(a.mem, 8*i) = uint64(i + 1)
				wr := rdma.SendWR{Op: rdma.OpWrite, List: a.list(8*i, 8), RemoteKey: later.Key(), RemoteAddr: 64, Unsignaled: true}
				if err := a.qp.PostSend(wr); err != nil {
					t.Fatal(err)
				}
				awaitWord(t, later, 64, uint64(i+1))
				if err := later.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestHeldInOrder: requests behind one whose key is looked up stay behind it, and all keys of one post are found.
func TestHeldInOrder(t *testing.T) {
	devA, devB, f := memTcp(t)
	a, b := link(t, devA, devB, 16)
	var regions []rdma.Region
	var wrs []rdma.SendWR
	for i := range 4 {
		r, err := devB.AllocRegion(4096, rdma.RemoteWrite|rdma.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		regions = append(regions, r)
		*wordAt(a.mem, 8*i) = uint64(100 + i)
		wrs = append(wrs, rdma.SendWR{ID: uint64(3 * i), Op: rdma.OpWrite, List: a.list(8*i, 8), RemoteKey: r.Key()},
			rdma.SendWR{ID: uint64(3*i + 1), Op: rdma.OpSend, Inline: []byte{byte(i)}, Imm: uint32(i)},
			rdma.SendWR{ID: uint64(3*i + 2), Op: rdma.OpRead, List: a.list(1024+8*i, 8), RemoteKey: r.Key()})
		if err := b.qp.PostRecv(rdma.RecvWR{ID: uint64(i), List: b.list(i, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	f.Stop("b") // so that the second post comes while the first is held
	if err := a.qp.PostSend(wrs[:5]...); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(wrs[5:]...); err != nil {
		t.Fatal(err)
	}
	f.Resume("b")
	a.want(rdma.StatusOK, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	b.want(rdma.StatusOK, 0, 1, 2, 3)
	for i, r := range regions {
		if *wordAt(r, 0) != uint64(100+i) || *wordAt(a.mem, 1024+8*i) != uint64(100+i) || b.mem.Bytes()[i] != byte(i) {
			t.Errorf("region %d: %d written, %d read, %d sent", i, *wordAt(r, 0), *wordAt(a.mem, 1024+8*i), b.mem.Bytes()[i])
		}
	}
}

// held makes a link whose first side holds writes of ids 1 and 2 to the peer's region.
func held(t *testing.T, depth int) (a, b *side, resume, kill func()) {
	t.Helper()
	devA, devB, f := memTcp(t)
	a, b = link(t, devA, devB, depth)
	f.Stop("b")
	for id := range uint64(2) {
		*wordAt(a.mem, 8*int(id)) = 7 + id
		wr := rdma.SendWR{ID: id + 1, Op: rdma.OpWrite, List: a.list(8*int(id), 8), RemoteKey: b.mem.Key(),
			RemoteAddr: 8 * id}
		if err := a.qp.PostSend(wr); err != nil {
			t.Fatal(err)
		}
	}
	return a, b, func() { f.Resume("b") }, func() { f.Kill("b") }
}

func TestHeldQueueFull(t *testing.T) {
	a, _, resume, _ := held(t, 3)
	wr := rdma.SendWR{ID: 3, Op: rdma.OpSend}
	if err := a.qp.PostSend(wr, wr); !errors.Is(err, rdma.ErrQueueFull) {
		t.Fatalf("two posts into room for one: %v", err)
	}
	bad := rdma.SendWR{Op: rdma.OpSend, List: a.list(sideBytes, 1)}
	if err := a.qp.PostSend(bad); !errors.Is(err, rdma.ErrBounds) {
		t.Fatalf("a bad request behind held ones: %v", err)
	}
	resume()
	a.want(rdma.StatusOK, 1, 2)
}

// TestHeldRegionLives: a region that becomes stale stays usable for held requests, and closes only after them.
func TestHeldRegionLives(t *testing.T) {
	a, b, resume, _ := held(t, 8)
	a.mem.Invalidate()
	closed := make(chan error, 1)
	go func() { closed <- a.mem.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("closed under held requests: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	resume()
	a.want(rdma.StatusOK, 1, 2)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if *wordAt(b.mem, 0) != 7 || *wordAt(b.mem, 8) != 8 {
		t.Errorf("written %d and %d", *wordAt(b.mem, 0), *wordAt(b.mem, 8))
	}
}

// TestHeldFlushed: held requests complete in order when the pair ends, however it ends.
func TestHeldFlushed(t *testing.T) {
	for _, c := range []struct {
		name  string
		end   func(a *side, kill func())
		first rdma.Status
	}{
		{"Abort", func(a *side, _ func()) { a.qp.Abort() }, rdma.StatusFlushed},
		{"Close", func(a *side, _ func()) { _ = a.qp.Close() }, rdma.StatusFlushed},
		{"PeerDies", func(_ *side, kill func()) { kill() }, rdma.StatusDisconnected},
		{"DeviceClose", func(a *side, _ func()) { _ = a.dev.Close() }, rdma.StatusFlushed},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, _, _, kill := held(t, 8)
			c.end(a, kill)
			a.want(c.first, 1, 2)
			if err := a.mem.Close(); err != nil {
				t.Error(err)
			}
			if err := a.qp.PostSend(rdma.SendWR{Op: rdma.OpSend}); !errors.Is(err, rdma.ErrState) &&
				!errors.Is(err, rdma.ErrClosed) {
				t.Errorf("post afterwards: %v", err)
			}
		})
	}
}

// TestHeldWithClosedQueue: if nobody can hear of the lookup any more, Close releases what is held.
func TestHeldWithClosedQueue(t *testing.T) {
	a, _, _, _ := held(t, 8)
	if err := a.cq.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.mem.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestThinRefusesForeignKeys: a device of one says so where it cannot use a peer's keys; all else works.
func TestThinRefusesForeignKeys(t *testing.T) {
	f := newFabric(1)
	a, b := link(t, newMixed(t, devices(f.Device("a"))), newMixed(t, devices(f.Device("b"), tcpDevice(t))), 8)
	if err := a.qp.PostSend(rdma.SendWR{Op: rdma.OpWrite, List: a.list(0, 8), RemoteKey: b.mem.Key()}); !errors.Is(err,
		rdma.ErrRequest) {
		t.Errorf("write with a key of tcp on mem: %v", err)
	}
	if err := b.qp.PostRecv(rdma.RecvWR{ID: 4}); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(rdma.SendWR{ID: 5, Op: rdma.OpSend}); err != nil {
		t.Fatal(err)
	}
	a.want(rdma.StatusOK, 5)
	b.want(rdma.StatusOK, 4)
	if err := b.qp.PostSend(rdma.SendWR{ID: 6, Op: rdma.OpWrite, List: b.list(0, 8), RemoteKey: a.mem.Key()}); err != nil {
		t.Fatal(err)
	}
	b.want(rdma.StatusOK, 6)
}

// TestManyRegions: as many regions with remote rights as there is room for, and an error then; closing makes room.
func TestManyRegions(t *testing.T) {
	d, _, _ := memTcp(t)
	var regions []rdma.Region
	for {
		r, err := d.AllocRegion(8, rdma.RemoteRead)
		if errors.Is(err, rdma.ErrQueueFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		regions = append(regions, r)
	}
	if len(regions) != slots/2 {
		t.Errorf("%d regions, want %d", len(regions), slots/2)
	}
	for range 2 {
		if err := regions[0].Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.AllocRegion(8, rdma.RemoteRead); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	if _, err := d.AllocRegion(8, 0); err != nil {
		t.Errorf("without remote rights: %v", err)
	}
}
