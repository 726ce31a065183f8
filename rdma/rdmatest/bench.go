package rdmatest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// Bench measures a provider: the rate of blocks of several sizes with a few in flight, the rate of small
// messages, and the round trip of 64 bytes.
func Bench(b *testing.B, maker Maker) {
	for _, size := range []int{64, 4 << 10, 256 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("Stream/%d", size), func(b *testing.B) { benchStream(b, maker, size) })
	}
	b.Run("RoundTrip/64", func(b *testing.B) { benchRoundTrip(b, maker) })
}

// benchDepth is the number of blocks in flight.
const benchDepth = 8

func closeAll(b *testing.B, p *Pair) {
	for _, d := range p.Devices {
		if err := d.Close(); err != nil {
			b.Error(err)
		}
	}
}

func benchStream(b *testing.B, maker Maker, size int) {
	p := open(b, maker)
	defer closeAll(b, p)
	from, to := p.link(b, options{bytes: benchDepth * size})
	n := b.N
	var recvs [benchDepth][]rdma.RecvWR
	var sends [benchDepth][]rdma.SendWR
	for i := range benchDepth {
		recvs[i] = []rdma.RecvWR{{ID: uint64(i), List: to.list(i*size, size)}}
		sends[i] = []rdma.SendWR{{ID: uint64(i), Op: rdma.OpSend, List: from.list(i*size, size)}}
		if err := to.qp.PostRecv(recvs[i]...); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	wg.Go(func() {
		each(b, to.rcvd, n, func(c rdma.Completion) error { return to.qp.PostRecv(recvs[c.ID]...) })
	})
	for i := range min(n, benchDepth) {
		if err := from.qp.PostSend(sends[i]...); err != nil {
			b.Fatal(err)
		}
	}
	posted := min(n, benchDepth)
	each(b, from.sent, n, func(c rdma.Completion) error {
		if posted == n {
			return nil
		}
		posted++
		return from.qp.PostSend(sends[c.ID]...)
	})
	wg.Wait()
}

// each handles n completions of q.
func each(b *testing.B, q rdma.CompletionQueue, n int, do func(rdma.Completion) error) {
	out := make([]rdma.Completion, 16)
	for n > 0 {
		k := q.Poll(out)
		if k == 0 {
			if err := q.Wait(b.Context()); err != nil {
				b.Error(err)
				return
			}
		}
		for _, c := range out[:k] {
			if c.Status != rdma.StatusOK {
				b.Errorf("status %v", c.Status)
				return
			}
			if err := do(c); err != nil {
				b.Error(err)
				return
			}
		}
		n -= k
	}
}

func benchRoundTrip(b *testing.B, maker Maker) {
	p := open(b, maker)
	defer closeAll(b, p)
	x, y := p.link(b, options{})
	there, back := newExchange(x, y, 64), newExchange(y, x, 64)
	b.ReportAllocs()
	for b.Loop() {
		for _, e := range [...]*exchange{there, back} {
			if err := e.once(); err != nil {
				b.Fatal(err)
			}
		}
	}
}
