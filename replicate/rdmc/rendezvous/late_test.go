package rendezvous

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// lateConn keeps back what it has read, while held, until the gate is open.
type lateConn struct {
	net.Conn
	held atomic.Bool
	gate chan struct{}
}

func (c *lateConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.held.Load() {
		<-c.gate
	}
	return n, err
}

func (c *lateConn) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	c.Conn = conn
	return c, err
}

// TestFailureBeforeDelivered has a member leave as soon as it has a message, and another hear of that before it hears
// that the message is delivered: the root owes it nothing then, and may be silent for as long as it likes.
func TestFailureBeforeDelivered(t *testing.T) {
	late := &lateConn{gate: make(chan struct{})}
	open := sync.OnceFunc(func() { close(late.gate) })
	t.Cleanup(open)
	p := newParty(t, 3, func(cfg *Config) {
		cfg.Detect = 1500 * time.Millisecond
		if cfg.Rank != 2 {
			return
		}
		cfg.OnFailure = func(uint32, error) { open() }
		cfg.Dial = late.dial
	})
	p.open()
	source, sinks := &store{data: randomBytes(13, 20*sessionBlock)}, p.sinks(20*sessionBlock)
	sinks[2].each = func(uint64) error {
		late.held.Store(true)
		return nil
	}
	var all sync.WaitGroup
	all.Go(func() {
		if err := p.member(1, sinks[1]); err != nil {
			t.Errorf("rank 1: %v", err)
		}
		p.sessions[1].Close()
	})
	all.Go(func() {
		if err := p.member(2, sinks[2]); err != nil {
			t.Errorf("rank 2: %v", err)
		}
	})
	if _, err := p.sessions[0].Send(testContext(t), uint64(len(source.data)), source); err != nil {
		t.Error(err)
	}
	all.Wait()
	silence, cancel := context.WithTimeout(t.Context(), 3*p.configs[0].Detect)
	defer cancel()
	if _, err := p.sessions[2].Next(silence); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("while the root is silent: %v", err)
	}
	p.again([]int{0, 2})
}

// TestTakenAfterFailure has a member say where a message goes after the group has failed and before the root calls to
// the next one.
func TestTakenAfterFailure(t *testing.T) {
	late, failed := &lateConn{gate: make(chan struct{})}, make(chan struct{})
	open := sync.OnceFunc(func() { close(late.gate) })
	t.Cleanup(open)
	told := sync.OnceFunc(func() { close(failed) })
	p := newParty(t, 3, func(cfg *Config) {
		if cfg.Rank != 2 {
			return
		}
		cfg.OnFailure = func(uint32, error) { told() }
		cfg.Dial = late.dial
	})
	p.open()
	source, sink := &store{data: randomBytes(14, 20*sessionBlock)}, &store{data: make([]byte, 20*sessionBlock)}
	var all sync.WaitGroup
	all.Go(func() {
		if d, err := p.sessions[0].Send(testContext(t), uint64(len(source.data)), source); err != nil {
			t.Errorf("the root: %+v, %v", d, err)
		}
	})
	message, err := p.sessions[2].Next(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	late.held.Store(true)
	p.strike("kill", 1)
	<-failed
	message.member.taken <- taking{message, sink} // as Receive does
	open()
	if err := <-message.done; err != nil {
		t.Error(err)
	}
	all.Wait()
	checkSame(t, source.data, []*store{nil, nil, sink}, []int{2})
}

// TestTwoStopAtOnce has two members stop as a whole, and one between them suspect one of them: it does not wait so
// long for the other to hear of it that it misses the meeting.
func TestTwoStopAtOnce(t *testing.T) {
	stopped := map[int]*lateConn{2: {gate: make(chan struct{})}, 4: {gate: make(chan struct{})}}
	p := newParty(t, 5, func(cfg *Config) {
		cfg.Algorithm, cfg.Detect = schedule.Chain, 600*time.Millisecond
		if late := stopped[cfg.Rank]; late != nil {
			cfg.Dial = late.dial
		}
	})
	p.open()
	source, sinks := &store{data: randomBytes(16, 400*sessionBlock)}, p.sinks(400*sessionBlock)
	source.each = after(200, func() {
		for rank, late := range stopped {
			late.held.Store(true)
			p.strike("stop", rank)
		}
	})
	var all sync.WaitGroup
	for rank := 1; rank < p.n; rank++ {
		all.Go(func() {
			if err := p.member(rank, sinks[rank]); (err == nil) != (stopped[rank] == nil) {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	d, err := p.sessions[0].Send(testContext(t), uint64(len(source.data)), source)
	if err != nil || !slices.Equal(d.Members, []int{0, 1, 3}) {
		t.Errorf("%+v, %v", d, err)
	}
	for _, late := range stopped {
		close(late.gate)
	}
	all.Wait()
	checkSame(t, source.data, sinks, []int{1, 3})
}
