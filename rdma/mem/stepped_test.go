package mem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fataler is what the stepped tests need of testing.T and rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// side is one end of a connection on a stepped fabric.
type side struct {
	t    fataler
	name string
	dev  *Device
	qp   rdma.QueuePair
	cq   rdma.CompletionQueue
	mem  rdma.Region
}

func newSide(t fataler, f *Fabric, name string) *side {
	t.Helper()
	s := &side{t: t, name: name, dev: f.Device(name)}
	var err error
	if s.cq, err = s.dev.NewCQ(16); err != nil {
		t.Fatalf("%v", err)
	}
	if s.qp, err = s.dev.NewQP(rdma.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, User: s}); err != nil {
		t.Fatalf("%v", err)
	}
	if s.mem, err = s.dev.AllocRegion(4096, rdma.RemoteRead|rdma.RemoteWrite); err != nil {
		t.Fatalf("%v", err)
	}
	return s
}

// join makes two connected sides.
func join(t fataler, f *Fabric, a, b string) (*side, *side) {
	t.Helper()
	x, y := newSide(t, f, a), newSide(t, f, b)
	for _, s := range [2][2]*side{{x, y}, {y, x}} {
		if err := s[0].qp.Connect(context.Background(), s[1].qp.Address()); err != nil {
			t.Fatalf("%v", err)
		}
	}
	return x, y
}

func (s *side) recv(id uint64) {
	s.t.Helper()
	if err := s.qp.PostRecv(rdma.RecvWR{ID: id, List: []rdma.SGE{{Region: s.mem, Length: 64}}}); err != nil {
		s.t.Fatalf("%v", err)
	}
}

func (s *side) send(id uint64) {
	s.t.Helper()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], id)
	if err := s.qp.PostSend(rdma.SendWR{ID: id, Op: rdma.OpSend, Inline: b[:], Imm: uint32(id)}); err != nil {
		s.t.Fatalf("%v", err)
	}
}

// log takes the completions there are, one word each.
func (s *side) log() string {
	var words []string
	var out [64]rdma.Completion
	for _, c := range out[:s.cq.Poll(out[:])] {
		words = append(words, fmt.Sprintf("%s%d=%v", c.Op, c.ID, c.Status))
	}
	return strings.Join(words, " ")
}

func (s *side) want(log string) {
	s.t.Helper()
	if got := s.log(); got != log {
		s.t.Fatalf("%s at %v: completions %q, want %q", s.name, s.dev.fabric.Now(), got, log)
	}
}

func closeSides(sides ...*side) {
	for _, s := range sides {
		_ = s.dev.Close()
	}
}

func drain(f *Fabric) (steps int) {
	for f.Step() {
		steps++
	}
	return steps
}

// history runs a small mesh with traffic, faults and answers, and writes down all that happens.
func history(t fataler, seed uint64) string {
	f := NewFabric(Config{Seed: seed, Stepped: true, DelayMax: time.Millisecond})
	names := []string{"a", "b", "c"}
	var sides []*side
	for i, n := range names {
		for _, m := range names[:i] {
			x, y := join(t, f, n, m)
			sides = append(sides, x, y)
		}
	}
	for _, s := range sides {
		for i := range uint64(10) {
			s.recv(i)
			s.send(i)
		}
	}
	var out strings.Builder
	for step := 0; f.Step(); step++ {
		switch step {
		case 20:
			f.Stop("b")
		case 30:
			f.Cut("a", "c")
		case 50:
			f.Resume("b")
			f.Heal("a", "c")
		case 90:
			f.Kill("c")
		}
		for i, s := range sides {
			if l := s.log(); l != "" {
				fmt.Fprintf(&out, "%v %d.%s %s\n", f.Now(), i, s.name, l)
			}
		}
	}
	closeSides(sides...)
	return out.String()
}

// TestSeedReplays: the same seed gives the same history, another seed another one.
func TestSeedReplays(t *testing.T) {
	for seed := range uint64(20) {
		first := history(t, seed)
		if diff := cmp.Diff(first, history(t, seed)); diff != "" {
			t.Fatalf("seed %d does not replay: %s", seed, diff)
		}
		if first == history(t, seed+1000) {
			t.Fatalf("seeds %d and %d have one history", seed, seed+1000)
		}
	}
}

// TestOrderWithinAndBetweenPairs: within a pair messages come in order, between pairs the seed reorders.
func TestOrderWithinAndBetweenPairs(t *testing.T) {
	overtakes := 0
	rapid.Check(t, func(t *rapid.T) {
		f := NewFabric(Config{Seed: rapid.Uint64().Draw(t, "seed"), Stepped: true,
			DelayMax: time.Duration(rapid.IntRange(0, 1000).Draw(t, "delay"))})
		a, b := join(t, f, "a", "b")
		c, d := join(t, f, "a", "b")
		defer closeSides(a, b)
		n := rapid.Uint64Range(1, 40).Draw(t, "n")
		for i := range n {
			for _, s := range []*side{b, d} {
				s.recv(i)
			}
			a.send(i)
			c.send(i)
		}
		next := map[*side]uint64{}
		for f.Step() {
			for _, s := range []*side{b, d} {
				var out [8]rdma.Completion
				for _, got := range out[:s.cq.Poll(out[:])] {
					if got.ID != next[s] || got.Imm != uint32(next[s]) || got.Status != rdma.StatusOK {
						t.Fatalf("completion %+v, want id %d", got, next[s])
					}
					next[s]++
				}
			}
			if next[d] > next[b] { // posted later, arrived earlier
				overtakes++
			}
		}
		if next[b] != n || next[d] != n {
			t.Fatalf("%d and %d of %d messages arrived", next[b], next[d], n)
		}
	})
	if overtakes == 0 {
		t.Error("no pair ever overtook the other")
	}
}

