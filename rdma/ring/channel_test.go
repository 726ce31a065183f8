package ring

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// stream sends n messages of random sizes over a channel and checks them at the other end.
func stream(t *testing.T, from, to *Channel, seed uint64, n int) {
	t.Helper()
	ctx := bound(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			if err := from.Send(ctx, messageOf(seed, i, from.MaxEager())); err != nil {
				t.Errorf("send %d: %v", i, err)
				return
			}
		}
	})
	buf := make([]byte, 1<<16)
	pauses := rand.New(rand.NewPCG(seed, 99))
	for i := range n {
		m, err := to.Recv(ctx, buf)
		if want := messageOf(seed, i, from.MaxEager()); err != nil || !bytes.Equal(buf[:m], want) {
			t.Errorf("message %d: %d bytes, want %d; %v", i, m, len(want), err)
			break
		}
		if pauses.IntN(64) == 0 { // long enough for the sender to run out of credit, and for polling to end
			<-time.After(time.Duration(pauses.IntN(3)) * time.Millisecond)
		}
	}
	wg.Wait()
}

// TestMessagesBothWays: callers that poll for a while, and perhaps in vain, then callers that poll until something
// comes, whose peers find a ring. A caller that does not poll is sent nothing by ring.
func TestMessagesBothWays(t *testing.T) {
	each(t, func(t *testing.T, p provider, cfg Config) {
		if n := bothWays(t, p, cfg); n.Written > 0 && cfg.Spin < 0 {
			t.Errorf("%+v", n)
		}
		if cfg.Spin < 0 {
			return
		}
		cfg.Spin, cfg.Linger = patience, patience
		if n := bothWays(t, p, cfg); n.Written == 0 {
			t.Errorf("%+v", n)
		}
	})
}

func bothWays(t *testing.T, p provider, cfg Config) counts {
	const times = 1500
	l := newLink(t, p, cfg)
	var wg sync.WaitGroup
	wg.Go(func() { stream(t, l.c[0], l.c[1], 1, times) })
	wg.Go(func() { stream(t, l.c[1], l.c[0], 2, times) })
	wg.Wait()
	n := countsOf(l.c[0])
	if n.Written+n.Sent != times {
		t.Errorf("%+v", n)
	}
	t.Logf("%+v", n)
	return n
}

// TestUnorderedDevice: the head word goes in a write of its own.
func TestUnorderedDevice(t *testing.T) {
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			a, b, _ := p.open(t)
			cfg := Config{Spin: patience, Linger: patience}
			x, y := openEndpoint(t, unordered{a}, cfg), openEndpoint(t, unordered{b}, cfg)
			from, to := connect(t, x, y)
			stream(t, from, to, 3, 1000)
			if n := countsOf(from); n.Written == 0 || !from.sends.twofold {
				t.Errorf("%+v", n)
			}
		})
	}
}

// TestManyChannelsBoundedSet: more channels than are polled; all carry messages in order, and the set keeps its limit.
func TestManyChannelsBoundedSet(t *testing.T) {
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			cfg := Config{Spin: time.Millisecond, SetLimit: 2, Slots: 4, Receives: 4}
			a, b, _ := p.open(t)
			x, y := openEndpoint(t, a, cfg), openEndpoint(t, b, cfg)
			var wg sync.WaitGroup
			for i := range 6 {
				from, to := connect(t, x, y)
				wg.Go(func() { stream(t, from, to, uint64(i), 150*(1+i)) })
			}
			wg.Wait()
			y.poll.Lock()
			defer y.poll.Unlock()
			if len(y.policy.members) > 2 {
				t.Errorf("%d are polled", len(y.policy.members))
			}
		})
	}
}

