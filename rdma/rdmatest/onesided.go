package rdmatest

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/rdmcfs/rdmcfs/rdma"
)

var oneSidedChecks = []check{
	{"OneSided/Write", oneSidedWrite},
	{"OneSided/WriteImm", oneSidedWriteImm},
	{"OneSided/Read", oneSidedRead},
	{"OneSided/ReadsInFlight", oneSidedReads},
	{"OneSided/MixedOrder", oneSidedMixed},
	{"OneSided/CounterIsAtomic", oneSidedCounter},
	{"OneSided/FlagBehindData", oneSidedFlag},
}

func oneSidedWrite(t *testing.T, p *Pair) {
	a, b := p.link(t, options{bytes: 4 << 20})
	random(a.mem.Bytes(), 21)
	for i, c := range []struct{ n, at int }{{0, 0}, {1, 3}, {8, 8}, {8, 5}, {16, 4}, {4090, 6}, {100003, 1},
		{3 << 20, 8}} {
		clear(b.mem.Bytes())
		a.post(rdma.SendWR{ID: uint64(i), Op: rdma.OpWrite, List: a.list(100, c.n), RemoteKey: b.mem.Key(),
			RemoteAddr: uint64(c.at)})
		if got := a.takeSent(uint64(i), rdma.StatusOK); got.Bytes != c.n {
			t.Errorf("write of %d: %+v", c.n, got)
		}
		wantBytes(t, b.bytes(c.at, c.n), a.bytes(100, c.n), "written")
		for _, k := range []int{c.at - 1, c.at + c.n} {
			if k >= 0 && b.mem.Bytes()[k] != 0 {
				t.Fatalf("write of %d at %d touched byte %d", c.n, c.at, k)
			}
		}
	}
	b.empty(b.rcvd)
}

func oneSidedWriteImm(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	random(a.bytes(0, 5000), 22)
	if err := b.qp.PostRecv(rdma.RecvWR{ID: 8}, rdma.RecvWR{ID: 9}); err != nil {
		t.Fatal(err)
	}
	a.post(
		rdma.SendWR{ID: 1, Op: rdma.OpWriteImm, List: a.list(0, 5000), RemoteKey: b.mem.Key(), RemoteAddr: 24, Imm: 5},
		rdma.SendWR{ID: 2, Op: rdma.OpWriteImm, Imm: 6})
	c := b.takeRcvd(8, rdma.StatusOK)
	if c.Op != rdma.OpRecvWriteImm || c.Imm != 5 || !c.HasImm || c.Bytes != 5000 {
		t.Fatalf("completion %+v", c)
	}
	wantBytes(t, b.bytes(24, 5000), a.bytes(0, 5000), "written")
	if c := b.takeRcvd(9, rdma.StatusOK); c.Imm != 6 || c.Bytes != 0 {
		t.Fatalf("completion %+v", c)
	}
	a.take(a.sent, 2)
}

func oneSidedRead(t *testing.T, p *Pair) {
	a, b := p.link(t, options{bytes: 4 << 20})
	random(b.mem.Bytes(), 23)
	for i, n := range []int{0, 1, 8, 5000, 3 << 20} {
		clear(a.mem.Bytes())
		list := []rdma.SGE{a.sge(9, n/3), a.sge(9+n/3, n-n/3)}
		a.post(rdma.SendWR{ID: uint64(i), Op: rdma.OpRead, List: list, RemoteKey: b.mem.Key(), RemoteAddr: 77})
		if c := a.takeSent(uint64(i), rdma.StatusOK); c.Op != rdma.OpRead || c.Bytes != n {
			t.Fatalf("completion %+v", c)
		}
		wantBytes(t, a.bytes(9, n), b.bytes(77, n), "read")
	}
}

// oneSidedReads posts more reads than any provider keeps in flight.
func oneSidedReads(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	random(b.mem.Bytes(), 24)
	const n, size = 100, 3000
	for i := range n {
		a.post(rdma.SendWR{ID: uint64(i), Op: rdma.OpRead, List: a.list(i*size, size), RemoteKey: b.mem.Key(),
			RemoteAddr: uint64(i * size)})
	}
	for i := range n {
		a.takeSent(uint64(i), rdma.StatusOK)
	}
	wantBytes(t, a.bytes(0, n*size), b.bytes(0, n*size), "read")
}

