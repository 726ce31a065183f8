package rdmc

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

func TestDSN_4_3_EachAlgorithm(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		for _, n := range []int{1, 2, 3, 5, 8} {
			for _, a := range schedule.Algorithms() {
				if _, err := schedule.NewPlan(a, n); err != nil {
					continue
				}
				c := newCluster(t, devices(n))
				groups := c.all(GroupConfig{Number: 1, BlockSize: 4096, Algorithm: a})
				for i, size := range []int{0, 1, 4096, 100_000} {
					transfers, sinks := multicast(t, groups, randomMemory(uint64(i), size, 4096))
					verify(t, transfers, sinks)
				}
				closeAll(t, groups)
			}
		}
	})
}

// TestDSN_4_3_Hybrid multicasts in a group whose members are in racks, with windows as small as can be.
func TestDSN_4_3_Hybrid(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		for _, racks := range [][]int{{0, 0, 1, 1, 2, 2, 2}, {3, 1, 3, 1, 1}, {0, 0, 0}} {
			c := newCluster(t, devices(len(racks)))
			groups := c.all(GroupConfig{Number: 1, BlockSize: 1000, Algorithm: schedule.Hybrid, Racks: racks, Window: 2})
			for i, size := range []int{1, 30_000, 100_500} {
				transfers, sinks := multicast(t, groups, randomMemory(uint64(i), size, 1000))
				verify(t, transfers, sinks)
			}
			closeAll(t, groups)
		}
	})
	c := newCluster(t, tcpDevices(t, 1))
	_, err := c.engines[0].NewGroup(GroupConfig{Members: make([]string, 2), Algorithm: schedule.Hybrid, Racks: []int{1}})
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("racks of one member of two: %v", err)
	}
}

// TestFailedPostIsNoticedByTheNeighbour: a member is unable to post work. Its neighbour hears of it by the queue pair,
// not by silence.
func TestFailedPostIsNoticedByTheNeighbour(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(2))
		groups := c.all(GroupConfig{Number: 1, BlockSize: 1000, SilenceTimeout: time.Hour})
		groups[1].mu.Lock()
		groups[1].links.ends[0].control.check(errTest)
		groups[1].mu.Unlock()
		for rank, g := range groups {
			select {
			case <-g.Failed():
			case <-testContext(t).Done():
				t.Fatalf("rank %d was not told", rank)
			}
		}
	})
}

// TestDSN_3_QueuedMessagesArriveInOrder queues many messages at once, with windows as small as can be.
func TestDSN_3_QueuedMessagesArriveInOrder(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(5))
		groups := c.all(GroupConfig{Number: 1, BlockSize: 1000, Window: 2, MaxSends: 1})
		var transfers [][]*Transfer
		var sinks [][]*memory
		for i := range 30 {
			tr, s := multicast(t, groups, randomMemory(uint64(i), i*777, 1000))
			transfers, sinks = append(transfers, tr), append(sinks, s)
		}
		for i := range transfers {
			verify(t, transfers[i], sinks[i])
		}
		closeAll(t, groups)
	})
}

// TestDSN_3_OverlappingGroups moves more than all windows hold, on overlapping groups with different roots.
func TestDSN_3_OverlappingGroups(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(4))
		orders := [][]int{{0, 1, 2, 3}, {1, 2, 3, 0}, {2, 3, 0, 1}, {3, 1, 2}}
		var groups [][]*Group
		var transfers [][]*Transfer
		var sinks [][]*memory
		for i, order := range orders {
			groups = append(groups, c.group(GroupConfig{Number: uint64(i), BlockSize: 64 << 10}, order...))
			tr, s := multicast(t, groups[i], randomMemory(uint64(i), 8<<20, 64<<10))
			transfers, sinks = append(transfers, tr), append(sinks, s)
		}
		for i := range orders {
			verify(t, transfers[i], sinks[i])
			closeAll(t, groups[i])
		}
	})
}

