package pin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// random is mapped memory with bytes from a seed.
func random(t testing.TB, n int, seed uint64) Bytes {
	m := pages(t, max(n, 1))[:n]
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range m {
		m[i] = byte(r.Uint32())
	}
	return m
}

func wantSame(t testing.TB, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("%d bytes differ from what was sent", len(got))
	}
}

// TestStrategiesMoveBytes: every strategy, sizes around all boundaries, both ways over one link.
func TestStrategiesMoveBytes(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		p := newPair(t, a, b, 0, small)
		src := random(t, 1<<20, 1)
		for _, s := range Strategies() {
			for i, n := range []int{0, 1, 8128, 8129, 32512, 32513, 32512 + 64<<10, 32513 + 64<<10, 300001, 1 << 20} {
				t.Run(fmt.Sprintf("%v/%d", s, n), func(t *testing.T) {
					from, to := p.end[i%2], p.end[1-i%2]
					off := (1<<20 - n) / 3
					dst := Bytes(pages(t, 1<<20)[off : off+n])
					if sendErr, err := move(t, from, to, s, src[off:off+n], dst); sendErr != nil || err != nil {
						t.Fatalf("send: %v, receive: %v", sendErr, err)
					}
					wantSame(t, dst, src[off:off+n])
					if err := p.dom[1-i%2].Invalidate(dst[:cap(dst)]); err != nil { // it is unmapped now
						t.Fatal(err)
					}
				})
			}
		}
		for _, d := range p.dom {
			if err := d.Flush(); err != nil {
				t.Fatal(err)
			}
			if st := d.Stats(); st.Entries != 1 { // the buffers of the link
				t.Errorf("left registered: %+v", st)
			}
		}
	})
}

// TestReuseRegistersOnce: what is kept is found again, also for a part of the memory; what is not kept is registered
// each time. The caching pipeline joins what it found in pieces, once, in the second such message or, if that was over
// before there was time for it, in a later one.
func TestReuseRegistersOnce(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		p := newPair(t, a, b, 0, small)
		src, dst := random(t, 1<<20, 2), Bytes(pages(t, 1<<20))
		for _, s := range []Strategy{OnDemand, Cached, Pipeline, CachedPipeline} {
			var made [2]int64
			var joined [2]bool
			for round := range 4 {
				if sendErr, err := move(t, p.end[0], p.end[1], s, src, dst); sendErr != nil || err != nil {
					t.Fatalf("%v: %v, %v", s, sendErr, err)
				}
				for i, d := range p.dom {
					st := d.Stats()
					grown := st.Made > made[i]
					if grown && s == CachedPipeline && round >= joinAfter && !joined[i] && st.Made == made[i]+1 {
						joined[i], grown = true, false
					}
					if round > 0 && grown == s.keeps() {
						t.Errorf("%v, round %d, end %d: %d registrations after %d", s, round, i, st.Made, made[i])
					}
					made[i] = st.Made
				}
			}
			if s == CachedPipeline { // overlapping memory: the boundaries are those of addresses
				if sendErr, err := move(t, p.end[0], p.end[1], s, src[100<<10:900<<10], dst[100<<10:900<<10]); sendErr != nil ||
					err != nil {
					t.Fatal(sendErr, err)
				}
				for i, d := range p.dom {
					if got := d.Stats().Made; got > made[i]+1 {
						t.Errorf("end %d: %d registrations for a part, of which at most the first is not there", i, got-made[i])
					}
				}
			}
			wantSame(t, dst, src)
			for _, d := range p.dom {
				if err := d.Flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestPipelineIsBounded: a message larger than the budget goes by the pipelines, never with more than the budget
// registered.
func TestPipelineIsBounded(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		const budget = 640 << 10
		p := newPair(t, a, b, budget, small)
		src, dst := random(t, 4<<20, 3), Bytes(pages(t, 4<<20))
		for _, s := range []Strategy{Pipeline, CachedPipeline, Pipeline} {
			clear(dst)
			if sendErr, err := move(t, p.end[0], p.end[1], s, src, dst); sendErr != nil || err != nil {
				t.Fatalf("%v: %v, %v", s, sendErr, err)
			}
			wantSame(t, dst, src)
			for i, d := range p.dom {
				if st := d.Stats(); st.Peak > budget || st.MadeBytes < 3<<20 {
					t.Errorf("%v, end %d: %+v", s, i, st)
				}
			}
		}
		for _, s := range []Strategy{OnDemand, Cached} {
			l, r := p.link(LinkConfig{SlotBytes: 1 << 10, Slots: 2, Depth: 1})
			sendErr, err := move(t, l, r, s, src, dst)
			if sendErr == nil || !errors.Is(err, ErrBudget) && !errors.Is(sendErr, ErrBudget) {
				t.Errorf("%v of more than the budget: %v, %v", s, sendErr, err)
			}
		}
	})
}

// TestReceiverCutsFragments: a receiver with a smaller budget than the sender's takes smaller fragments.
func TestReceiverCutsFragments(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		p := newPair(t, a, b, 0, small)
		buffers := int64(2 * p.end[1].n * small.SlotBytes)
		p.dom[1].mu.Lock()
		p.dom[1].budget, p.dom[1].book.budget = buffers+90<<10, uint64(buffers+90<<10)
		p.dom[1].mu.Unlock()
		src, dst := random(t, 4<<20, 13), Bytes(pages(t, 4<<20))
		for _, s := range []Strategy{Pipeline, CachedPipeline, CachedPipeline} {
			clear(dst)
			if sendErr, err := move(t, p.end[0], p.end[1], s, src, dst); sendErr != nil || err != nil {
				t.Fatalf("%v: %v, %v", s, sendErr, err)
			}
			wantSame(t, dst, src)
		}
		if st := p.dom[1].Stats(); st.Peak > buffers+90<<10 {
			t.Errorf("%+v", st)
		}
	})
}

