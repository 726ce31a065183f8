//go:build linux

package uring

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/lab/pin"
	"github.com/rdmcfs/rdmcfs/rdma"
)

const patience = 30 * time.Second

// open makes a device, or skips where the kernel has none for us; root has to have one.
func open(t testing.TB) *Device {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	d, err := New(Config{})
	if os.Geteuid() != 0 && (errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM)) {
		t.Skip("no io_uring for this process:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mapped(t testing.TB, n int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	return m
}

// pinnedKiB is VmPin of this process.
func pinnedKiB(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), "VmPin:")
	n, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRegistrationPins: a region's pages are counted as pinned by the kernel, until it is closed.
func TestRegistrationPins(t *testing.T) {
	d := open(t)
	defer d.Close()
	m := mapped(t, 16<<20)
	before := pinnedKiB(t)
	r, err := d.Register(m, rdma.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	if got := pinnedKiB(t) - before; got < 16<<10 {
		t.Errorf("VmPin grew by %d KiB, want 16 MiB", got)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got := pinnedKiB(t); got != before {
		t.Errorf("VmPin is %d KiB, was %d", got, before)
	}
}

// TestStrategies: all move a message between two devices, a thread each, and pin what they say.
func TestStrategies(t *testing.T) {
	a := open(t)
	defer a.Close()
	const size = 3<<20 + 5
	src, dst := mapped(t, size), mapped(t, size)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range src {
		src[i] = byte(rng.Uint32())
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	addresses := make(chan []byte)
	ended := make(chan error, 1)
	go func() { ended <- receiver(ctx, addresses, dst) }()
	link, err := pin.NewLink(pin.NewDomain(a, pin.Config{}), pin.LinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	remote := <-addresses
	addresses <- link.Address()
	if err := link.Connect(ctx, remote); err != nil {
		t.Fatal(err)
	}
	for _, s := range pin.Strategies() {
		for range 2 {
			if err := link.Send(ctx, s, pin.Bytes(src)); err != nil {
				t.Fatalf("%v: %v", s, err)
			}
			if !bytes.Equal(src, dst) {
				t.Fatalf("%v: other bytes", s)
			}
			if err := link.Send(ctx, pin.Copy, pin.Bytes(nil)); err != nil { // the receiver has cleared its memory
				t.Fatal(err)
			}
		}
	}
	if err := link.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if s := a.Spent(); s.Registrations == 0 || s.Registering == 0 {
		t.Errorf("%+v", s)
	}
}

func receiver(ctx context.Context, addresses chan []byte, dst []byte) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d, err := New(Config{})
	if err != nil {
		return err
	}
	defer d.Close()
	link, err := pin.NewLink(pin.NewDomain(d, pin.Config{}), pin.LinkConfig{})
	if err != nil {
		return err
	}
	addresses <- link.Address()
	if err := link.Connect(ctx, <-addresses); err != nil {
		return err
	}
	for range 2 * len(pin.Strategies()) {
		for _, m := range []pin.Bytes{dst, nil} {
			if _, err := link.Receive(ctx, func(int64) (pin.Memory, error) { return m, nil }); err != nil {
				return err
			}
		}
	}
	return link.Close()
}
