package rdmc

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
)

const faultBlock = 4 << 10

// TestDSN_4_6_DeathDuringCreation: a member dies before the group is connected. The Connect of each other member ends
// with an error, its group has failed and is closed by Abort without delay.
func TestDSN_4_6_DeathDuringCreation(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		const n = 6
		for victim := range n {
			c := newCluster(t, devices(n))
			groups, remote := unconnected(t, c)
			if err := c.engines[victim].device.Close(); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for rank, g := range groups {
				if rank == victim {
					continue
				}
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					defer cancel()
					err := g.Connect(ctx, remote[rank])
					select {
					case <-g.Failed():
					case <-time.After(toldBound):
						t.Errorf("victim %d: rank %d was not told; connect says %v", victim, rank, err)
					}
					g.Abort()
				})
			}
			wg.Wait()
		}
	})
}

// TestDSN_4_6_FailureEndsConnect: one member gives up while all wait for another that never connects. Each Connect ends
// when it learns of the failure, not when its own time is over.
func TestDSN_4_6_FailureEndsConnect(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(6))
		groups, remote := unconnected(t, c)
		ctx := testContext(t)
		var connects sync.WaitGroup
		for rank, g := range groups[:5] {
			connects.Go(func() {
				err := g.Connect(ctx, remote[rank])
				if rank == 0 && err == nil {
					return // it is no neighbour of the one that is missing, and was done before
				}
				if !errors.Is(err, ErrFailed) {
					t.Errorf("rank %d: %v", rank, err)
				}
			})
		}
		for _, g := range groups[:5] {
			awaitLanes(t, g, 5)
		}
		groups[1].Fail([]int{5}, errTest)
		ended := make(chan struct{})
		go func() { connects.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(toldBound):
			t.Error("a member connects on in a group that has failed")
		}
		<-ended
		for _, g := range groups {
			g.Abort()
		}
	})
}

// awaitLanes waits until a member is connected with all its neighbours but one.
func awaitLanes(t *testing.T, g *Group, missing int) {
	t.Helper()
	ctx := testContext(t)
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for {
		g.mu.Lock()
		waits := false
		for lane := range g.core.Lanes().Count() {
			waits = waits || !g.core.Lanes().IsUp(lane) && g.core.Lanes().Peer(lane) != missing
		}
		g.mu.Unlock()
		if !waits {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatal("the neighbours do not connect")
		}
	}
}

// unconnected makes a group over all engines, and the addresses that each member has to connect with.
func unconnected(t *testing.T, c *cluster) (groups []*Group, remote []map[int][]byte) {
	t.Helper()
	for rank, e := range c.engines {
		g, err := e.NewGroup(GroupConfig{Number: 1, Members: make([]string, len(c.engines)), Rank: rank,
			SilenceTimeout: starved})
		if err != nil {
			t.Fatal(err)
		}
		groups, remote = append(groups, g), append(remote, make(map[int][]byte))
	}
	for rank, g := range groups {
		for peer, address := range g.Addresses() {
			remote[peer][rank] = address
		}
	}
	return groups, remote
}

// TestDSN_4_6_RootDeath: the root dies. All members are notified, with the root as the suspect.
func TestDSN_4_6_RootDeath(t *testing.T) {
	devices, fabric := memDevices(t, 6, mem.Config{Seed: 3, DelayMax: time.Millisecond,
		PeerTimeout: 100 * time.Millisecond})
	c := newCluster(t, devices)
	groups := c.all(GroupConfig{Number: 1, BlockSize: faultBlock})
	src := randomMemory(1, 4<<20, faultBlock)
	half := make(chan struct{})
	src.fail = func(i uint64) error {
		if i == 500 {
			close(half)
		}
		return nil
	}
	transfers, _ := multicast(t, groups, src)
	<-half
	fabric.Kill("0")
	for rank, tr := range transfers[1:] {
		err := tr.Wait(testContext(t))
		var failure *GroupError
		if !errors.As(err, &failure) || !slices.Equal(failure.Suspects, []int{0}) {
			t.Fatalf("rank %d: %v", rank+1, err)
		}
	}
}

// lateDevice is a device whose queue pairs are connected, but say so only when the gate is open.
type lateDevice struct {
	rdma.Device
	joined chan struct{} // one for each pair
	gate   chan struct{}
}

type latePair struct {
	rdma.QueuePair
	to *lateDevice
}

func (d *lateDevice) NewQP(cfg rdma.QPConfig) (rdma.QueuePair, error) {
	q, err := d.Device.NewQP(cfg)
	return &latePair{q, d}, err
}