// TestManyLinksShareABudget: links both ways between two domains that have room for two fragments each, or for many
// that are found again.
func TestManyLinksShareABudget(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		for _, fragments := range []int64{2, 7, 40} {
			t.Run(fmt.Sprint(fragments), func(t *testing.T) { shareBudget(t, a, b, fragments) })
		}
	})
}

func shareBudget(t *testing.T, a, b rdma.Device, fragments int64) {
	cfg := LinkConfig{SlotBytes: 1 << 10, Slots: 2, Fragment: 64 << 10, Depth: 2}
	const links = 6
	buffers := int64(2*(cfg.Slots+2*cfg.Depth+controlSlots)*cfg.SlotBytes) * (links + 1)
	p := newPair(t, a, b, buffers+fragments*cfg.Fragment, cfg)
	src := random(t, 1<<20, 4)
	type job struct {
		from, to *Link
		dst      Bytes
	}
	var jobs []job
	for i := range links {
		l, r := p.link(cfg)
		if i%2 == 1 {
			l, r = r, l
		}
		jobs = append(jobs, job{l, r, pages(t, len(src))})
	}
	var wg sync.WaitGroup
	for i, j := range jobs {
		wg.Go(func() {
			s := []Strategy{Pipeline, CachedPipeline}[i/2%2]
			for round := range 4 {
				clear(j.dst)
				if sendErr, err := move(t, j.from, j.to, s, src, j.dst); sendErr != nil || err != nil {
					t.Errorf("link %d, %v, round %d: %v, %v", i, s, round, sendErr, err)
					return
				} else if !bytes.Equal(j.dst, src) {
					t.Errorf("link %d, round %d: other bytes", i, round)
				}
			}
		})
	}
	wg.Wait()
	for _, d := range p.dom {
		if st := d.Stats(); st.Peak > d.Budget() {
			t.Errorf("%+v, budget %d", st, d.Budget())
		}
	}
}

