package ring

import (
	"context"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

// polledPairs are n pairs of channels between two endpoints that move only by calls; the first pair polls and is
// polled.
func polledPairs(t *testing.T, n int, cfg Config) (f *mem.Fabric, a, b []*Channel) {
	t.Helper()
	f = mem.NewFabric(mem.Config{Seed: 3, Stepped: true})
	cfg.Spin, cfg.CloseTimeout = patience, time.Millisecond
	var ends [2]*Endpoint
	for i, name := range []string{"a", "b"} {
		d := closeLater(t, f.Device(name))
		e, err := newEndpoint(d, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		e.busy.Store(true)
		ends[i] = e
	}
	for range n {
		var c [2]*Channel
		for i, e := range ends {
			var err error
			if c[i], err = e.NewChannel(); err != nil {
				t.Fatal(err)
			}
		}
		for i := range c {
			if err := c[i].Connect(context.Background(), c[1-i].Address()); err != nil {
				t.Fatal(err)
			}
		}
		a, b = append(a, c[0]), append(b, c[1])
	}
	for range 3 {
		pass(t, f, a[0], b[0])
		pass(t, f, b[0], a[0])
	}
	deliver(f)
	for _, c := range []*Channel{a[0], b[0]} {
		lookOnce(c.e)
		if c.out.set%2 == 0 {
			t.Fatal("nobody polls")
		}
	}
	return f, a, b
}

// deliver lets all arrive that was posted.
func deliver(f *mem.Fabric) {
	for f.Step() {
	}
}

func lookOnce(e *Endpoint) {
	e.poll.Lock()
	defer e.poll.Unlock()
	e.progressLocked(true)
}

// pass sends a message from x to y, which receives it.
func pass(t *testing.T, f *mem.Fabric, x, y *Channel) {
	t.Helper()
	if err := x.Send(bound(t), []byte{1}); err != nil {
		t.Fatal(err)
	}
	deliver(f)
	if _, err := y.Recv(bound(t), make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
}

// TestBusyRingLeavesTheQueueToOthers: a caller who finds each message in a ring at once looks at the completion queue
// all the same, where messages for others are.
func TestBusyRingLeavesTheQueueToOthers(t *testing.T) {
	f, a, b := polledPairs(t, 2, Config{SetLimit: 1, Slots: 64})
	if err := a[1].Send(bound(t), []byte{7}); err != nil {
		t.Fatal(err)
	}
	for range 2 * queueEvery {
		pass(t, f, a[0], b[0])
	}
	if b[1].inbox.n != 1 {
		t.Errorf("after %d messages by the ring nobody has looked at the queue", 2*queueEvery)
	}
}

// TestStreamStaysInTheRing: credits of a receiver that keeps up come in time, and the sender looks for them before it
// takes the other way.
func TestStreamStaysInTheRing(t *testing.T) {
	f, a, b := polledPairs(t, 1, Config{Slots: 8, Receives: 8})
	before := countsOf(a[0])
	for range 50 {
		for range 4 {
			if err := a[0].Send(bound(t), []byte{1}); err != nil {
				t.Fatal(err)
			}
		}
		deliver(f)
		for range 4 {
			if _, err := b[0].Recv(bound(t), make([]byte, 8)); err != nil {
				t.Fatal(err)
			}
		}
		deliver(f)
	}
	if n := countsOf(a[0]); n.Written-before.Written != 200 || n.Sent != before.Sent {
		t.Errorf("%d messages by the ring, %d by send/receive", n.Written-before.Written, n.Sent-before.Sent)
	}
}
