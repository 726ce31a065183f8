package rdmc

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// blocked is a Sink or Source whose calls wait for a gate.
type blocked struct{ gate chan struct{} }

func (b blocked) ReadBlock(uint64, []byte) error {
	<-b.gate
	return nil
}

func (b blocked) WriteBlock(uint64, []byte) error {
	<-b.gate
	return nil
}

// TestDSN_4_1_SendDoesNotWait holds that sends are queued: while no source can be read and no sink written, all calls
// that begin messages return, up to a bound that is reported to the caller; and memory does not grow with what is
// queued.
func TestDSN_4_1_SendDoesNotWait(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		all := devices(3)
		for i := range all {
			all[i] = newFaulty(all[i], 1, false)
		}
		c := newCluster(t, all)
		groups := c.all(GroupConfig{Number: 1, BlockSize: 1000})
		gate := make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		defer open()
		var before []int
		for i := range core.MaxQueued {
			size := uint64(1500)
			if i >= 100 {
				size = 0 // cheap, and queued like any other
			}
			root, err := groups[0].Send(Outgoing{Size: size, Source: blocked{gate}})
			if err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
			for _, g := range groups[1:] {
				if _, err := g.Receive(root.Announcement(), Receiver{Sink: blocked{gate}}); err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
			}
			if i == 0 {
				before = mostRegistered(all)
			}
		}
		if _, err := groups[0].Send(Outgoing{Size: 1500, Source: blocked{gate}}); !errors.Is(err, ErrInvalid) {
			t.Errorf("a message more than may be queued: %v", err)
		}
		open()
		closeAll(t, groups)
		if after := mostRegistered(all); !slices.Equal(before, after) {
			t.Errorf("registered memory grew from %d to %d bytes with the messages queued", before, after)
		}
	})
}

func mostRegistered(devices []rdma.Device) (bytes []int) {
	for _, d := range devices {
		_, most := d.(*faulty).registered()
		bytes = append(bytes, most)
	}
	return bytes
}

// TestDSN_4_1_CallbacksCallTheLibrary: every callback calls what it may. The root's Completed sends the next message,
// by blocks and as a small one; the members' callbacks ask, make groups on the same engine, and end
// others; nothing deadlocks.
func TestDSN_4_1_CallbacksCallTheLibrary(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(3))
		l := &library{t: t, c: c, sent: make(chan struct{}), told: make(chan struct{})}
		var groups []*Group
		for rank, e := range c.engines {
			cfg := GroupConfig{Number: 1, Members: make([]string, 3), Rank: rank, BlockSize: 1000, Unannounced: true,
				SmallBytes: 100, SilenceTimeout: starved}
			l.configure(&cfg, func() *Group { return groups[rank] })
			g, err := e.NewGroup(cfg)
			if err != nil {
				t.Fatal(err)
			}
			groups = append(groups, g)
		}
		connect(t, groups)
		l.send(groups[0])
		l.await(l.sent, "all messages to be sent")
		closeAll(t, groups)
		l.failFromCallback()
		l.await(l.told, "a failure to be told")
	})
}

// library is what the callbacks of TestDSN_4_1_CallbacksCallTheLibrary share.
type library struct {
	t    *testing.T
	c    *cluster
	sent chan struct{}
	told chan struct{}

	mu    sync.Mutex
	count int // of messages that the root's Completed was called for
}

func (l *library) await(done chan struct{}, what string) {
	l.t.Helper()
	select {
	case <-done:
	case <-testContext(l.t).Done():
		l.t.Fatalf("waited in vain for %s", what)
	}
}

func (l *library) configure(cfg *GroupConfig, own func() *Group) {
	cfg.Small = func(uint64, []byte) { l.ask(own()) }
	cfg.Incoming = func(size uint64) (Sink, error) {
		l.ask(own())
		l.another(cfg.Rank)
		return discard{}, nil
	}
	rank := cfg.Rank
	cfg.Completed = func(t *Transfer) {
		g := own()
		l.ask(g)
		switch {
		case rank != 0:
			l.another(rank)
		case l.last():
			close(l.sent)
		default:
			l.send(g)
		}
	}
	cfg.OnFailure = func(err error) { l.t.Errorf("rank %d: %v", rank, err) }
}

// last reports whether so many messages have ended that no more are sent.
func (l *library) last() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	return l.count == 30
}