// TestNextMessageComesEarly: a receiver that is late to end one message loses nothing of the next, whose sender does
// not wait with its first data.
func TestNextMessageComesEarly(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		p := newPair(t, a, b, 0, small)
		src, dst := random(t, 40000, 7), Bytes(pages(t, 40000))
		ctx := bound(t)
		sent := make(chan error, 1)
		const messages = 300
		go func() {
			for range messages {
				if err := p.end[0].Send(ctx, Copy, src); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		for i := range messages {
			clear(dst)
			if _, err := p.end[1].Receive(ctx, into(dst)); err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
			wantSame(t, dst, src)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	})
}

// TestParkedFramesBeginTheNextMessage: by hand, what came early.
func TestParkedFramesBeginTheNextMessage(t *testing.T) {
	dev := newCounted(t)
	l, err := NewLink(NewDomain(dev, Config{}), small)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	head := func(f frame, payload string) []byte {
		b := make([]byte, headBytes)
		f.seq, f.length = 1, uint32(len(payload))
		f.put(b)
		return append(b, payload...)
	}
	match, data := head(frame{kind: kindMatch, strategy: Copy, size: 6, at: 6}, "ab"),
		head(frame{kind: kindData, at: 2}, "cdef")
	for i, b := range [][]byte{match, data} {
		copy(l.slot(i), b)
		c := rdma.Completion{ID: uint64(i), Op: rdma.OpRecv, Bytes: len(b)}
		if err := l.complete(&c, deaf{}); err != nil {
			t.Fatal(err)
		}
	}
	l.seq++
	m := make(Bytes, 6)
	e := &receiving{l: l, place: into(m)}
	if err := e.unpark(); err != nil || string(m) != "abcdef" || !e.complete() {
		t.Fatalf("%q, %v", m, err)
	}
}

// TestReceiverRefuses: the sender hears why, and only this link is broken.
func TestReceiverRefuses(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		p := newPair(t, a, b, 0, small)
		other, peer := p.link(small)
		ctx := bound(t)
		refused := errors.New("no room for it")
		got := make(chan error, 1)
		go func() {
			_, err := p.end[1].Receive(ctx, func(int64) (Memory, error) { return nil, refused })
			got <- err
		}()
		src := random(t, 300000, 5)
		err := p.end[0].Send(ctx, Pipeline, src)
		if err == nil || !strings.Contains(err.Error(), refused.Error()) {
			t.Errorf("sender: %v", err)
		}
		if err := <-got; !errors.Is(err, refused) {
			t.Errorf("receiver: %v", err)
		}
		if err := p.end[0].Send(ctx, Copy, src); !errors.Is(err, ErrBroken) {
			t.Errorf("broken link: %v", err)
		}
		dst := Bytes(pages(t, len(src)))
		if sendErr, err := move(t, other, peer, Pipeline, src, dst); sendErr != nil || err != nil {
			t.Errorf("other link: %v, %v", sendErr, err)
		}
	})
}

// TestGivingUpFreesTheMemory: a send whose receiver does not come ends with its context, and nothing stays registered.
func TestGivingUpFreesTheMemory(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		p := newPair(t, a, b, 0, small)
		ctx, cancel := context.WithCancel(bound(t))
		src := random(t, 1<<20, 6)
		started := make(chan struct{})
		done := make(chan error, 2)
		gone := make(chan struct{})
		go func() {
			err := p.end[0].Send(ctx, Pipeline, src)
			close(gone)
			done <- err
		}()
		go func() {
			_, err := p.end[1].Receive(bound(t), func(n int64) (Memory, error) {
				close(started)
				<-gone // an answer before would race with the end of ctx
				return Bytes(pages(t, int(n))), nil
			})
			done <- err
		}()
		<-started
		cancel()
		for range 2 {
			if err := <-done; err == nil {
				t.Error("ended well")
			}
		}
		for i, d := range p.dom {
			if st := d.Stats(); st.Entries != 1 {
				t.Errorf("end %d: left registered: %+v", i, st)
			}
		}
	})
}

func FuzzDecodeFrame(f *testing.F) {
	b := make([]byte, headBytes+3)
	(&frame{kind: kindMatch, strategy: Pipeline, depth: 4, seq: 1, length: 3, size: 100, at: 50, fragment: 4096}).put(b)
	f.Add(b)
	ready := make([]byte, headBytes+2*keyBytes)
	(&frame{kind: kindReady, seq: 1, length: 2 * keyBytes, size: 8192, at: 3}).put(ready)
	putPlaces(ready[headBytes:], []place{{1, 2}, {3, 4}})
	f.Add(ready)
	f.Fuzz(func(t *testing.T, b []byte) {
		g, payload, err := decodeFrame(b)
		if err != nil {
			return
		}
		again := make([]byte, headBytes, len(b))
		g.put(again)
		h, rest, err := decodeFrame(append(again, payload...))
		if err != nil || h != g || !bytes.Equal(rest, payload) {
			t.Fatalf("%+v, then %+v: %v", g, h, err)
		}
		if places, err := appendPlaces(nil, payload); err == nil {
			back := make([]byte, len(payload))
			putPlaces(back, places)
			if len(places) > announcedMax || !bytes.Equal(back, payload) {
				t.Fatalf("%d places of %d bytes", len(places), len(payload))
			}
		}
		if g.kind == kindMatch && g.checkMatch() == nil &&
			(int64(len(payload)) > g.size || g.at > g.size || g.depth > depthMax) {
			t.Fatalf("%+v was let in", g)
		}
	})
}
