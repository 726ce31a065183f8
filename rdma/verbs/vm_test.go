//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
)

const patience = 30 * time.Second

// side is one end of a connection.
type side struct {
	qp  rdma.QueuePair
	cq  rdma.CompletionQueue
	mem rdma.Region
}

func newSide(t testing.TB, d rdma.Device, bytes int) *side {
	t.Helper()
	s := &side{}
	var err error
	if s.mem, err = d.AllocRegion(bytes, rdma.RemoteRead|rdma.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	if s.cq, err = d.NewCQ(64); err != nil {
		t.Fatal(err)
	}
	if s.qp, err = d.NewQP(rdma.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, SendDepth: 16, RecvDepth: 16}); err != nil {
		t.Fatal(err)
	}
	return s
}

func joined(t testing.TB, a, b rdma.Device, bytes int) (*side, *side) {
	t.Helper()
	x, y := newSide(t, a, bytes), newSide(t, b, bytes)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wg sync.WaitGroup
	var errX error
	wg.Go(func() { errX = x.qp.Connect(ctx, y.qp.Address()) })
	errY := y.qp.Connect(ctx, x.qp.Address())
	wg.Wait()
	if errX != nil || errY != nil {
		t.Fatalf("connect: %v, %v", errX, errY)
	}
	return x, y
}

func (s *side) list(offset, n int) []rdma.SGE {
	return []rdma.SGE{{Region: s.mem, Offset: offset, Length: n}}
}

// take waits for n completions.
func (s *side) take(n int) ([]rdma.Completion, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out := make([]rdma.Completion, n)
	for got := 0; got < n; {
		if err := s.cq.Wait(ctx); err != nil {
			return out[:got], err
		}
		got += s.cq.Poll(out[got:])
	}
	return out, nil
}

func command(t testing.TB, words ...string) {
	t.Helper()
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Errorf("%v: %v: %s", words, err, out)
	}
}

// stream sends numbered messages of random bytes until the pair fails, and checks at the receiver that each one
// that was completed is whole. It answers how many arrived.
func stream(t *testing.T, x, y *side, size int, first chan<- struct{}) int {
	const slots = 4
	pattern := func(b []byte, i uint64) {
		rand.NewChaCha8([32]byte(binary.LittleEndian.AppendUint64(make([]byte, 24), i))).Read(b)
	}
	send := func(i uint64) error {
		at := int(i%slots) * size
		pattern(x.mem.Bytes()[at:at+size], i)
		return x.qp.PostSend(rdma.SendWR{ID: i, Op: rdma.OpSend, List: x.list(at, size), Imm: uint32(i)})
	}
	recv := func(i uint64) error {
		return y.qp.PostRecv(rdma.RecvWR{ID: i, List: y.list(int(i%slots)*size, size)})
	}
	for i := range uint64(slots) {
		if err := errors.Join(recv(i), send(i)); err != nil {
			t.Fatal(err)
		}
	}
	var sender sync.WaitGroup
	sender.Go(func() {
		for next := uint64(slots); ; next++ {
			c, err := x.take(1)
			if err != nil {
				t.Errorf("sender after %d: %v", next, err)
				return
			}
			if c[0].Status != rdma.StatusOK {
				return
			}
			if err := send(next); err != nil {
				return
			}
		}
	})
	arrived, want := 0, make([]byte, size)
	for {
		c, err := y.take(1)
		if err != nil {
			t.Errorf("receiver after %d: %v", arrived, err)
			break
		}
		if c[0].Status != rdma.StatusOK {
			break
		}
		i := uint64(arrived)
		pattern(want, i)
		at := int(i%slots) * size
		if c[0].ID != i || c[0].Imm != uint32(i) || !bytes.Equal(want, y.mem.Bytes()[at:at+size]) {
			t.Errorf("message %d (%+v) is not what was sent", i, c[0])
		}
		if arrived++; arrived == slots {
			close(first)
		}
		if err := recv(i + slots); err != nil {
			break
		}
	}
	sender.Wait()
	return arrived
}

// interrupted runs a stream and does something to the device in the middle of it.
func interrupted(t *testing.T, a, b rdma.Device, disturb func()) int {
	t.Helper()
	x, y := joined(t, a, b, 1<<20)
	first := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		<-first
		disturb()
	})
	n := stream(t, x, y, 64<<10, first)
	wg.Wait()
	for _, s := range []*side{x, y} {
		if err := s.qp.PostRecv(rdma.RecvWR{}); !errors.Is(err, rdma.ErrState) {
			t.Errorf("post after the failure: %v", err)
		}
		if err := s.qp.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d messages arrived whole before the failure", n)
	return n
}