func TestCutIsNoticedUnlessHealed(t *testing.T) {
	f := NewFabric(Config{Stepped: true, PeerTimeout: time.Second})
	a, b := join(t, f, "a", "b")
	c, d := join(t, f, "a", "c")
	defer closeSides(a, b, d)
	for _, s := range []*side{b, d} {
		s.recv(1)
		s.recv(2)
	}
	f.Cut("b", "a")
	a.send(1)
	c.send(1)
	f.Advance(time.Second / 2)
	for at, ok := f.Next(); ok && at <= f.Now(); at, ok = f.Next() {
		f.Step()
	}
	a.want("")
	b.want("")
	d.want("recv1=ok")
	c.want("send1=ok")
	f.Heal("a", "b")
	drain(f)
	b.want("recv1=ok")
	a.want("send1=ok")

	f.Cut("a", "b")
	a.send(2)
	drain(f)
	a.want("send2=disconnected")
	b.want("recv2=flushed")
	d.want("")
}

func TestStopIsNotNoticed(t *testing.T) {
	f := NewFabric(Config{Stepped: true})
	a, b := join(t, f, "a", "b")
	defer closeSides(a, b)
	b.recv(1)
	a.recv(2)
	f.Stop("b")
	a.send(1)
	b.send(2)
	if n := drain(f); n != 0 {
		t.Errorf("%d events happened while one side was stopped", n)
	}
	f.Advance(time.Hour)
	a.want("")
	b.want("")
	f.Resume("b")
	drain(f)
	a.want("recv2=ok send1=ok")
	b.want("recv1=ok send2=ok")
}

func TestKillIsNoticedAfterPeerTimeout(t *testing.T) {
	f := NewFabric(Config{Stepped: true, PeerTimeout: 3 * time.Second})
	a, b := join(t, f, "a", "b")
	defer closeSides(a, b)
	a.recv(1)
	a.send(2)
	f.Kill("b")
	b.want("")
	a.want("")
	drain(f)
	a.want("send2=disconnected recv1=flushed")
	if f.Now() != 3*time.Second {
		t.Errorf("noticed after %v", f.Now())
	}
	again := newSide(t, f, "b")
	defer closeSides(again)
	if again.dev == b.dev {
		t.Error("a killed device came back as it was")
	}
}

// TestDeliveredButNotTold: a death between delivery and acknowledgement is one of the histories.
func TestDeliveredButNotTold(t *testing.T) {
	f := NewFabric(Config{Stepped: true, PeerTimeout: -1})
	a, b := join(t, f, "a", "b")
	defer closeSides(a, b)
	b.recv(1)
	a.send(1)
	f.Step()
	b.want("recv1=ok")
	f.Cut("a", "b")
	drain(f)
	a.want("send1=disconnected")
}

func TestReceiverTimeoutIsVirtual(t *testing.T) {
	f := NewFabric(Config{Stepped: true, ReceiverTimeout: time.Minute})
	a, b := join(t, f, "a", "b")
	defer closeSides(a, b)
	a.send(1)
	f.Step()
	if at, ok := f.Next(); !ok || at != time.Minute {
		t.Errorf("next event at %v, %v", at, ok)
	}
	b.recv(1)
	drain(f)
	b.want("recv1=ok")
	a.want("send1=ok")
	a.send(2)
	drain(f)
	a.want("send2=receiver not ready")
}

// TestSteppedConnectDoesNotWait: sends are held until the peer connects.
func TestSteppedConnectDoesNotWait(t *testing.T) {
	f := NewFabric(Config{Stepped: true})
	a, b := newSide(t, f, "a"), newSide(t, f, "b")
	defer closeSides(a, b)
	if err := a.qp.Connect(context.Background(), b.qp.Address()); err != nil {
		t.Fatal(err)
	}
	a.send(1)
	b.recv(1)
	if n := drain(f); n != 0 {
		t.Errorf("%d events before the peer connected", n)
	}
	if err := b.qp.Connect(context.Background(), a.qp.Address()); err != nil {
		t.Fatal(err)
	}
	drain(f)
	b.want("recv1=ok")
}

func TestSteppedRegionCloseDoesNotWait(t *testing.T) {
	f := NewFabric(Config{Stepped: true})
	a, b := join(t, f, "a", "b")
	defer closeSides(a, b)
	a.recv(1)
	if err := a.mem.Close(); !errors.Is(err, rdma.ErrState) {
		t.Errorf("closing a region in use: %v", err)
	}
	a.qp.Abort()
	if err := a.mem.Close(); err != nil {
		t.Error(err)
	}
}

func BenchmarkStep(b *testing.B) {
	f := NewFabric(Config{Stepped: true, DelayMax: time.Millisecond})
	x, y := join(b, f, "a", "b")
	defer closeSides(x, y)
	recv := []rdma.RecvWR{{List: []rdma.SGE{{Region: y.mem, Length: 64}}}}
	send := []rdma.SendWR{{Op: rdma.OpSend, List: []rdma.SGE{{Region: x.mem, Length: 64}}}}
	out := make([]rdma.Completion, 4)
	b.ReportAllocs()
	for b.Loop() {
		if x.qp.PostSend(send...) != nil || y.qp.PostRecv(recv...) != nil {
			b.Fatal("post")
		}
		for f.Step() {
		}
		x.cq.Poll(out)
		y.cq.Poll(out)
	}
}
