package rdmc

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

var (
	faultSeeds = flag.Uint64("fault.seeds", 20, "seeds of TestFaults")
	faultSeed  = flag.Uint64("fault.seed", 0, "the one seed of TestFaults to run")
)

// TestFaults kills, stops or cuts off a member at a random moment, over a fabric with random delays. All others must be
// told within the bound; then a group of the survivors delivers what is missing. A stopped member that
// goes on later must not change anything.
func TestFaults(t *testing.T) {
	seeds := *faultSeeds
	if testing.Short() {
		seeds = 4
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		if *faultSeed != 0 && seed != *faultSeed {
			continue
		}
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			f := newFault(t, seed)
			f.strike()
			f.checkTold()
			f.recover()
		})
	}
}

// fault is one run of TestFaults.
type fault struct {
	t         *testing.T
	rng       *rand.Rand
	fabric    *mem.Fabric
	cluster   *cluster
	groups    []*Group
	transfers []*Transfer
	sinks     []*memory
	kind      string
	victim    int
	reached   chan struct{} // closed when the root has read so many blocks
}

const faultBlock = 4 << 10

func newFault(t *testing.T, seed uint64) *fault {
	f := &fault{t: t, rng: rand.New(rand.NewPCG(seed, 9)), reached: make(chan struct{})}
	n := 3 + f.rng.IntN(7)
	devices, fabric := memDevices(t, n, mem.Config{Seed: seed, DelayMax: 300 * time.Microsecond, PeerTimeout: 200 * time.Millisecond})
	f.fabric = fabric
	f.cluster = newCluster(t, devices)
	f.groups = f.cluster.all(GroupConfig{Number: seed, BlockSize: faultBlock, Window: 2 + f.rng.IntN(8), SilenceTimeout: 400 * time.Millisecond})
	f.victim = 1 + f.rng.IntN(n-1)
	f.kind = []string{"kill", "stop", "cut"}[f.rng.IntN(3)]
	const blocks = 300
	src := randomMemory(seed, blocks*faultBlock-77, faultBlock)
	read, at := 0, f.rng.IntN(blocks)
	src.fail = func(uint64) error {
		src.mu.Lock()
		defer src.mu.Unlock()
		if read == at {
			close(f.reached)
		}
		read++
		return nil
	}
	f.transfers, f.sinks = multicast(t, f.groups, src)
	t.Logf("n=%d: %s member %d at block %d", n, f.kind, f.victim, at)
	return f
}

func (f *fault) strike() {
	<-f.reached
	victim := fmt.Sprint(f.victim)
	switch f.kind {
	case "kill":
		f.fabric.Kill(victim)
	case "stop":
		f.fabric.Stop(victim)
	case "cut":
		for i := range f.groups {
			if i != f.victim {
				f.fabric.Cut(victim, fmt.Sprint(i))
			}
		}
	}
}

// checkTold waits for all others to fail. If the message had reached all before the fault, it has succeeded.
func (f *fault) checkTold() {
	for rank, g := range f.groups {
		if rank == f.victim {
			continue
		}
		select {
		case <-f.transfers[rank].Done():
		case <-time.After(5 * time.Second):
			f.t.Fatalf("rank %d was not told", rank)
		}
		err := g.Err()
		var failure *GroupError
		if err != nil && (!errors.As(err, &failure) || !slices.Equal(failure.Suspects, []int{f.victim})) {
			f.t.Fatalf("rank %d: %v, want suspect %d", rank, err, f.victim)
		}
	}
}

func (f *fault) recover() {
	for rank, g := range f.groups {
		if rank != f.victim {
			g.Abort()
		}
	}
	resume(f.t, f.cluster, f.victim, f.transfers, f.sinks)
	if f.kind == "stop" {
		f.fabric.Resume(fmt.Sprint(f.victim))
	}
	f.groups[f.victim].Abort()
	for rank := range f.sinks {
		if rank != f.victim && !slices.Equal(f.sinks[rank].data, f.sinks[0].data) {
			f.t.Fatalf("rank %d was changed after the end", rank)
		}
	}
}

// TestSection46DeathDuringCreation has a member die before the group is connected: the Connect of each other member ends with an error,
// its group has failed and is closed by Abort without delay.
func TestSection46DeathDuringCreation(t *testing.T) {
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
					case <-time.After(2 * time.Second):
						t.Errorf("victim %d: rank %d was not told; connect says %v", victim, rank, err)
					}
					g.Abort()
				})
			}
			wg.Wait()
		}
	})
}

// TestSection46FailureEndsConnect has one member give up while all wait for another that never connects: each Connect ends when the
// failure is told, not when its own time is over.
func TestSection46FailureEndsConnect(t *testing.T) {
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
		case <-time.After(10 * time.Second):
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
		waits := slices.ContainsFunc(g.core.lanes, func(l lane) bool { return !l.up && l.peer != missing })
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
		g, err := e.NewGroup(GroupConfig{Number: 1, Members: make([]string, len(c.engines)), Rank: rank})
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

// TestRootDeath has the root die: all members are told, with the root as the suspect.
func TestRootDeath(t *testing.T) {
	devices, fabric := memDevices(t, 6, mem.Config{Seed: 3, DelayMax: time.Millisecond, PeerTimeout: 100 * time.Millisecond})
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