// TestDSN_4_6_CloseMeansDelivered holds the barrier: the root closes at once after sending, a slow member stores late.
func TestDSN_4_6_CloseMeansDelivered(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(3))
		groups := c.all(GroupConfig{Number: 1, BlockSize: 1000})
		src := randomMemory(1, 10_000, 1000)
		root, err := groups[0].Send(Outgoing{Size: 10_000, Source: src})
		if err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		sinks := make([]*memory, 3)
		for rank := 1; rank < 3; rank++ {
			sinks[rank] = newMemory(10_000, 1000)
			sinks[rank].fail = func(uint64) error { <-release; return nil }
			if _, err := groups[rank].Receive(root.Announcement(), Receiver{Sink: sinks[rank]}); err != nil {
				t.Fatal(err)
			}
		}
		closed := make(chan error, 1)
		go func() { closed <- groups[0].Close(testContext(t)) }()
		select {
		case err := <-closed:
			t.Fatalf("the root closed before anything was stored: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		close(release)
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		for rank := 1; rank < 3; rank++ {
			sinks[rank].mu.Lock()
			whole := bytes.Equal(sinks[rank].data, src.data)
			sinks[rank].mu.Unlock()
			if !whole {
				t.Fatalf("rank %d lacks data after the root closed", rank)
			}
		}
		closeAll(t, groups[1:])
	})
}

// TestDSN_4_6_MemberAbortsAndSurvivorsResume: a member leaves in mid-transfer. All are notified, with the suspect. Then
// the survivors form the next epoch, and only blocks that some of them lack move.
func TestDSN_4_6_MemberAbortsAndSurvivorsResume(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		const size, block = 4 << 20, 16 << 10
		for victim := 1; victim < 6; victim++ {
			c := newCluster(t, devices(6))
			groups := c.all(GroupConfig{Number: 1, BlockSize: block, Window: 6})
			src := randomMemory(1, size, block)
			blocked := make(chan struct{})
			n := 0
			src.fail = func(i uint64) error {
				src.mu.Lock()
				defer src.mu.Unlock()
				if n++; n == 100 {
					close(blocked)
				}
				return nil
			}
			transfers, sinks := multicast(t, groups, src)
			<-blocked
			groups[victim].Abort()
			for rank, tr := range transfers {
				err := tr.Wait(testContext(t))
				var failure *GroupError
				if !errors.As(err, &failure) || !errors.Is(err, ErrMemberFailed) || !slices.Equal(failure.Suspects, []int{victim}) {
					t.Fatalf("rank %d: %v", rank, err)
				}
				groups[rank].Abort()
			}
			resume(t, c, victim, transfers, sinks)
		}
	})
}

func resume(t *testing.T, c *cluster, victim int, transfers []*Transfer, sinks []*memory) {
	t.Helper()
	var engines []int
	var haves []*Bitmap
	for rank := range transfers {
		if rank != victim {
			engines = append(engines, rank)
			haves = append(haves, transfers[rank].Have())
		}
	}
	cfg := transfers[0].group.cfg
	cfg.Epoch++
	groups := c.group(cfg, engines...)
	union := lacking(haves[0].Blocks(), haves)
	root, err := groups[0].Send(Outgoing{Size: uint64(len(sinks[0].data)), Partial: true, Blocks: union, Source: sinks[0]})
	if err != nil {
		t.Fatal(err)
	}
	again := []*Transfer{root}
	left := []*memory{sinks[0]}
	for i, rank := range engines[1:] {
		r, err := groups[i+1].Receive(root.Announcement(), Receiver{Sink: sinks[rank], Have: transfers[rank].Have()})
		if err != nil {
			t.Fatal(err)
		}
		again, left = append(again, r), append(left, sinks[rank])
	}
	verify(t, again, left)
	closeAll(t, groups)
	if all := root.Have().Blocks(); union.Count() == 0 || union.Count() == all {
		// the fault came too early or too late to tell
		t.Logf("victim %d: %d of %d blocks moved again", victim, union.Count(), all)
	}
}

