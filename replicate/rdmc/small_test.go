package rdmc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// mailbox takes the small messages of one member.
type mailbox struct {
	mu    sync.Mutex
	seqs  []uint64
	data  [][]byte
	block chan struct{} // if set, Small waits for it
}

func (b *mailbox) small(seq uint64, data []byte) {
	b.mu.Lock()
	block := b.block
	b.mu.Unlock()
	if block != nil {
		<-block
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seqs = append(b.seqs, seq)
	b.data = append(b.data, bytes.Clone(data))
}

// smallGroups makes a group over all engines, and the members' mailboxes.
func smallGroups(t testing.TB, c *cluster, cfg GroupConfig) ([]*Group, []*mailbox) {
	t.Helper()
	cfg.Number, cfg.Members = 1, make([]string, len(c.engines))
	orDefault(&cfg.SilenceTimeout, starved)
	var groups []*Group
	var boxes []*mailbox
	for rank, e := range c.engines {
		box := &mailbox{}
		cfg.Rank, cfg.Small = rank, box.small
		g, err := e.NewGroup(cfg)
		if err != nil {
			t.Fatal(err)
		}
		groups, boxes = append(groups, g), append(boxes, box)
	}
	connect(t, groups)
	return groups, boxes
}

// sendSmall sends a small message, and waits for room if there is none.
func sendSmall(t testing.TB, g *Group, data []byte) uint64 {
	t.Helper()
	for {
		seq, err := g.SendSmall(data)
		if err == nil {
			return seq
		}
		if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		if err := g.WaitRoom(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
}

func numbered(i int) []byte {
	b := make([]byte, 8+i*37%500)
	binary.LittleEndian.PutUint64(b, uint64(i))
	return b
}

// TestReport_3_1_SmallMessagesKeepTheOrder mixes small and announced large messages, in a group where the root sends
// to all members itself and in one with a tree: each member is given each message whole, once, in order, and large
// ones end between.
func TestReport_3_1_SmallMessagesKeepTheOrder(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		for _, n := range []int{1, 2, 5, core.StarMembers + 3} {
			c := newCluster(t, devices(n))
			groups, boxes := smallGroups(t, c, GroupConfig{BlockSize: 1000, SmallBytes: 600})
			var want []uint64
			for i := range 300 {
				if i%50 != 49 {
					want = append(want, sendSmall(t, groups[0], numbered(i)))
					continue
				}
				multicast(t, groups, randomMemory(uint64(i), 20_000, 1000))
			}
			last := want[len(want)-1]
			if err := groups[0].WaitDelivered(testContext(t), last); err != nil {
				t.Fatal(err)
			}
			for rank, box := range boxes[1:] {
				box.mu.Lock()
				if !slices.Equal(box.seqs, want) {
					t.Fatalf("n=%d rank %d: got %v", n, rank+1, box.seqs)
				}
				for i, data := range box.data {
					if !bytes.Equal(data, numbered(int(want[i])-1)) {
						t.Fatalf("n=%d rank %d: message %d has other bytes", n, rank+1, want[i])
					}
				}
				box.mu.Unlock()
			}
			closeAll(t, groups)
		}
	})
}

// TestReport_3_1_SmallMessagesAreBounded: a member's callback does not return. A large message behind small ones still
// comes; the root can send as many small ones as there is memory for, and then gets ErrFull; and when the callback
// returns all goes on.
func TestReport_3_1_SmallMessagesAreBounded(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(3))
		groups, boxes := smallGroups(t, c, GroupConfig{BlockSize: 1000, SmallBytes: 100})
		block := make(chan struct{})
		boxes[2].mu.Lock()
		boxes[2].block = block
		boxes[2].mu.Unlock()
		release := sync.OnceFunc(func() { close(block) })
		t.Cleanup(release)
		for range 10 {
			sendSmall(t, groups[0], []byte{1})
		}
		transfers, _ := multicast(t, groups, randomMemory(1, 50_000, 1000))
		for _, tr := range transfers[1:] {
			select {
			case <-tr.Stored():
			case <-testContext(t).Done():
				t.Fatal("a large message behind small ones that wait for the application does not come")
			}
		}
		fill(t, groups[0])
		release()
		if err := groups[0].WaitRoom(testContext(t)); err != nil {
			t.Fatal(err)
		}
		closeAll(t, groups)
	})
}

// TestNothingIsDeliveredAtOnce waits for the number of a message before the first, as a program that has sent none
// does: in a group without small messages, and in one that has no room for more of them.
func TestNothingIsDeliveredAtOnce(t *testing.T) {
	c := newCluster(t, tcpDevices(t, 2))
	large := c.group(GroupConfig{Number: 2}, 0, 1)
	small, boxes := smallGroups(t, c, GroupConfig{SmallBytes: 100})
	boxes[1].mu.Lock()
	block := make(chan struct{})
	boxes[1].block = block
	boxes[1].mu.Unlock()
	defer close(block)
	fill(t, small[0])
	for _, g := range []*Group{large[0], small[0]} {
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := g.WaitDelivered(short, 0); err != nil {
			t.Errorf("group %d: %v", g.cfg.Number, err)
		}
		cancel()
	}
}