// ask calls all that only asks.
func (l *library) ask(g *Group) {
	if err := g.Err(); err != nil {
		l.t.Errorf("rank %d: %v", g.cfg.Rank, err)
	}
	_, _ = g.Progress(), g.Addresses()
}

// send sends a small message and a large one, and waits for the small one's room if there is none.
func (l *library) send(g *Group) {
	sendSmall(l.t, g, []byte{1})
	if _, err := g.Send(Outgoing{Size: 5500, Source: discard{}}); err != nil {
		l.t.Errorf("send: %v", err)
	}
}

// another makes a group of one on the member's engine, uses it, and ends it.
func (l *library) another(rank int) {
	g, err := l.c.engines[rank].NewGroup(GroupConfig{Number: 9, Members: []string{"alone"}, BlockSize: 1000})
	if err != nil {
		l.t.Errorf("new group: %v", err)
		return
	}
	if _, err := g.Send(Outgoing{Size: 2000, Source: discard{}}); err != nil {
		l.t.Errorf("send alone: %v", err)
	}
	if err := g.Close(testContext(l.t)); err != nil {
		l.t.Errorf("close alone: %v", err)
	}
}

// failFromCallback makes a callback fail its group, and OnFailure ask of it.
func (l *library) failFromCallback() {
	var groups []*Group
	for rank, e := range l.c.engines {
		cfg := GroupConfig{Number: 2, Members: make([]string, 3), Rank: rank, BlockSize: 1000, Unannounced: true,
			SilenceTimeout: starved}
		cfg.Incoming = func(uint64) (Sink, error) {
			groups[rank].Fail([]int{rank}, errTest)
			return discard{}, nil
		}
		if rank == 0 {
			cfg.OnFailure = func(error) {
				if _, err := groups[0].Send(Outgoing{Size: 1, Source: discard{}}); !errors.Is(err, ErrFailed) {
					l.t.Errorf("send in a group that failed: %v", err)
				}
				groups[0].Fail(nil, errTest)
				close(l.told)
			}
		}
		g, err := e.NewGroup(cfg)
		if err != nil {
			l.t.Fatal(err)
		}
		groups = append(groups, g)
	}
	connect(l.t, groups)
	if _, err := groups[0].Send(Outgoing{Size: 50_000, Source: discard{}}); err != nil {
		l.t.Fatal(err)
	}
	for _, g := range groups {
		if err := g.Close(testContext(l.t)); !errors.Is(err, ErrMemberFailed) {
			l.t.Errorf("rank %d: %v", g.cfg.Rank, err)
		}
	}
}

// TestDSN_4_2_CallersCodeIsNotOnThePoller blocks every callback, source and sink of one group; another group of the
// same engines, which share their poller, goes on.
func TestDSN_4_2_CallersCodeIsNotOnThePoller(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(3))
		gate := make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		defer open()
		var held []*Group
		for rank, e := range c.engines {
			g, err := e.NewGroup(GroupConfig{Number: 1, Members: make([]string, 3), Rank: rank, BlockSize: 1000,
				Unannounced: true, SmallBytes: 100,
				SilenceTimeout: starved,
				Small:          func(uint64, []byte) { <-gate },
				Incoming:       func(uint64) (Sink, error) { <-gate; return blocked{gate}, nil },
				Completed:      func(*Transfer) { <-gate }})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, g)
		}
		connect(t, held)
		for range 5 {
			sendSmall(t, held[0], []byte{1})
			if _, err := held[0].Send(Outgoing{Size: 20_000, Source: discard{}}); err != nil {
				t.Fatal(err)
			}
		}
		free := c.group(GroupConfig{Number: 2, BlockSize: 1000}, 1, 0, 2)
		for i := range 5 {
			transfers, sinks := multicast(t, free, randomMemory(uint64(i), 50_000, 1000))
			verify(t, transfers, sinks)
		}
		closeAll(t, free)
		for _, p := range held[0].Progress()[1:] {
			if p.Done != 0 {
				t.Errorf("%d messages of the group that is held were delivered to rank %d", p.Done, p.Rank)
			}
		}
		open()
		closeAll(t, held)
	})
}

// imms writes down the immediate values of the blocks that a device sends.
type imms struct {
	rdma.Device
	mu   sync.Mutex
	seen []uint32
}