func TestDSN_4_6_SinkErrorIsTold(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(4))
		groups := c.all(GroupConfig{Number: 1, BlockSize: 1000})
		src := randomMemory(1, 50_000, 1000)
		root, _ := groups[0].Send(Outgoing{Size: 50_000, Source: src})
		for _, g := range groups[1:] {
			m := newMemory(50_000, 1000)
			if g.cfg.Rank == 2 {
				m.fail = func(i uint64) error {
					if i == 7 {
						return errTest
					}
					return nil
				}
			}
			if _, err := g.Receive(root.Announcement(), Receiver{Sink: m}); err != nil && !errors.Is(err, ErrFailed) {
				t.Fatal(err)
			}
		}
		for _, g := range groups {
			<-g.Failed()
			var failure *GroupError
			if !errors.As(g.Err(), &failure) || failure.Reason != ReasonSink || failure.Reporter != 2 ||
				!slices.Equal(failure.Suspects, []int{2}) {
				t.Fatalf("rank %d: %v", g.cfg.Rank, g.Err())
			}
		}
		if !errors.Is(groups[2].Err(), errTest) {
			t.Fatalf("rank 2 lost the cause: %v", groups[2].Err())
		}
		if err := groups[1].Close(testContext(t)); !errors.Is(err, ErrMemberFailed) {
			t.Fatalf("close of a failed group: %v", err)
		}
	})
}

func TestDSN_4_6_SourceErrorIsTold(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(3))
		groups := c.all(GroupConfig{Number: 1, BlockSize: 1000})
		src := randomMemory(1, 50_000, 1000)
		src.fail = func(i uint64) error {
			if i == 30 {
				return errTest
			}
			return nil
		}
		transfers, _ := multicast(t, groups, src)
		for rank, tr := range transfers {
			var failure *GroupError
			if err := tr.Wait(testContext(t)); !errors.As(err, &failure) || failure.Reason != ReasonSource {
				t.Fatalf("rank %d: %v", rank, err)
			}
		}
	})
}

// TestDSN_4_6_StoppedMemberIsSuspected: a member stays connected but says nothing, since its lock is held.
func TestDSN_4_6_StoppedMemberIsSuspected(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(4))
		groups := c.all(GroupConfig{Number: 1, BlockSize: 1000, SilenceTimeout: 1500 * time.Millisecond})
		groups[3].mu.Lock()
		defer groups[3].mu.Unlock()
		src := randomMemory(1, 50_000, 1000)
		root, _ := groups[0].Send(Outgoing{Size: 50_000, Source: src})
		for _, g := range groups[1:3] {
			if _, err := g.Receive(root.Announcement(), Receiver{Sink: newMemory(50_000, 1000)}); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		for _, g := range groups[:3] {
			select {
			case <-g.Failed():
			case <-time.After(toldBound):
				t.Fatalf("rank %d was not told", g.cfg.Rank)
			}
			var failure *GroupError
			if !errors.As(g.Err(), &failure) || failure.Reason != ReasonSilent || !slices.Equal(failure.Suspects, []int{3}) {
				t.Fatalf("rank %d: %v", g.cfg.Rank, g.Err())
			}
		}
		t.Logf("told after %v", time.Since(start))
	})
}

func TestProgress(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(5))
		groups := c.all(GroupConfig{Number: 1, BlockSize: 1000})
		src := randomMemory(1, 100_000, 1000)
		root, _ := groups[0].Send(Outgoing{Size: 100_000, Source: src})
		gate := make(chan struct{})
		for _, g := range groups[1:] {
			m := newMemory(100_000, 1000)
			m.fail = func(i uint64) error {
				if i >= 50 {
					<-gate
				}
				return nil
			}
			if _, err := g.Receive(root.Announcement(), Receiver{Sink: m}); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, "all members to show 40 blocks", func() bool {
			for _, p := range groups[0].Progress()[1:] {
				if p.Blocks < 40 {
					return false
				}
			}
			return true
		})
		close(gate)
		if err := root.Wait(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for _, p := range groups[0].Progress() {
			if p.Done != 1 {
				t.Fatalf("rank %d: %+v", p.Rank, p)
			}
		}
		closeAll(t, groups)
	})
}