// fill sends small messages until there is no room any more.
func fill(t *testing.T, g *Group) {
	t.Helper()
	for range 4 * smallWindow {
		_, err := g.SendSmall([]byte{1})
		if errors.Is(err, ErrFull) {
			short, cancel := context.WithTimeout(testContext(t), time.Second)
			err = g.WaitRoom(short)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				return
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("a member that takes nothing is sent messages without bound")
}

// TestEarlyAnnouncementKeepsItsBuffers: a member hears of a large message before the small one that precedes it, in a
// group that was idle. The buffers that were made for the large one are there when the small one lets it begin.
func TestEarlyAnnouncementKeepsItsBuffers(t *testing.T) {
	c := newCluster(t, fabrics["mem"](t, 2))
	groups, _ := smallGroups(t, c, GroupConfig{BlockSize: 1000, SmallBytes: 100})
	src, sink := randomMemory(1, 20_000, 1000), newMemory(20_000, 1000)
	in, err := groups[1].Receive(Announcement{Seq: 2, Size: 20_000, Blocks: AllBlocks(20)}, Receiver{Sink: sink})
	if err != nil {
		t.Fatal(err)
	}
	groups[1].tick(time.Now().Add(time.Hour))
	sendSmall(t, groups[0], []byte{1})
	out, err := groups[0].Send(Outgoing{Size: 20_000, Source: src})
	if err != nil {
		t.Fatal(err)
	}
	verify(t, []*Transfer{out, in}, []*memory{src, sink})
	closeAll(t, groups)
}

// TestReport_3_1_SmallCloseMeansDelivered closes right behind small messages: a successful close means that the
// callbacks have returned.
func TestReport_3_1_SmallCloseMeansDelivered(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(4))
		groups, boxes := smallGroups(t, c, GroupConfig{SmallBytes: 100})
		for i := range 40 {
			sendSmall(t, groups[0], []byte{byte(i)})
		}
		if err := groups[0].Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for rank, box := range boxes[1:] {
			box.mu.Lock()
			if len(box.seqs) != 40 {
				t.Fatalf("rank %d got %d messages before the root's close returned", rank+1, len(box.seqs))
			}
			box.mu.Unlock()
		}
		closeAll(t, groups[1:])
	})
}

// TestReport_3_1_SmallFailure kills a member while small messages flow, with the root's star and with the tree: the
// root's waits end with the failure, and all others are notified, with the dead member as the suspect.
func TestReport_3_1_SmallFailure(t *testing.T) {
	for _, n := range []int{4, core.StarMembers + 4} {
		devices, fabric := memDevices(t, n, mem.Config{Seed: 5, DelayMax: 100 * time.Microsecond,
			PeerTimeout: 200 * time.Millisecond})
		c := newCluster(t, devices)
		// the queue pairs report the death, long before the time of silence is over
		groups, _ := smallGroups(t, c, GroupConfig{SmallBytes: 100, SilenceTimeout: time.Minute})
		victim := n / 2
		sent := 0
		for groups[0].Err() == nil {
			if sent == 1000 {
				fabric.Kill(fmt.Sprint(victim))
			}
			sent++
			if _, err := groups[0].SendSmall([]byte{1}); errors.Is(err, ErrFull) {
				_ = groups[0].WaitRoom(testContext(t)) // fails with the group
			}
		}
		for rank, g := range groups {
			if rank == victim {
				continue
			}
			select {
			case <-g.Failed():
			case <-time.After(toldBound):
				t.Fatalf("n=%d: rank %d was not told", n, rank)
			}
			var failure *GroupError
			if !errors.As(g.Err(), &failure) || !slices.Equal(failure.Suspects, []int{victim}) {
				t.Fatalf("n=%d rank %d: %v", n, rank, g.Err())
			}
		}
		if err := groups[0].WaitDelivered(testContext(t), 1<<40); !errors.Is(err, ErrMemberFailed) {
			t.Fatalf("waiting at the root: %v", err)
		}
	}
}