// TestPortDown: pairs fail when the port does; new ones work when it is back.
func TestPortDown(t *testing.T) {
	a, b := testDevice(t, quick), testDevice(t, quick)
	interrupted(t, a, b, func() { command(t, "ip", "link", "set", "dummy0", "down") })
	command(t, "ip", "link", "set", "dummy0", "up")
	awaitActive(t)
	joined(t, a, b, 4096)
}

func awaitActive(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		all, err := Devices()
		if err != nil {
			t.Fatal(err)
		}
		if len(all[0].Ports) == 1 && all[0].Ports[0].Active() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("port is not active again: %+v", all)
		}
	}
}

// TestRemoval: `rdma link delete` in the middle of a transfer is reported as a failure, corrupts nothing, and ends when
// the device is closed.
func TestRemoval(t *testing.T) {
	name := deviceName(t)
	a, b := testDevice(t, quick), testDevice(t, quick)
	deleted := make(chan struct{})
	defer func() { // the other tests want it back
		command(t, "rdma", "link", "add", name, "type", "rxe", "netdev", "dummy0")
		awaitActive(t)
	}()
	interrupted(t, a, b, func() {
		go func() {
			defer close(deleted)
			command(t, "rdma", "link", "delete", name)
		}()
	})
	for _, d := range []*device{a, b} {
		for deadline := time.Now().Add(patience); d.Status().Err == nil && time.Now().Before(deadline); {
			<-time.After(10 * time.Millisecond) // first the port goes down, then the device is missed
		}
		if _, err := d.AllocRegion(10, 0); !errors.Is(err, ErrGone) {
			t.Errorf("region of a device that is gone: %v", err)
		}
		if !errors.Is(d.Status().Err, ErrGone) {
			t.Errorf("status tells %v", d.Status().Err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	select {
	case <-deleted:
	case <-time.After(patience):
		t.Error("the device is still held")
	}
}

func TestQueryOfRealDevice(t *testing.T) {
	name := deviceName(t)
	all, err := Devices()
	if err != nil || len(all) != 1 || all[0].Name != name || !Present() {
		t.Fatalf("%+v, %v", all, err)
	}
	p := all[0].Ports[0]
	if !p.Active() || p.LinkLayer != "Ethernet" || p.MTU != 4096 || len(p.Problems) != 0 || len(all[0].Problems) != 0 {
		t.Errorf("port %+v", p)
	}
	var got string
	for _, g := range p.GIDs {
		got += fmt.Sprintf("%d %v %s %s;", g.Index, g.GID.Unmap(), g.Type, g.NetIf)
	}
	const want = "1 10.77.0.1 RoCE v2 dummy0;2 10.77.0.2 RoCE v2 dummy0;"
	if len(p.GIDs) != 3 || got[len(got)-len(want):] != want {
		t.Errorf("GIDs %s", got)
	}
	l := all[0].Limits
	if l.QueuePairs == 0 || l.QueueDepth == 0 || l.SGE == 0 || l.RegionBytes == 0 || l.ReadsIn == 0 ||
		l.CompletionDepth == 0 {
		t.Errorf("limits %+v", l)
	}
	d := testDevice(t, Config{})
	t.Logf("%v: %+v", d, d.Limits())
	if g := d.at.Load().gid; g.GID.Unmap().String() != "10.77.0.1" {
		t.Errorf("chose %v by itself", g)
	}
	for _, bad := range []Config{{Device: "nix0"}, {Device: name, Port: 2}, {Device: name, GID: "9"}, {GID: "10.9.9.9"},
		{GID: "x"}} {
		if _, err := Open(bad); !errors.Is(err, ErrNoDevice) {
			t.Errorf("open %+v: %v", bad, err)
		}
	}
}

// TestUnsignaledForEver: a sender that asks for no completions still gets free slots, and holds no region.
func TestUnsignaledForEver(t *testing.T) {
	x, y := joined(t, testDevice(t, quick), testDevice(t, quick), 4096)
	post := func(wr rdma.SendWR) {
		t.Helper()
		wr.Op, wr.Unsignaled, wr.RemoteKey = rdma.OpWrite, true, y.mem.Key()
		for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
			err := x.qp.PostSend(wr)
			if err == nil {
				return
			}
			if !errors.Is(err, rdma.ErrQueueFull) || time.Now().After(deadline) {
				t.Fatal(err)
			}
			if n := x.cq.Poll(make([]rdma.Completion, 1)); n != 0 {
				t.Fatal("a completion of an unsignaled request")
			}
		}
	}
	for i := range uint64(200) {
		post(rdma.SendWR{Inline: binary.LittleEndian.AppendUint64(nil, i), RemoteAddr: 8})
	}
	x.mem.Bytes()[0] = 42
	post(rdma.SendWR{List: x.list(0, 1)})
	if err := x.mem.Close(); err != nil {
		t.Fatal(err)
	}
	if got := binary.LittleEndian.Uint64(y.mem.Bytes()[8:]); got != 199 || y.mem.Bytes()[0] != 42 {
		t.Errorf("counter %d, byte %d", got, y.mem.Bytes()[0])
	}
}

// TestConnectNeedsTheSecret: a peer that knows where a pair is but not its secret does not get its Connect done.
func TestConnectNeedsTheSecret(t *testing.T) {
	a, b := testDevice(t, quick), testDevice(t, quick)
	x, y := newSide(t, a, 4096), newSide(t, b, 4096)
	guessed, err := decodeAddress(x.qp.Address())
	if err != nil {
		t.Fatal(err)
	}
	guessed.secret[0]++
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := y.qp.Connect(ctx, guessed.encode()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a guessed secret: %v", err)
		}
	})
	if err := x.qp.Connect(ctx, y.qp.Address()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("to one with a guessed secret: %v", err)
	}
	wg.Wait()
}