// TestCreditExhaustion: a receiver that does not read stops the sender, at the number of buffers, and reading sets it
// free, over and over.
func TestCreditExhaustion(t *testing.T) {
	each(t, func(t *testing.T, p provider, cfg Config) {
		cfg.Slots, cfg.Receives = 4, 3
		l := newLink(t, p, cfg)
		for round := range 5 {
			sent := 0
			for {
				limit := 100 * time.Millisecond
				if sent < cfg.Receives {
					limit = patience // so many have buffers, once the credits are there
				}
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				err := l.c[0].Send(ctx, []byte{byte(sent)})
				cancel()
				if sent >= cfg.Receives && errors.Is(err, context.DeadlineExceeded) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				sent++
			}
			if sent > 7 {
				t.Fatalf("round %d: %d messages without a reader", round, sent)
			}
			for i := range sent {
				var b [8]byte
				if _, err := l.c[1].Recv(bound(t), b[:]); err != nil || b[0] != byte(i) {
					t.Fatalf("message %d is %d, %v", i, b[0], err)
				}
			}
		}
	})
}

func TestSizesAndErrors(t *testing.T) {
	each(t, func(t *testing.T, p provider, cfg Config) {
		l := newLink(t, p, cfg)
		ctx := bound(t)
		if err := l.c[0].Send(ctx, make([]byte, l.c[0].MaxEager()+1)); !errors.Is(err, errTooLarge) {
			t.Errorf("too large: %v", err)
		}
		for _, n := range []int{0, 1, 7, 8, 9, l.c[0].MaxEager()} {
			if err := l.c[0].Send(ctx, make([]byte, n)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, n)
			if n > 0 {
				m, err := l.c[1].Recv(ctx, buf[:n-1])
				if !errors.Is(err, io.ErrShortBuffer) || m != n {
					t.Errorf("short buffer: %d %v", m, err)
				}
			}
			if m, err := l.c[1].Recv(ctx, buf); err != nil || m != n {
				t.Errorf("%d bytes: %d %v", n, m, err)
			}
		}
		short, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		if _, err := l.c[1].Recv(short, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("nothing there: %v", err)
		}
	})
}

