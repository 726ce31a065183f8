package mem

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// chainMessages pass each chain of the tests below.
const chainMessages = 5

// relays is a chain of devices that have posted all they do with messages of the first before any is sent: hop i joins devices i and i+1.
type relays struct {
	f    *Fabric
	hops [][2]*side
}

func newRelays(t *testing.T, cfg Config, devices int) *relays {
	t.Helper()
	cfg.Stepped = true
	c := &relays{f: NewFabric(cfg)}
	for i := range devices - 1 {
		a, b := join(t, c.f, fmt.Sprint("d", i), fmt.Sprint("d", i+1))
		c.hops = append(c.hops, [2]*side{a, b})
		for id := range uint64(chainMessages) {
			b.recv(id)
			if i > 0 {
				in := c.hops[i-1][1]
				send := rdma.SendWR{ID: id, Op: rdma.OpSend, List: []rdma.SGE{{Region: in.mem, Length: 8}}, Imm: uint32(id)}
				if err := a.qp.(rdma.Waiter).PostSendAfter(rdma.Receipts{QP: in.qp, Count: id + 1}, send); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return c
}

func (c *relays) start() {
	for id := range uint64(chainMessages) {
		c.hops[0][0].send(id)
	}
}

// run steps until nothing is scheduled.
func (c *relays) run() {
	for c.f.Step() {
	}
}

// ended tells how all requests of a side ended, in order.
func (s *side) ended() string {
	var b strings.Builder
	out := make([]rdma.Completion, 32)
	for _, c := range out[:s.cq.Poll(out)] {
		fmt.Fprintf(&b, "%v %d %v; ", c.Op, c.ID, c.Status)
	}
	return b.String()
}

// TestWaitsTakeOneWayEach: messages go through a chain of relays in the time of its hops, one way each, and no program has a hand in it.
func TestWaitsTakeOneWayEach(t *testing.T) {
	const way, devices = time.Millisecond, 6
	c := newRelays(t, Config{DelayMin: way, DelayMax: way}, devices)
	c.start()
	last := c.hops[devices-2][1]
	for last.cq.Poll(make([]rdma.Completion, 1)) == 0 {
		if !c.f.Step() {
			t.Fatal("nothing came")
		}
	}
	if got, want := c.f.Now(), (devices-1)*way; got != want {
		t.Errorf("the first message took %v, want %v", got, want)
	}
	c.run()
	if got := last.ended(); strings.Count(got, "recv") != chainMessages-1 || strings.Contains(got, "flushed") {
		t.Errorf("at the end of the chain: %s", got)
	}
}

// TestWaitsOutlastACut: a line that is cut while requests wait for others, and joined again, loses nothing.
func TestWaitsOutlastACut(t *testing.T) {
	c := newRelays(t, Config{Seed: 3, DelayMax: time.Millisecond, PeerTimeout: time.Minute}, 4)
	c.f.Cut("d1", "d2")
	c.start()
	for c.f.Now() < time.Second {
		if at, ok := c.f.Next(); !ok || at > time.Second {
			c.f.Advance(time.Second)
			continue
		}
		c.f.Step()
	}
	if got := c.hops[1][1].ended(); got != "" {
		t.Fatalf("behind the cut: %s", got)
	}
	c.f.Heal("d1", "d2")
	c.run()
	if got := c.hops[2][1].ended(); strings.Count(got, "ok") != chainMessages {
		t.Errorf("at the end of the chain: %s", got)
	}
}

// TestWaitsEndWithTheirSource: when the source dies, the relays' requests fail one after another, in one PeerTimeout in all.
func TestWaitsEndWithTheirSource(t *testing.T) {
	const timeout, way = time.Second, time.Millisecond
	c := newRelays(t, Config{Seed: 5, DelayMax: way, PeerTimeout: timeout}, 6)
	c.f.Kill("d0")
	last := c.hops[4][1]
	for got := ""; got == ""; got = last.ended() {
		if !c.f.Step() {
			t.Fatal("the end of the chain never noticed")
		}
	}
	if late := c.f.Now() - timeout; late < 0 || late > 10*way {
		t.Errorf("noticed %v after the time of the first", late)
	}
	for i, hop := range c.hops[1:] {
		if got := hop[0].ended(); !strings.HasPrefix(got, "send 0 awaited; send 1 flushed;") {
			t.Errorf("relay %d: %s", i+1, got)
		}
	}
}

// TestWaitsDoNotAllocate: relaying allocates nothing once all slots were used.
func TestWaitsDoNotAllocate(t *testing.T) {
	f := NewFabric(Config{Stepped: true})
	a, in := join(t, f, "a", "b")
	out, z := join(t, f, "b", "c")
	var n uint64
	recv := []rdma.RecvWR{{List: make([]rdma.SGE, 1)}}
	send := []rdma.SendWR{{Op: rdma.OpSend, List: []rdma.SGE{{Region: in.mem, Length: 8}}}}
	first := []rdma.SendWR{{Op: rdma.OpSend, List: []rdma.SGE{{Region: a.mem, Length: 8}}}}
	done := make([]rdma.Completion, 16)
	round := func() {
		n++
		for _, s := range []*side{in, z} {
			recv[0].List[0] = rdma.SGE{Region: s.mem, Length: 8}
			if err := s.qp.PostRecv(recv...); err != nil {
				t.Fatal(err)
			}
		}
		if err := out.qp.(rdma.Waiter).PostSendAfter(rdma.Receipts{QP: in.qp, Count: n}, send...); err != nil {
			t.Fatal(err)
		}
		if err := a.qp.PostSend(first...); err != nil {
			t.Fatal(err)
		}
		for f.Step() {
		}
		for _, s := range []*side{a, in, out, z} {
			s.cq.Poll(done)
		}
	}
	for range 300 {
		round()
	}
	if got := testing.AllocsPerRun(100, round); got > 0 {
		t.Errorf("%v allocations a message", got)
	}
}

// TestAwaitedFailsThoughTargetIsSilent: a wait that can't end fails also where nothing moves towards the peer.
func TestAwaitedFailsThoughTargetIsSilent(t *testing.T) {
	for _, how := range []string{"nothing", "stop", "cut"} {
		f := NewFabric(Config{Stepped: true, PeerTimeout: time.Hour})
		_, in := join(t, f, "a", "b")
		out, _ := join(t, f, "b", "c")
		in.recv(0)
		if err := out.qp.(rdma.Waiter).PostSendAfter(rdma.Receipts{QP: in.qp, Count: 1}, rdma.SendWR{ID: 7, Op: rdma.OpSend}); err != nil {
			t.Fatal(err)
		}
		switch how {
		case "stop":
			f.Stop("c")
		case "cut":
			f.Cut("b", "c")
		}
		in.qp.Abort()
		for at, ok := f.Next(); ok && at < time.Minute; at, ok = f.Next() {
			f.Step()
		}
		if got := out.ended(); !strings.Contains(got, "send 7 awaited") {
			t.Errorf("%s: %q, want the send to fail as awaited", how, got)
		}
	}
}

// TestRefusedWaitLeavesNothing: a pair keeps nothing of posts that were refused, nor of pairs that have ended.
func TestRefusedWaitLeavesNothing(t *testing.T) {
	f := NewFabric(Config{Stepped: true})
	_, in := join(t, f, "a", "b")
	for range 10 {
		out, _ := join(t, f, "b", "c")
		for _, op := range []rdma.Opcode{rdma.OpRecv, rdma.OpSend} {
			err := out.qp.(rdma.Waiter).PostSendAfter(rdma.Receipts{QP: in.qp, Count: 1}, rdma.SendWR{Op: op})
			if (err == nil) != (op == rdma.OpSend) {
				t.Errorf("post of %v: %v", op, err)
			}
		}
		if err := out.qp.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(in.qp.(*queuePair).waiters); n > 1 {
		t.Errorf("%d pairs are kept", n)
	}
}