// TestLockedMemoryIsExplained: the limit that keeps a region from being registered is named, with what to do.
func TestLockedMemoryIsExplained(t *testing.T) {
	d := testDevice(t, quick)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	var limit unix.Rlimit
	if err := errors.Join(unix.Capget(&header, &caps[0]), unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit)); err != nil {
		t.Fatal(err)
	}
	// Capabilities belong to a thread; this one ends with the test's goroutine.
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		less := caps
		less[0].Effective &^= 1 << unix.CAP_IPC_LOCK
		low := unix.Rlimit{Cur: 1 << 20, Max: limit.Max}
		if err := errors.Join(unix.Capset(&header, &less[0]), unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low)); err != nil {
			done <- err
			return
		}
		_, err := d.AllocRegion(8<<20, 0)
		done <- err
	}()
	err := <-done
	if errRestore := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); errRestore != nil {
		t.Fatal(errRestore)
	}
	if !errors.Is(err, ErrLockedMemory) || !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "LimitMEMLOCK") {
		t.Fatalf("error %v", err)
	}
	t.Log(err)
	r, err := d.AllocRegion(8<<20, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestLimitsAreGranted: a pair as large as the limits say can be made and used; with the pairs of a queue the
// device's queues below it grow in number.
func TestLimitsAreGranted(t *testing.T) {
	d := testDevice(t, quick)
	l := d.Limits()
	cq, err := d.NewCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := d.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, SendDepth: l.MaxQueueDepth,
			RecvDepth: l.MaxQueueDepth}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(*cq.(*completionQueue).queues.Load()); n < 2 {
		t.Errorf("%d queues of the device for three of the largest pairs", n)
	}
	x, y := joined(t, d, d, 4096)
	var list []rdma.SGE
	for i := range l.MaxSGE {
		x.mem.Bytes()[100*i] = byte(i + 1)
		list = append(list, x.list(100*i, 1)...)
	}
	if err := x.qp.PostSend(rdma.SendWR{Op: rdma.OpWrite, List: list, RemoteKey: y.mem.Key(), RemoteAddr: 5}); err != nil {
		t.Fatal(err)
	}
	if c, err := x.take(1); err != nil || c[0].Status != rdma.StatusOK || c[0].Bytes != l.MaxSGE {
		t.Fatalf("%+v, %v", c, err)
	}
	for i := range l.MaxSGE {
		if got := y.mem.Bytes()[5+i]; got != byte(i+1) {
			t.Errorf("byte %d is %d", i, got)
		}
	}
}