type immPair struct {
	rdma.QueuePair
	to *imms
}

func (d *imms) NewQP(cfg rdma.QPConfig) (rdma.QueuePair, error) {
	q, err := d.Device.NewQP(cfg)
	return &immPair{q, d}, err
}

func (q *immPair) PostSend(wrs ...rdma.SendWR) error {
	if !q.User().(*laneEnd).isControl {
		q.to.mu.Lock()
		for _, wr := range wrs {
			q.to.seen = append(q.to.seen, wr.Imm)
		}
		q.to.mu.Unlock()
	}
	return q.QueuePair.PostSend(wrs...)
}

// TestDSN_4_2_ImmediateTellsTheSize holds that each block carries, as its immediate value, how many blocks its
// message has.
func TestDSN_4_2_ImmediateTellsTheSize(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		all := devices(3)
		root := &imms{Device: all[0]}
		all[0] = root
		c := newCluster(t, all)
		groups, inboxes := plainGroup(t, c, GroupConfig{Number: 1, BlockSize: 1000, SmallBytes: -1,
			Algorithm: schedule.Chain})
		var want []uint32
		var sent []*memory
		for i, blocks := range []int{1, 7, 3} {
			sent = append(sent, randomMemory(uint64(i), blocks*1000-1, 1000))
			if _, err := groups[0].Send(Outgoing{Size: uint64(blocks*1000 - 1), Source: sent[i]}); err != nil {
				t.Fatal(err)
			}
			want = append(want, slices.Repeat([]uint32{uint32(blocks)}, blocks)...)
		}
		closeAll(t, groups)
		for rank, in := range inboxes {
			in.check(t, rank, sent)
		}
		if !slices.Equal(root.seen, want) {
			t.Errorf("immediate values %v, want %v", root.seen, want)
		}
	})
}

// ends is a message of which only the first and last blocks are looked at.
type ends struct {
	mu     sync.Mutex
	blocks map[uint64][]byte
}

func (e *ends) ReadBlock(i uint64, buf []byte) error {
	copy(buf, fmt.Sprintf("block %d", i))
	return nil
}

func (e *ends) WriteBlock(i uint64, buf []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.blocks[i] = slices.Clone(buf[:24])
	return nil
}

// TestDSN_4_1_LargestMessage moves the first and last blocks of a message of 2^48 bytes: in 2^32 blocks, but with the
// race detector, whose memory that would take. One byte or block more is refused.
func TestDSN_4_1_LargestMessage(t *testing.T) {
	block, blocks := 64<<10, uint64(MaxMessageBlocks)
	if testing.Short() {
		block, blocks = 1<<20, 1<<28
	}
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(3))
		groups := c.all(GroupConfig{Number: 1, BlockSize: block, Window: 2})
		move := Ranges{{First: 0, Count: 2}, {First: blocks - 3, Count: 3}}
		root, err := groups[0].Send(Outgoing{Size: MaxMessageBytes, Partial: true, Blocks: move, Source: &ends{}})
		if err != nil {
			t.Fatal(err)
		}
		var sinks []*ends
		for _, g := range groups[1:] {
			sinks = append(sinks, &ends{blocks: make(map[uint64][]byte)})
			if _, err := g.Receive(root.Announcement(), Receiver{Sink: sinks[len(sinks)-1]}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := groups[0].Send(Outgoing{Size: MaxMessageBytes + 1, Source: &ends{}}); !errors.Is(err, ErrInvalid) {
			t.Errorf("a byte more: %v", err)
		}
		closeAll(t, groups)
		for rank, s := range sinks {
			if len(s.blocks) != 5 {
				t.Errorf("rank %d has %d blocks", rank+1, len(s.blocks))
			}
			for _, i := range []uint64{0, 1, blocks - 3, blocks - 2, blocks - 1} {
				if want := fmt.Sprintf("block %d\x00", i); !slices.Equal(s.blocks[i][:len(want)], []byte(want)) {
					t.Errorf("rank %d: block %d is %q", rank+1, i, s.blocks[i])
				}
			}
		}
	})
	if err := (Announcement{Seq: 1, Size: MaxMessageBytes}).Validate(64<<10 - 1); !errors.Is(err, ErrInvalid) {
		t.Errorf("more than 2^32 blocks: %v", err)
	}
}
