package mem

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// TestMemoryWithoutPages: registered memory whose file was cut fails the request that touches it, and nothing else.
func TestMemoryWithoutPages(t *testing.T) {
	f := NewFabric(Config{Seed: 1})
	a, b := f.Device("a"), f.Device("b")
	defer a.Close()
	defer b.Close()
	const size = 64 << 10
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "memfd:test")
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	gone, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(gone)
	if err := file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	for _, there := range []bool{false, true} { // the memory of the sender, or that of the peer
		source, target := region(t, a, gone), region(t, b, make([]byte, size))
		if there {
			source, target = region(t, a, make([]byte, size)), region(t, b, gone)
		}
		cq, qp := connected(t, a, b)
		err := qp.PostSend(rdma.SendWR{Op: rdma.OpWrite, List: []rdma.SGE{{Region: source, Length: size}},
			RemoteKey: target.Key()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if err := cq.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		var out [1]rdma.Completion
		if cq.Poll(out[:]); out[0].Status != rdma.StatusLocal {
			t.Errorf("gone at the peer %v: %v", there, out[0].Status)
		}
		if err := qp.Close(); err != nil {
			t.Error(err)
		}
		for _, r := range []rdma.Region{source, target} {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func region(t *testing.T, d *Device, mem []byte) rdma.Region {
	t.Helper()
	r, err := d.Register(mem, rdma.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// connected is a queue pair of a, with its completions, joined to one of b.
func connected(t *testing.T, a, b *Device) (rdma.CompletionQueue, rdma.QueuePair) {
	t.Helper()
	var qps [2]rdma.QueuePair
	var cqs [2]rdma.CompletionQueue
	for i, d := range []*Device{a, b} {
		cq, err := d.NewCQ(16)
		if err != nil {
			t.Fatal(err)
		}
		if qps[i], err = d.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq}); err != nil {
			t.Fatal(err)
		}
		cqs[i] = cq
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i := range qps {
		wg.Go(func() {
			if err := qps[i].Connect(ctx, qps[1-i].Address()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return cqs[0], qps[0]
}
