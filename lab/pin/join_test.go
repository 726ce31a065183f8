package pin

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

// tallied counts what is posted on a device.
type tallied struct {
	rdma.Device
	sends, writes, ends atomic.Int64 // ends: writes with immediate
	refuses             int          // bytes of memory that cannot be registered at once
	refused             atomic.Int64
}

func (d *tallied) Register(mem []byte, access rdma.Access) (rdma.Region, error) {
	if d.refuses > 0 && len(mem) >= d.refuses {
		d.refused.Add(1)
		return nil, unix.ENOMEM
	}
	return d.Device.Register(mem, access)
}

type talliedPair struct {
	rdma.QueuePair
	d *tallied
}

func (d *tallied) NewQP(cfg rdma.QPConfig) (rdma.QueuePair, error) {
	q, err := d.Device.NewQP(cfg)
	return &talliedPair{q, d}, err
}

func (q *talliedPair) PostSend(wrs ...rdma.SendWR) error {
	for _, w := range wrs {
		switch w.Op {
		case rdma.OpSend:
			q.d.sends.Add(1)
		case rdma.OpWrite:
			q.d.writes.Add(1)
		case rdma.OpWriteImm:
			q.d.ends.Add(1)
		}
	}
	return q.QueuePair.PostSend(wrs...)
}

// TestFoundMemoryIsAnnouncedAtOnce: what both ends have registered is announced with the answer and ends with one
// immediate; once it is registered as one piece it is written as one, and nothing more than what was on its way is
// copied.
func TestFoundMemoryIsAnnouncedAtOnce(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		from, to := &tallied{Device: a}, &tallied{Device: b}
		p := newPair(t, from, to, 0, small)
		const size = 1 << 20
		src, dst := random(t, size, 21), Bytes(pages(t, size))
		joined := func() bool { return p.dom[0].Stats().Entries == 2 && p.dom[1].Stats().Entries == 2 }
		rest := 3 // rounds with joined memory
		for round := 0; round < 40 && rest > 0; round++ {
			one := joined()
			if one {
				rest--
			}
			from.writes.Store(0)
			from.ends.Store(0)
			to.sends.Store(0)
			clear(dst)
			if sendErr, err := move(t, p.end[0], p.end[1], CachedPipeline, src, dst); sendErr != nil || err != nil {
				t.Fatal(sendErr, err)
			}
			wantSame(t, dst, src)
			writes, ends, answers := from.writes.Load(), from.ends.Load(), to.sends.Load()
			switch {
			case round == 0 && ends < 4:
				t.Errorf("round %d: %d ends: the pipeline registers and announces piece by piece", round, ends)
			case round > 0 && ends != 1:
				t.Errorf("round %d: %d ends", round, ends)
			case one && (writes != 0 || answers > 4): // ACK, DONE, and TAKEN for copies
				t.Errorf("round %d: %d writes beside the last, %d answers", round, writes, answers)
			}
		}
		for i, d := range p.dom {
			if st := d.Stats(); st.Entries != 2 || st.Bytes > size+int64(2*p.end[i].n*small.SlotBytes) {
				t.Errorf("end %d: pieces are still registered: %+v", i, st)
			}
		}
		for _, n := range []int{40000, 500000, size - 1} { // parts lie in it
			if sendErr, err := move(t, p.end[0], p.end[1], CachedPipeline, src[size-n:], dst[:n]); sendErr != nil || err != nil {
				t.Fatal(sendErr, err)
			}
			wantSame(t, dst[:n], src[size-n:])
			for i, d := range p.dom {
				if st := d.Stats(); st.Entries != 2 {
					t.Errorf("end %d, %d bytes of it: %+v", i, n, st)
				}
			}
		}
	})
}

// TestJoinTakesNobodysRoom: memory stays registered in pieces where one piece would have others deregistered, or is
// too large a part of the budget.
func TestJoinTakesNobodysRoom(t *testing.T) {
	const size = 1 << 20
	each(t, func(t *testing.T, a, b rdma.Device) {
		for name, room := range map[string]int64{"pieces fill it": size + 200<<10, "too large a part": 4 * size} {
			t.Run(name, func(t *testing.T) {
				buffers := int64(2 * (small.Slots + 2*small.Depth + controlSlots) * small.SlotBytes)
				p := newPair(t, a, b, buffers+room, small)
				src, dst := random(t, size, 22), Bytes(pages(t, size))
				var made [2]int64
				for round := range 6 {
					if sendErr, err := move(t, p.end[0], p.end[1], CachedPipeline, src, dst); sendErr != nil || err != nil {
						t.Fatal(sendErr, err)
					}
					wantSame(t, dst, src)
					for i, d := range p.dom {
						st := d.Stats()
						if round > 0 && st.Made != made[i] || st.Evicted > 0 {
							t.Errorf("round %d, end %d: %d registrations before, %+v", round, i, made[i], st)
						}
						made[i] = st.Made
					}
				}
			})
		}
	})
}

