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
)

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

func ratio(list []float64) float64 {
	least, most := list[0], list[0]
	for _, v := range list {
		least, most = min(least, v), max(most, v)
	}
	return most / least
}

func sum(list []float64) (s float64) {
	for _, v := range list {
		s += v
	}
	return s
}