// TestDSN_4_1_SmallCallbackCallsTheLibrary: each member passes each small message on to a group of its own.
func TestDSN_4_1_SmallCallbackCallsTheLibrary(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(3))
		got := make(chan string, 100)
		onward := c.engines[1]
		var second []*Group
		for rank, e := range []*Engine{onward, c.engines[2]} {
			g, err := e.NewGroup(GroupConfig{Number: 2, Members: make([]string, 2), Rank: rank, SmallBytes: 10,
				SilenceTimeout: starved,
				Small:          func(_ uint64, data []byte) { got <- string(data) }})
			if err != nil {
				t.Fatal(err)
			}
			second = append(second, g)
		}
		connect(t, second)
		var first []*Group
		for rank, e := range c.engines[:2] {
			g, err := e.NewGroup(GroupConfig{Number: 1, Members: make([]string, 2), Rank: rank, SmallBytes: 10,
				SilenceTimeout: starved,
				Small:          func(_ uint64, data []byte) { sendSmall(t, second[0], data) }})
			if err != nil {
				t.Fatal(err)
			}
			first = append(first, g)
		}
		connect(t, first)
		for i := range 50 {
			sendSmall(t, first[0], []byte{'a' + byte(i%26)})
		}
		for i := range 50 {
			select {
			case s := <-got:
				if s[0] != 'a'+byte(i%26) {
					t.Fatalf("message %d is %q", i, s)
				}
			case <-testContext(t).Done():
				t.Fatalf("%d of 50 came", i)
			}
		}
		closeAll(t, first)
		closeAll(t, second)
	})
}

func TestSmallInvalid(t *testing.T) {
	c := newCluster(t, tcpDevices(t, 2))
	for name, cfg := range map[string]GroupConfig{
		"too large":     {SmallBytes: MaxSmallBytes + 1, Small: func(uint64, []byte) {}},
		"without Small": {SmallBytes: 10},
	} {
		cfg.Members, cfg.Rank = make([]string, 2), 1
		if _, err := c.engines[1].NewGroup(cfg); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	groups, _ := smallGroups(t, c, GroupConfig{SmallBytes: 10})
	for name, send := range map[string]func() (uint64, error){
		"empty":       func() (uint64, error) { return groups[0].SendSmall(nil) },
		"long":        func() (uint64, error) { return groups[0].SendSmall(make([]byte, 11)) },
		"by a member": func() (uint64, error) { return groups[1].SendSmall([]byte{1}) },
	} {
		if _, err := send(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	closeAll(t, groups)
	if _, err := groups[0].SendSmall([]byte{1}); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

// TestReport_3_1_SmallNoAllocation counts what sending, taking and acknowledging small messages allocates, on all
// members.
func TestReport_3_1_SmallNoAllocation(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(5))
		g := c.all(GroupConfig{Number: 1, SmallBytes: 100, Small: func(uint64, []byte) {}})[0]
		ctx := testContext(t)
		data := make([]byte, 64)
		run := func(messages int) {
			var last uint64
			for range messages {
				seq, err := g.SendSmall(data)
				for errors.Is(err, ErrFull) {
					_ = g.WaitRoom(ctx) // SendSmall returns why it failed
					seq, err = g.SendSmall(data)
				}
				if err != nil {
					t.Fatal(err)
				}
				last = seq
				if seq%7 == 0 {
					_ = g.WaitDelivered(ctx, seq)
				}
			}
			if err := g.WaitDelivered(ctx, last); err != nil {
				t.Fatal(err)
			}
		}
		run(2000)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const messages = 5000
		run(messages)
		runtime.ReadMemStats(&after)
		each := float64(after.Mallocs-before.Mallocs) / messages
		t.Logf("%.3f allocations a message, on all 5 members", each)
		if each > 0.1 {
			t.Errorf("%.3f allocations a message", each)
		}
	})
}

// pieces notes how long the blocks are that a Sink is given.
type pieces struct {
	*memory
	mu      sync.Mutex
	longest int
}

func (p *pieces) WriteBlock(i uint64, buf []byte) error {
	p.mu.Lock()
	p.longest = max(p.longest, len(buf))
	p.mu.Unlock()
	return p.memory.WriteBlock(i, buf)
}

// TestSmallMessageOfSeveralBlocks sends a small message that is longer than a block to a member that takes it by a
// Sink.
func TestSmallMessageOfSeveralBlocks(t *testing.T) {
	const size = 2500
	c := newCluster(t, tcpDevices(t, 2))
	sink, have := &pieces{memory: newMemory(size, 1000)}, make(chan *Bitmap, 1)
	var groups []*Group
	for rank, e := range c.engines {
		g, err := e.NewGroup(GroupConfig{Members: make([]string, 2), Rank: rank, BlockSize: 1000, SmallBytes: size,
			Unannounced: true,
			Incoming:    func(uint64) (Sink, error) { return sink, nil },
			Completed:   func(t *Transfer) { have <- t.Have() }})
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
	}
	connect(t, groups)
	want := randomMemory(1, size, 1000)
	if _, err := groups[0].SendSmall(want.data); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-have:
		if got.Count() != 3 || got.Blocks() != 3 {
			t.Errorf("%d blocks of %d are there", got.Count(), got.Blocks())
		}
	case <-groups[1].Failed():
	}
	closeAll(t, groups)
	if sink.longest != 1000 || string(sink.data) != string(want.data) {
		t.Errorf("a block of %d bytes", sink.longest)
	}
}