// oneSidedMixed: completions come in the order of posts, whatever the operations; both sides at once.
func oneSidedMixed(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	const rounds = 40
	for i := range rounds {
		a.recv(uint64(i), 0, 64)
		b.recv(uint64(i), 0, 64)
	}
	post := func(from, to *end) {
		for i := range rounds {
			id := uint64(3 * i)
			from.post(
				rdma.SendWR{ID: id, Op: rdma.OpRead, List: from.list(4096, 20000), RemoteKey: to.mem.Key(), RemoteAddr: 65536},
				rdma.SendWR{ID: id + 1, Op: rdma.OpWrite, List: from.list(65536, 3000), RemoteKey: to.mem.Key(),
					RemoteAddr: 200000},
				rdma.SendWR{ID: id + 2, Op: rdma.OpSend, List: from.list(0, 32), Imm: uint32(i)})
		}
	}
	post(a, b)
	post(b, a)
	for _, e := range []*end{a, b} {
		for i, c := range e.take(e.sent, 3*rounds) {
			if c.ID != uint64(i) || c.Status != rdma.StatusOK {
				t.Fatalf("send completion %d: %+v", i, c)
			}
		}
		for i, c := range e.take(e.rcvd, rounds) {
			if c.ID != uint64(i) || c.Imm != uint32(i) {
				t.Fatalf("receive completion %d: %+v", i, c)
			}
		}
	}
}

// word is an aligned word of the end's memory.
func (e *end) word(offset int) *uint64 {
	return (*uint64)(unsafe.Pointer(&e.mem.Bytes()[offset]))
}

// await polls the word until it is at least want, and hands each value seen to look.
func (e *end) await(offset int, want uint64, look func(uint64)) {
	e.t.Helper()
	for start := time.Now(); ; runtime.Gosched() {
		v := atomic.LoadUint64(e.word(offset))
		look(v)
		if v >= want {
			return
		}
		if time.Since(start) > e.patience {
			e.t.Fatalf("word is %#x after %v, want %#x", v, e.patience, want)
		}
	}
}

// oneSidedCounter: a poller of a counter written remotely sees it grow, and never half of a value.
func oneSidedCounter(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	const rounds, step = 500, 1<<32 | 1
	go func() {
		var inline [8]byte
		for i := uint64(1); i <= rounds; {
			binary.NativeEndian.PutUint64(inline[:], i*step)
			wr := rdma.SendWR{ID: i, Op: rdma.OpWrite, Inline: inline[:], RemoteKey: b.mem.Key(), RemoteAddr: 64}
			err := a.qp.PostSend(wr)
			switch {
			case err == nil:
				i++
			case !errors.Is(err, rdma.ErrQueueFull):
				return
			default:
				if _, err := takeN(a.sent, 1, a.patience); err != nil {
					return
				}
			}
		}
	}()
	last := uint64(0)
	b.await(64, rounds*step, func(v uint64) {
		if v < last || v%step != 0 {
			t.Fatalf("counter went from %#x to %#x", last, v)
		}
		last = v
	})
}

// oneSidedFlag: on a provider with ordered writes a flag in the last word shows that the data is there.
func oneSidedFlag(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	if !b.dev.OrderedWrites() {
		t.Skip("writes are not ordered")
	}
	const size = 64 << 10
	for i := uint64(1); i <= 30; i++ {
		random(a.bytes(0, size-8), i)
		*a.word(size - 8) = i
		a.post(rdma.SendWR{ID: i, Op: rdma.OpWrite, List: a.list(0, size), RemoteKey: b.mem.Key()})
		b.await(size-8, i, func(uint64) {})
		wantBytes(t, b.bytes(0, size), a.bytes(0, size), "data before the flag")
		a.takeSent(i, rdma.StatusOK)
	}
}
