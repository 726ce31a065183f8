package rdmc

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/tcp"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// TestArbiterAlone holds that a group alone is never refused and costs no memory.
func TestArbiterAlone(t *testing.T) {
	var a arbiter
	s, idle := &share{class: 1}, &share{class: 2}
	a.add(s)
	a.add(idle)
	if n := testing.AllocsPerRun(1000, func() {
		if a.contended(s) || !a.ask(s, 1000, shareUnit, time.Time{}) {
			t.Fatal("refused")
		}
		a.done(s, 1000, time.Time{})
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if a.busy != 0 || a.flying != 0 || a.waiting != 0 || a.starving != 0 {
		t.Errorf("left over: %+v", a)
	}
}

// TestArbiterTurns follows two groups by hand: the one that is ahead waits, and is woken when the other has caught up,
// has nothing, or leaves.
func TestArbiterTurns(t *testing.T) {
	for name, end := range map[string]func(a *arbiter, small *share){
		"catches up": func(a *arbiter, small *share) {
			for range 9 {
				if !a.ask(small, 100, shareUnit, simStart) {
					t.Fatal("who is behind is refused")
				}
				a.done(small, 100, simStart)
			}
		},
		"has nothing": func(a *arbiter, small *share) { a.done(small, 100, simStart) },
		"leaves":      func(a *arbiter, small *share) { a.leave(small) },
	} {
		var a arbiter
		big, small := &share{class: 1}, &share{class: 1}
		a.add(big)
		a.add(small)
		if !a.ask(big, 1000, shareUnit, simStart) || !a.ask(small, 100, shareUnit, simStart) ||
			!a.ask(big, 1000, shareUnit, simStart) {
			t.Fatalf("%s: refused before anybody is ahead", name)
		}
		a.done(big, 1000, simStart)
		if a.ask(big, 1000, shareUnit, simStart) || a.next() != nil {
			t.Fatalf("%s: two blocks ahead, and not refused", name)
		}
		if end(&a, small); a.next() != big || a.next() != nil || !a.ask(big, 1000, shareUnit, simStart) {
			t.Errorf("%s: not woken", name)
		}
	}
}

// narrow is a link for all connections that a device dials: what it sends goes through one queue at a rate, in order.
type narrow struct {
	rate  float64 // bytes a second
	queue chan parcel
	work  sync.WaitGroup
	stop  context.CancelFunc
	ctx   context.Context
}

type parcel struct {
	to   net.Conn
	data []byte
}

func newNarrow(t *testing.T, rate float64) *narrow {
	n := &narrow{rate: rate, queue: make(chan parcel, 64)}
	n.ctx, n.stop = context.WithCancel(context.Background())
	n.work.Go(n.carry)
	t.Cleanup(func() { n.stop(); n.work.Wait() })
	return n
}

// carry writes parcels at the rate.
func (n *narrow) carry() {
	free := time.Now()
	for {
		select {
		case <-n.ctx.Done():
			return
		case p := <-n.queue:
			if now := time.Now(); free.Before(now.Add(-5 * time.Millisecond)) {
				free = now
			}
			free = free.Add(time.Duration(float64(len(p.data)) / n.rate * 1e9))
			wait := time.NewTimer(time.Until(free))
			select {
			case <-wait.C:
			case <-n.ctx.Done():
			}
			if _, err := p.to.Write(p.data); err != nil {
				p.to.Close()
			}
		}
	}
}

// dial connects by way of the link.
func (n *narrow) dial(ctx context.Context, address string) (net.Conn, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	var d net.Dialer
	near, err := d.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	inner, err := l.Accept()
	if err != nil {
		return nil, errors.Join(err, near.Close())
	}
	far, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, errors.Join(err, near.Close(), inner.Close())
	}
	context.AfterFunc(n.ctx, func() { inner.Close(); far.Close() })
	n.work.Go(func() {
		defer far.Close()
		for {
			buf := make([]byte, 32<<10)
			got, err := inner.Read(buf)
			if err != nil {
				return
			}
			select {
			case n.queue <- parcel{far, buf[:got]}:
			case <-n.ctx.Done():
				return
			}
		}
	})
	n.work.Go(func() {
		defer inner.Close()
		io.Copy(inner, far) // ends with either connection
	})
	return near, nil
}

// counting is a message that nobody keeps, and how much of it came.
type counting struct {
	discard
	bytes atomic.Int64
}

func (c *counting) WriteBlock(_ uint64, buf []byte) error {
	c.bytes.Add(int64(len(buf)))
	return nil
}

var sharesFlag = flag.Bool("shares", false,
	"measure shares on rdma/tcp, in real time: for a machine with nothing else to do")

// TestSharesOnTCP: two groups with different block sizes compete for the capped link of their root. It measures, so it
// runs on demand; TestSimShares checks the same in virtual time.
func TestSharesOnTCP(t *testing.T) {
	if !*sharesFlag {
		t.Skip("measures in real time: run it with -args -shares")
	}
	const rate = 10e6
	link := newNarrow(t, rate)
	root, err := tcp.New(tcp.Config{Dial: link.dial}) // it does not listen, so it dials
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	c := newCluster(t, append([]rdma.Device{root}, tcpDevices(t, 2)...))
	sinks := make([]*counting, 2)
	var all [][]*Group
	for i, block := range []int{256 << 10, 64 << 10} {
		groups := c.all(GroupConfig{Number: uint64(i), BlockSize: block})
		sinks[i] = &counting{}
		tr, err := groups[0].Send(Outgoing{Size: 1 << 34, Source: discard{}})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups[1:] {
			if _, err := g.Receive(tr.Announcement(), Receiver{Sink: sinks[i]}); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, groups)
	}
	wait := func(d time.Duration) (got []float64) {
		<-time.After(d)
		for _, s := range sinks {
			got = append(got, float64(s.bytes.Load()))
		}
		return got
	}
	const takes = 3 * time.Second
	before := wait(500 * time.Millisecond)
	after := wait(takes)
	shares := []float64{after[0] - before[0], after[1] - before[1]}
	t.Logf("256 KiB blocks: %.1f MB, 64 KiB blocks: %.1f MB, of %.1f at both members", shares[0]/1e6, shares[1]/1e6,
		2*rate*takes.Seconds()/1e6)
	if ratio(shares) > 1.1 || sum(shares) < 0.8*2*rate*takes.Seconds() {
		t.Errorf("shares %.3g", shares)
	}
	var aborts sync.WaitGroup
	for _, groups := range all {
		for _, g := range groups {
			aborts.Go(g.Abort)
		}
	}
	aborts.Wait()
}

// TestCostsOfManyChildren: a member that sends a block, or a small message, many times still takes turns with others,
// and of long messages gets no more bytes.
func TestCostsOfManyChildren(t *testing.T) {
	turns := func(cost int64, size int) (own, other int) {
		var a arbiter
		x, y := &share{class: 1}, &share{class: 1}
		a.add(x)
		a.add(y)
		now := simStart
		for range 20000 {
			now = now.Add(time.Millisecond)
			okx, oky := a.ask(x, size, cost, now), a.ask(y, 1000, shareUnit, now)
			if okx {
				own += size
				a.done(x, size, now)
			}
			if oky {
				other += 1000
				a.done(y, 1000, now)
			}
			for a.next() != nil {
				continue
			}
		}
		return own, other
	}
	for _, c := range []struct {
		name   string
		cost   int64
		size   int
		factor float64 // of the other's bytes, at most
	}{
		{"sequential, long", newShareCosts(mustPlan(t, schedule.Sequential, 64), 0).long, 1000, 1.1},
		{"sequential, one block", newShareCosts(mustPlan(t, schedule.Sequential, 64), 0).single, 1000, 70},
		{"to 2000", shareCost(2000), 1000, 1100},
		{"small to 64", shareCost(64), 48, 70},
	} {
		if own, other := turns(c.cost, c.size); other == 0 || float64(own) > c.factor*float64(other) {
			t.Errorf("%s: %d bytes for %d of the other", c.name, own, other)
		}
	}
}

func mustPlan(t *testing.T, a schedule.Algorithm, n int) *schedule.Plan {
	plan, err := schedule.NewPlan(a, n)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}