// TestJoinRefused: a device without room for pieces and whole goes on with the pieces, and is not asked with each
// message.
func TestJoinRefused(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		const size = 1 << 20
		dev := [2]*tallied{{Device: a, refuses: size}, {Device: b, refuses: size}}
		p := newPair(t, dev[0], dev[1], 0, small)
		src, dst := random(t, size, 23), Bytes(pages(t, size))
		for range 12 {
			clear(dst)
			if sendErr, err := move(t, p.end[0], p.end[1], CachedPipeline, src, dst); sendErr != nil || err != nil {
				t.Fatal(sendErr, err)
			}
			wantSame(t, dst, src)
		}
		for i := range dev {
			if n := dev[i].refused.Load(); n != 1 {
				t.Errorf("end %d was asked %d times", i, n)
			}
		}
	})
}

// TestLedgerReplace: pieces of a registration go with their last user; pieces that the new one does not serve stay.
func TestLedgerReplace(t *testing.T) {
	l := &ledger{}
	used, idle := must(t, l, kept(0, 10)), must(t, l, kept(10, 20))
	l.give(idle)
	longer, other := must(t, l, kept(15, 25)), must(t, l, want{span: span{12, 14}, keep: true, access: rdma.RemoteWrite})
	l.give(longer)
	l.give(other)
	whole := must(t, l, kept(0, 20))
	if leave := l.replace(whole); len(leave) != 1 || leave[0] != idle || !idle.leaving {
		t.Fatalf("to deregister: %v", leave)
	}
	if v, e, _ := l.take(kept(2, 8)); v != found || e != whole {
		t.Fatalf("verdict %v: a piece was found", v)
	}
	if !l.give(used) {
		t.Error("a piece stays without a user")
	}
	if longer.leaving || !longer.findable() || !other.findable() {
		t.Error("what is not a piece has to go")
	}
}

// TestSenderSkipsWhatItSent: the receiver may let fragments begin at an offset below what was sent by copies, if it
// says where everything after that is written.
func TestSenderSkipsWhatItSent(t *testing.T) {
	dev := newCounted(t)
	l, err := NewLink(NewDomain(dev, Config{}), small)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sent := func() *sending {
		w := window{plan: plan{size: 1 << 20, offset: 100 << 10, fragment: 64 << 10}, depth: 3}
		return &sending{l: l, s: CachedPipeline, copied: 70 << 10, w: w}
	}
	answer := func(e *sending, offset, first int64, places int) error {
		b := make([]byte, places*keyBytes)
		list := make([]place, places)
		for i := range list {
			list[i] = place{7, uint64(i) << 16}
		}
		putPlaces(b, list)
		return e.frame(&frame{kind: kindAck, size: offset, at: first, fragment: 64 << 10}, b)
	}
	e := sent()
	err = answer(e, 0, 64<<10, 16)
	if err != nil || e.posted != 1 || e.w.next != 1 || len(e.places) != 15 || e.places[0] != (place{7, 70 << 10}) {
		t.Fatalf("%v: fragment %d at %+v, %d places", err, e.posted, e.places[0], len(e.places))
	}
	if from, to := e.at(1); from != 70<<10 || to != 128<<10 {
		t.Errorf("[%d, %d) is written first", from, to)
	}
	for _, c := range []struct {
		offset, first int64
		places        int
	}{{0, 64 << 10, 0}, {0, 64 << 10, 1}, {0, 64 << 10, 17}, {101 << 10, 64 << 10, 1}, {0, 65 << 10, 2}, {0, 0, 2}} {
		if err := answer(sent(), c.offset, c.first, c.places); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

// fewSGE is a device whose requests list so many pieces at most.
type fewSGE struct {
	rdma.Device
	n int
}

func (d fewSGE) Limits() rdma.Limits {
	l := d.Device.Limits()
	l.MaxSGE = d.n
	return l
}

// TestFewSGE: the sender's memory is registered in more pieces than a request can list, the receiver's in one.
func TestFewSGE(t *testing.T) {
	for _, n := range []int{1, 2, 3} {
		f := mem.NewFabric(mem.Config{Seed: 5, DelayMin: 5 * time.Millisecond, DelayMax: 5 * time.Millisecond,
			PeerTimeout: time.Second})
		a, b := fewSGE{closeLater(t, f.Device("a")), n}, closeLater(t, f.Device("b"))
		p := newPair(t, a, b, 0, LinkConfig{SlotBytes: 8 << 10, Slots: 4, Fragment: 4 << 10, Depth: 3})
		src, dst := random(t, 2<<20, 1), Bytes(pages(t, 2<<20))
		keep := func(end int, m []byte) {
			pin, err := p.dom[end].Try(Ask{Memory: m, Access: rdma.RemoteWrite, Keep: true})
			if err != nil {
				t.Fatal(err)
			}
			pin.Release()
		}
		keep(1, dst)
		for at := 0; at < len(src); at += 4 << 10 {
			keep(0, src[at:at+4<<10])
		}
		for range 2 {
			if s, r := move(t, p.end[0], p.end[1], CachedPipeline, src, dst); s != nil || r != nil || !bytes.Equal(src, dst) {
				t.Fatalf("%d pieces: %v, %v", n, s, r)
			}
		}
	}
}
