package tcp

import (
	"context"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// TestOthersAreSeen: while a watch always has something to do, another connection of a process with one processor
// does not wait for long.
func TestOthersAreSeen(t *testing.T) {
	const pairs, turns, most = 4, 41, 6 * time.Millisecond // without a glance 10 to 20 ms
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	a, b := testDevice(t, Config{watch: true}), testDevice(t, Config{watch: true})
	var wg sync.WaitGroup
	defer wg.Wait()
	warm := make(chan struct{}, 2*pairs)
	for range pairs {
		qa, qb := pairOf(t, a), pairOf(t, b)
		connectBoth(t, qa, qb)
		for _, q := range []*queuePair{qa, qb} {
			defer q.Abort()
			wg.Go(func() { rally(q, warm) })
		}
		if err := qa.PostSend(rdma.SendWR{Op: rdma.OpSend}); err != nil {
			t.Fatal(err)
		}
	}
	conn := echo(t, &wg)
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for range cap(warm) {
		<-warm
	}
	took := make([]time.Duration, turns)
	for i := range took {
		start := processorTime(t)
		var b [1]byte
		if _, err := conn.Write(b[:]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, b[:]); err != nil {
			t.Fatal(err)
		}
		took[i] = processorTime(t) - start
	}
	slices.Sort(took)
	if median := took[turns/2]; median > most {
		t.Errorf("another connection's round trip took %v of the processor", median)
	}
}

// rally sends a message for each that comes, until the pair fails, and signals when the watch has read it for a while.
func rally(q *queuePair, warm chan<- struct{}) {
	if q.PostRecv(rdma.RecvWR{}) != nil {
		return
	}
	var out [1]rdma.Completion
	for came := 0; ; {
		if q.sq.CQ().Poll(out[:]) == 0 {
			if q.sq.CQ().Wait(context.Background()) != nil {
				return
			}
			continue
		}
		switch c := &out[0]; {
		case c.Status != rdma.StatusOK:
			return
		case c.Op == rdma.OpRecv:
			if came++; came == 1000 {
				warm <- struct{}{}
			}
			if q.PostRecv(rdma.RecvWR{}) != nil || q.PostSend(rdma.SendWR{Op: rdma.OpSend}) != nil {
				return
			}
		}
	}
}

// echo connects to a goroutine that sends back what it gets, until the connection is closed.
func echo(t *testing.T, wg *sync.WaitGroup) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		_ = conn.Close()
		t.Fatal(err)
	}
	wg.Go(func() {
		_, _ = io.Copy(peer, peer)
		_ = peer.Close()
	})
	return conn
}

// processorTime is what the process has had of the processor: other programs do not count.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