func (q *latePair) Connect(ctx context.Context, remote []byte) error {
	err := q.QueuePair.Connect(ctx, remote)
	q.to.joined <- struct{}{}
	<-q.to.gate
	return err
}

// TestEndWhileConnecting ends a group between the moment in which its queue pairs are connected and the one in which
// it takes notice: by then its memory is gone.
func TestEndWhileConnecting(t *testing.T) {
	devices := tcpDevices(t, 2)
	late := &lateDevice{Device: devices[0], joined: make(chan struct{}, 2), gate: make(chan struct{})}
	devices[0] = late
	c := newCluster(t, devices)
	groups, remote := unconnected(t, c)
	var all sync.WaitGroup
	all.Go(func() {
		if err := groups[0].Connect(testContext(t), remote[0]); !errors.Is(err, ErrFailed) {
			t.Errorf("the root: %v", err)
		}
	})
	all.Go(func() { groups[1].Connect(testContext(t), remote[1]) }) // before the root ends, or after
	<-late.joined
	<-late.joined
	groups[0].Abort()
	close(late.gate)
	all.Wait()
	groups[1].Abort()
}

// TestGivingUpBlamesNobodyElse: a member gives up while it waits for another that never connects. The member that gave
// up is the suspect, as with Abort.
func TestGivingUpBlamesNobodyElse(t *testing.T) {
	c := newCluster(t, tcpDevices(t, 3))
	groups, remote := unconnected(t, c)
	ctx, giveUp := context.WithCancel(testContext(t))
	var connects sync.WaitGroup
	connects.Go(func() { groups[0].Connect(testContext(t), remote[0]) }) // ends with the group
	connects.Go(func() {
		if err := groups[1].Connect(ctx, remote[1]); !errors.Is(err, context.Canceled) {
			t.Errorf("who gave up: %v", err)
		}
	})
	for _, g := range groups[:2] {
		awaitLanes(t, g, 2)
	}
	giveUp()
	connects.Wait()
	var failure *GroupError
	if err := groups[0].Err(); !errors.As(err, &failure) || !slices.Equal(failure.Suspects, []int{1}) {
		t.Errorf("the root: %v", err)
	}
	for _, g := range groups {
		g.Abort()
	}
}

// halfDevice is a device to whose queue pairs for blocks, or for control messages, the peer does not answer, while
// the others are refused.
type halfDevice struct {
	rdma.Device
	refused bool // the queue pairs for control messages
}

type halfPair struct {
	rdma.QueuePair
	refused bool
}

func (d halfDevice) NewQP(cfg rdma.QPConfig) (rdma.QueuePair, error) {
	q, err := d.Device.NewQP(cfg)
	return halfPair{q, cfg.User.(*laneEnd).isControl == d.refused}, err
}

func (q halfPair) Connect(ctx context.Context, remote []byte) error {
	if q.refused {
		q.Abort()
		return errTest
	}
	return q.QueuePair.Connect(ctx, remote)
}

// TestDSN_4_6_OneRefusalEndsConnect: a neighbour has ended. Of the two queue pairs with it, one is refused, as the
// dialling end is, and the other would wait to be dialled. Connect waits for neither.
func TestDSN_4_6_OneRefusalEndsConnect(t *testing.T) {
	for _, refused := range []bool{true, false} {
		devices := tcpDevices(t, 2)
		devices[1] = halfDevice{devices[1], refused}
		c := newCluster(t, devices)
		groups, remote := unconnected(t, c)
		begun := time.Now()
		err := groups[1].Connect(testContext(t), remote[1])
		if took := time.Since(begun); took > toldBound || !errors.Is(err, errTest) || errors.Is(err, context.Canceled) {
			t.Errorf("control messages refused %v: after %v: %v", refused, took, err)
		}
		for _, g := range groups {
			g.Abort()
		}
	}
}

// TestEngineClosesOnNewGroups: an engine closes while groups are made. Each is refused, or ends with the engine.
func TestEngineClosesOnNewGroups(t *testing.T) {
	device := tcpDevices(t, 1)[0]
	for range 100 {
		e, err := NewEngine(EngineConfig{Device: device})
		if err != nil {
			t.Fatal(err)
		}
		var making sync.WaitGroup
		begun := make(chan struct{}, 2)
		for range cap(begun) {
			making.Go(func() {
				var err error
				for number := uint64(1); err == nil; number++ {
					_, err = e.NewGroup(GroupConfig{Number: number, Members: []string{"a", "b"}, SilenceTimeout: share.TickInterval})
					if number == 1 {
						begun <- struct{}{}
					}
				}
				if !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
			})
		}
		<-begun
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		making.Wait()
	}
}