func TestStatesRefuse(t *testing.T) {
	a, b, _ := memDevices(t)
	x, y := openEndpoint(t, a, Config{}), openEndpoint(t, b, Config{})
	c, err := x.NewChannel()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(bound(t), nil); !errors.Is(err, rdma.ErrState) {
		t.Errorf("send before connect: %v", err)
	}
	if err := c.Connect(bound(t), []byte("nonsense")); !errors.Is(err, rdma.ErrRequest) {
		t.Errorf("bad address: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	c, d := connect(t, x, y)
	if err := c.Connect(bound(t), d.Address()); !errors.Is(err, rdma.ErrState) {
		t.Errorf("connected twice: %v", err)
	}
	for _, bad := range []Config{{Slots: 1}, {Receives: slotsMax + 1}, {EagerBytes: 1 << 16},
		{Slots: 1024, EagerBytes: 8192},
		{Keepalive: -1}} {
		if _, err := NewEndpoint(a, bad); !errors.Is(err, rdma.ErrRequest) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestCloseDelivers: what was sent before Close arrives, then io.EOF, again and again; the other side cannot send any
// more.
func TestCloseDelivers(t *testing.T) {
	each(t, func(t *testing.T, p provider, cfg Config) {
		cfg.CloseTimeout = patience
		l := newLink(t, p, cfg)
		ctx := bound(t)
		for i := range 10 {
			if err := l.c[0].Send(ctx, []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.c[0].Close(); err != nil {
			t.Error(err)
		}
		var b [1]byte
		for i := range 10 {
			if _, err := l.c[1].Recv(ctx, b[:]); err != nil || b[0] != byte(i) {
				t.Fatalf("message %d is %d, %v", i, b[0], err)
			}
		}
		for range 2 {
			if _, err := l.c[1].Recv(ctx, b[:]); err != io.EOF {
				t.Errorf("after the end: %v", err)
			}
		}
		if err := l.c[1].Send(ctx, b[:]); !errors.Is(err, ErrPeerClosed) {
			t.Errorf("send after the end: %v", err)
		}
		for _, err := range []error{l.c[0].Send(ctx, b[:]), recvError(l.c[0])} {
			if !errors.Is(err, rdma.ErrClosed) {
				t.Errorf("call on a closed channel: %v", err)
			}
		}
	})
}

func recvError(c *Channel) error {
	_, err := c.Recv(context.Background(), nil)
	return err
}

// TestWaitersEnd: callers that wait return when the channel ends, whatever ends it.
func TestWaitersEnd(t *testing.T) {
	ends := map[string]struct {
		end  func(l *link)
		want error
	}{
		"Close":         {func(l *link) { _ = l.c[0].Close() }, rdma.ErrClosed},
		"EndpointClose": {func(l *link) { _ = l.end[0].Close() }, rdma.ErrClosed},
		"PeerDies":      {func(l *link) { l.killB() }, ErrBroken},
	}
	each(t, func(t *testing.T, p provider, cfg Config) {
		for name, e := range ends {
			t.Run(name, func(t *testing.T) {
				cfg := Config{Spin: cfg.Spin, Slots: 2, Receives: 2, Keepalive: 20 * time.Millisecond,
					CloseTimeout: 100 * time.Millisecond}
				l := newLink(t, p, cfg)
				var wg sync.WaitGroup
				var errs [4]error
				for i := range 2 {
					wg.Go(func() { _, errs[i] = l.c[0].Recv(bound(t), nil) })
					wg.Go(func() {
						for errs[2+i] == nil {
							errs[2+i] = l.c[0].Send(bound(t), []byte("x"))
						}
					})
				}
				await(t, "writers that wait", func() bool {
					l.c[0].mu.Lock()
					defer l.c[0].mu.Unlock()
					return l.c[0].writers.waiting == 2 && l.c[0].readers.waiting == 2
				})
				e.end(l)
				wg.Wait()
				for i, err := range errs {
					if !errors.Is(err, e.want) {
						t.Errorf("caller %d: %v", i, err)
					}
				}
			})
		}
	})
}

// TestSilentDeathIsNoticed: a reader that only waits learns that its peer is dead.
func TestSilentDeathIsNoticed(t *testing.T) {
	each(t, func(t *testing.T, p provider, cfg Config) {
		cfg.Keepalive = 20 * time.Millisecond
		l := newLink(t, p, cfg)
		l.killB()
		if _, err := l.c[0].Recv(bound(t), nil); !errors.Is(err, ErrBroken) {
			t.Errorf("%v", err)
		}
	})
}

// TestNoAllocationPerMessage: in steady state neither end allocates, by the ring and by send/receive.
func TestNoAllocationPerMessage(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations are not counted with the race detector")
	}
	for _, p := range providers() {
		for _, size := range []int{16, 1500} {
			for _, on := range []bool{true, false} {
				cfg := Config{Spin: time.Second, Linger: time.Second, SetLimit: map[bool]int{true: 4, false: -1}[on],
					Keepalive: time.Hour}
				l := newLink(t, p, cfg)
				msg, buf, ctx := make([]byte, size), make([]byte, size), context.Background()
				var failed error
				exchange := func() {
					for i := range 2 {
						if err := l.c[i].Send(ctx, msg); err != nil {
							failed = err
						}
						if _, err := l.c[1-i].Recv(ctx, buf); err != nil {
							failed = err
						}
					}
				}
				for range 200 {
					exchange()
				}
				n := allocations(200, exchange)
				if counts := countsOf(l.c[0]); failed != nil || n != 0 || on != (counts.Written > counts.Sent) {
					t.Errorf("%s, %d bytes, ring %v: %d allocations, %v, %+v", p.name, size, on, n, failed, counts)
				}
			}
		}
	}
}

// allocations is testing.AllocsPerRun with all processors: the fabric needs one, and who polls another.
func allocations(runs uint64, run func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		run()
	}
	runtime.ReadMemStats(&after)
	return (after.Mallocs - before.Mallocs) / runs
}