// waitFor polls a condition that nothing signals.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestConnectFailure(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(2))
		g, err := c.engines[0].NewGroup(GroupConfig{Number: 1, Members: []string{"a", "b"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Connect(testContext(t), nil); !errors.Is(err, ErrInvalid) {
			t.Fatalf("connect without addresses: %v", err)
		}
		if _, err := g.Send(Outgoing{}); !errors.Is(err, ErrFailed) {
			t.Fatalf("send on a failed group: %v", err)
		}
		other, err := c.engines[1].NewGroup(GroupConfig{Number: 1, Members: []string{"a", "b"}, Rank: 1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if err := other.Connect(ctx, map[int][]byte{0: g.Addresses()[1]}); err == nil {
			t.Fatal("connected to a member that has failed")
		}
	})
}

func TestInvalidUse(t *testing.T) {
	c := newCluster(t, tcpDevices(t, 2))
	for _, cfg := range []GroupConfig{
		{},
		{Members: []string{"a"}, Rank: 1},
		{Members: []string{"a"}, BlockSize: -1},
		{Members: []string{"a"}, Window: 1},
		{Members: []string{"a"}, Window: 1 << 50},
		{Members: []string{"a"}, MaxSends: 1 << 50},
		{Members: []string{"a"}, Algorithm: 77},
		{Members: []string{"a"}, SilenceTimeout: share.TickInterval - 1},
		{Members: []string{"a"}, SilenceTimeout: -1},
	} {
		if _, err := c.engines[0].NewGroup(cfg); !errors.Is(err, ErrInvalid) && !errors.Is(err, schedule.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	groups := c.all(GroupConfig{Number: 1})
	if _, err := groups[1].Send(Outgoing{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("send by a member: %v", err)
	}
	if _, err := groups[0].Send(Outgoing{Size: 1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a message without a source: %v", err)
	}
	if err := groups[0].Connect(t.Context(), nil); !errors.Is(err, ErrInvalid) || groups[0].Err() != nil {
		t.Errorf("connect twice: %v, and the group: %v", err, groups[0].Err())
	}
	runs := make(Ranges, MaxRanges+1)
	for i := range runs {
		runs[i] = Range{First: 2 * uint64(i), Count: 1}
	}
	if _, err := groups[0].Send(Outgoing{Size: 4 * MaxRanges * DefaultBlockSize, Partial: true, Blocks: runs,
		Source: blocked{}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a message of more runs than members take: %v", err)
	}
	if err := groups[0].WaitRoom(t.Context()); !errors.Is(err, ErrInvalid) {
		t.Errorf("wait for room in a group without small messages: %v", err)
	}
	if _, err := groups[0].Receive(Announcement{Seq: 1}, Receiver{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("receive by the root: %v", err)
	}
	if _, err := groups[1].Receive(Announcement{Seq: 1, Size: 10, Blocks: AllBlocks(2)}, Receiver{}); !errors.Is(err,
		ErrInvalid) {
		t.Errorf("receive of blocks that are not there: %v", err)
	}
	if _, err := groups[1].Receive(Announcement{Seq: 1, Size: 10, Blocks: AllBlocks(1)}, Receiver{}); !errors.Is(err,
		ErrInvalid) {
		t.Errorf("receive of blocks without a sink: %v", err)
	}
	if _, err := groups[1].Receive(Announcement{Seq: 1}, Receiver{Have: NewBitmap(3)}); !errors.Is(err, ErrInvalid) {
		t.Errorf("receive with a wrong bitmap: %v", err)
	}
	if _, err := groups[1].Receive(Announcement{Seq: 9}, Receiver{}); err != nil {
		t.Errorf("receive of a later message: %v", err)
	}
	if _, err := groups[1].Receive(Announcement{Seq: 9}, Receiver{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("receive of a message twice: %v", err)
	}
}

// TestClosedIsClosed closes a group again that has closed well, with no time left: that succeeds, as everything was
// delivered.
func TestClosedIsClosed(t *testing.T) {
	c := newCluster(t, tcpDevices(t, 2))
	groups := c.all(GroupConfig{Number: 1})
	closeAll(t, groups)
	late, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		for rank, g := range groups {
			if err := g.Close(late); err != nil {
				t.Fatalf("rank %d: %v", rank, err)
			}
		}
	}
}
