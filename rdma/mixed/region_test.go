package mixed

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/tcp"
)

// TestRegisteredWhereUsed: memory without remote rights is registered only with the device that carries work on it.
func TestRegisteredWhereUsed(t *testing.T) {
	a, b, memA, memB, _ := faultyDevices(t)
	plain, err := a.AllocRegion(4096, 0)
	if err != nil {
		t.Fatal(err)
	}
	if plain.Key() != 0 {
		t.Error("a region without remote rights has a key")
	}
	only := newMixed(t, devices(tcpDevice(t)))
	x, y := link(t, a, only, 8)
	before := memA.registered.Load()
	wr := rdma.SendWR{ID: 1, Op: rdma.OpSend, List: []rdma.SGE{{Region: plain, Length: 10}}}
	post := func(from, to *side) {
		t.Helper()
		if err := to.qp.PostRecv(rdma.RecvWR{ID: 2, List: to.list(0, 10)}); err != nil {
			t.Fatal(err)
		}
		if err := from.qp.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		from.want(rdma.StatusOK, 1)
		to.want(rdma.StatusOK, 2)
	}
	post(x, y)
	if n := memA.registered.Load() - before; n != 0 {
		t.Errorf("%d registrations with a device that carries nothing", n)
	}
	x, y = link(t, a, b, 8)
	before = memA.registered.Load()
	for range 3 {
		post(x, y)
	}
	if n := memA.registered.Load() - before; n != 1 {
		t.Errorf("%d registrations for three posts, want 1", n)
	}
	if memB.registered.Load() == 0 {
		t.Error("the peer's region was not registered")
	}
}

// TestReceivesBeforeConnect: receives that wait for a carrier use their region: it closes only after them. Made
// stale, it takes no new ones, and those go on.
func TestReceivesBeforeConnect(t *testing.T) {
	a, b, _ := memTcp(t)
	x, y := newSide(t, a, 8), newSide(t, b, 2)
	for id := range uint64(2) {
		if err := y.qp.PostRecv(rdma.RecvWR{ID: id, List: y.list(100*int(id), 100)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := y.qp.PostRecv(rdma.RecvWR{}); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("a receive too many: %v", err)
	}
	y.mem.Invalidate()
	if err := y.qp.PostRecv(rdma.RecvWR{List: y.list(0, 1)}); !errors.Is(err, rdma.ErrState) {
		t.Errorf("a receive into a stale region: %v", err)
	}
	closed := make(chan error, 1)
	go func() { closed <- y.mem.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("closed under waiting receives: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	mustConnect(t, x, y)
	for id := range uint64(2) {
		if err := x.qp.PostSend(rdma.SendWR{ID: id, Op: rdma.OpSend, Inline: []byte("hello")}); err != nil {
			t.Fatal(err)
		}
	}
	x.want(rdma.StatusOK, 0, 1)
	y.want(rdma.StatusOK, 0, 1)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestRegionOfCaller: memory of the caller's works by every device, and stays mapped.
func TestRegionOfCaller(t *testing.T) {
	memory, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	devA, devB, _ := memTcp(t)
	own, err := devB.Register(memory, rdma.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	for _, dev := range []*Device{devA, newMixed(t, devices(tcpDevice(t)))} {
		a, _ := link(t, dev, devB, 8)
		*wordAt(a.mem, 0)++
		want := *wordAt(a.mem, 0) + *wordAt(own, 8)
		*wordAt(a.mem, 0) = want
		if err := a.qp.PostSend(rdma.SendWR{ID: 1, Op: rdma.OpWrite, List: a.list(0, 8), RemoteKey: own.Key(),
			RemoteAddr: 8}); err != nil {
			t.Fatal(err)
		}
		a.want(rdma.StatusOK, 1)
		awaitWord(t, own, 8, want)
	}
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	memory[0] = 1
}

// TestDirectoryIsSealed: the word in a directory is not the key, and only the region's own key opens it.
func TestDirectoryIsSealed(t *testing.T) {
	a, _, _ := memTcp(t)
	made, err := a.AllocRegion(64, rdma.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	r := made.(*region)
	word := rdma.RegionKey(binary.LittleEndian.Uint64(a.directory.tables[0].Bytes()[slotOf(r.key)*slotBytes:]))
	want := r.remotes[0].Key()
	k := a.members[0].kind
	if word == want || seal(r.key, word, k) != want {
		t.Errorf("word %x for key %x", word, want)
	}
	if seal(r.key+1, word, k) == want || seal(r.key, word, kind{k.name, k.nth + 1}) == want {
		t.Errorf("word %x for key %x", word, want)
	}
}

// TestOthersAreClosed: when a pair is connected, only its carrier has a queue pair for it.
func TestOthersAreClosed(t *testing.T) {
	f := newFabric(1)
	first, second := tcpDevice(t), tcpDevice(t)
	link(t, newMixed(t, devices(f.Device("a"), first)), newMixed(t, devices(f.Device("b"), second)), 8)
	for _, d := range []rdma.Device{first, second} {
		if n := d.(*tcp.Device).Info().Pairs; n != 0 {
			t.Errorf("%d pairs left on a device that carries none", n)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{}); !errors.Is(err, rdma.ErrRequest) {
		t.Errorf("no devices: %v", err)
	}
	f := newFabric(1)
	if _, err := New(devices(f.Device("a"), f.Device("b"), f.Device("c"), f.Device("d"), f.Device("e"))); !errors.Is(err,
		rdma.ErrRequest) {
		t.Errorf("five devices: %v", err)
	}
	for _, n := range []string{"a", "b", "c", "d", "e"} {
		_ = f.Device(n).Close()
	}
}

// TestSmallestLimits: a request beyond the limits of either device is refused, no matter which device carries the pair.
func TestSmallestLimits(t *testing.T) {
	a, b, _ := memTcp(t)
	x, _ := link(t, a, b, 8)
	l, m, n := a.Limits(), a.members[0].Limits(), a.members[1].Limits()
	if l.MaxInline != min(m.MaxInline, n.MaxInline) || l.MaxMessage != min(m.MaxMessage, n.MaxMessage) ||
		l.MaxSGE != min(m.MaxSGE, n.MaxSGE) || l.MaxQueueDepth != min(m.MaxQueueDepth, n.MaxQueueDepth) {
		t.Errorf("limits %+v of %+v and %+v", l, m, n)
	}
	x.qp.(*pair).limits.MaxInline = 4 // as if another device could not do more
	if err := x.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, Inline: make([]byte, 5)}); !errors.Is(err, rdma.ErrRequest) {
		t.Errorf("inline bytes beyond the limit: %v", err)
	}
}
