package ring

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// TestLargeMessages: rendezvous, refused and taken back; small ones around them keep their order.
func TestLargeMessages(t *testing.T) {
	each(t, func(t *testing.T, p provider, cfg Config) {
		l := newLink(t, p, cfg)
		ctx := bound(t)
		const size = 300 << 10
		source, err := l.dev[0].AllocRegion(size, 0)
		if err != nil {
			t.Fatal(err)
		}
		target, err := l.dev[1].AllocRegion(size, rdma.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(8, 8))
		for i := range source.Bytes() {
			source.Bytes()[i] = byte(r.Uint32())
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 20 {
				want := map[bool]error{false: nil, true: ErrRefused}[i%5 == 3]
				err := errors.Join(l.c[0].Send(ctx, []byte{byte(i)}),
					l.c[0].SendFrom(ctx, rdma.SGE{Region: source, Offset: i, Length: size - 2*i}))
				if !errors.Is(err, want) {
					t.Errorf("send %d: %v", i, err)
				}
			}
		})
		for i := range 20 {
			var b [1]byte
			if _, err := l.c[1].Recv(ctx, b[:]); err != nil || b[0] != byte(i) {
				t.Fatalf("message %d is %d, %v", i, b[0], err)
			}
			m, err := l.c[1].Recv(ctx, nil)
			if err != nil || !m.Large || m.Size != size-2*i {
				t.Fatalf("offer %d: %+v %v", i, m, err)
			}
			if i%5 == 3 {
				if err := l.c[1].Refuse(); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if _, err := l.c[1].Recv(ctx, nil); !errors.Is(err, rdma.ErrState) {
				t.Errorf("receive before the answer: %v", err)
			}
			clear(target.Bytes())
			if err := l.c[1].Accept(ctx, rdma.SGE{Region: target, Offset: i, Length: m.Size}); err != nil {
				t.Fatalf("accept %d: %v", i, err)
			}
			if !bytes.Equal(target.Bytes()[i:i+m.Size], source.Bytes()[i:size-i]) {
				t.Fatalf("message %d: bytes differ", i)
			}
		}
		wg.Wait()
	})
}

func TestLargeMessageTakenBack(t *testing.T) {
	each(t, func(t *testing.T, p provider, cfg Config) {
		l := newLink(t, p, cfg)
		source, err := l.dev[0].AllocRegion(1<<16, rdma.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		target, err := l.dev[1].AllocRegion(1<<16, rdma.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(bound(t))
		sent := make(chan error, 1)
		go func() { sent <- l.c[0].SendFrom(ctx, rdma.SGE{Region: source, Length: 1 << 16}) }()
		await(t, "an offer without an answer", func() bool {
			return l.c[0].check(func(c *Channel) bool { return c.larges.waiting == 1 })
		})
		cancel()
		if err := <-sent; !errors.Is(err, context.Canceled) {
			t.Fatalf("nobody accepted: %v", err)
		}
		if m, err := l.c[1].Recv(bound(t), nil); err != nil || !m.Large {
			t.Fatalf("%+v %v", m, err)
		}
		if err := l.c[1].Accept(bound(t), rdma.SGE{Region: target, Length: 1 << 16}); !errors.Is(err, ErrRefused) {
			t.Errorf("taken back: %v", err)
		}
		stream(t, l.c[0], l.c[1], 4, 100) // the channel lives
		stream(t, l.c[1], l.c[0], 5, 100)
	})
}

// TestLargeMessagePeerDies: both ends of a rendezvous learn of the other's death.
func TestLargeMessagePeerDies(t *testing.T) {
	each(t, func(t *testing.T, p provider, cfg Config) {
		for _, accepting := range []bool{false, true} {
			cfg.Keepalive = 20 * time.Millisecond
			l := newLink(t, p, cfg)
			mem, err := l.dev[0].AllocRegion(1<<16, rdma.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			failed := make(chan error, 1)
			if accepting {
				var size [offerBytes]byte
				binary.LittleEndian.PutUint64(size[:], 1<<16)
				l.c[1].mu.Lock()
				l.c[1].postNumberedLocked(kindOffer, size[:])
				l.c[1].mu.Unlock()
				if m, err := l.c[0].Recv(bound(t), nil); err != nil || !m.Large {
					t.Fatalf("%+v %v", m, err)
				}
				l.killB() // a peer that lives would take back what it does not know
				go func() { failed <- l.c[0].Accept(bound(t), rdma.SGE{Region: mem, Length: 1 << 16}) }()
			} else {
				go func() { failed <- l.c[0].SendFrom(bound(t), rdma.SGE{Region: mem, Length: 1 << 16}) }()
				if m, err := l.c[1].Recv(bound(t), nil); err != nil || !m.Large {
					t.Fatalf("%+v %v", m, err)
				}
				l.killB()
			}
			if err := <-failed; !errors.Is(err, ErrBroken) {
				t.Errorf("accepting %v: %v", accepting, err)
			}
		}
	})
}
