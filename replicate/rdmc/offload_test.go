package rdmc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// TestOffload multicasts with the fabric relaying by itself, placed and through the pool, by all algorithms, with windows as small as
// can be. On TCP, whose queue pairs cannot wait, the same groups work without.
func TestOffload(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		for _, algorithm := range []schedule.Algorithm{schedule.Chain, schedule.BinomialPipeline, schedule.BinomialTree, schedule.Twin, schedule.Sequential} {
			for _, window := range []int{2, 0} {
				t.Run(fmt.Sprintf("%v/%d", algorithm, window), func(t *testing.T) {
					const block, n = 1000, 5
					ds := devices(n)
					c := newCluster(t, ds)
					groups := c.all(GroupConfig{Number: 1, BlockSize: block, Algorithm: algorithm, Window: window, Offload: true})
					for rank, g := range groups {
						_, can := groups[0].lanes[0].blocks.qp.(rdma.Waiter)
						if g.Offloads() != (can && rank > 0) {
							t.Fatalf("rank %d offloads: %t", rank, g.Offloads())
						}
					}
					for i, size := range []int{1, block, 40_500} {
						transfers, sinks := multicast(t, groups, randomMemory(uint64(i), size, block))
						verify(t, transfers, sinks)
						sendPlaced(t, groups, ds, size, block)
					}
					closeAll(t, groups)
				})
			}
		}
	})
}

// sendPlaced sends a message from and into registered memory.
func sendPlaced(t *testing.T, groups []*Group, ds []rdma.Device, size, block int) {
	t.Helper()
	all := make([]*placed, len(groups))
	for rank := range all {
		all[rank] = newPlaced(t, ds[rank], size, block)
	}
	copy(all[0].Data, randomMemory(9, size, block).data)
	for rank, tr := range placedTransfers(t, groups, all, all[0]) {
		if err := tr.Wait(testContext(t)); err != nil || !bytes.Equal(all[rank].Data, all[0].Data) {
			t.Fatalf("size %d rank %d: %v, bytes equal %v", size, rank, err, bytes.Equal(all[rank].Data, all[0].Data))
		}
	}
}

func placedTransfers(t *testing.T, groups []*Group, all []*placed, source Source) []*Transfer {
	t.Helper()
	root, err := groups[0].Send(Outgoing{Size: uint64(len(all[0].Data)), Source: source})
	if err != nil {
		t.Fatal(err)
	}
	transfers := []*Transfer{root}
	for rank := 1; rank < len(groups); rank++ {
		tr, err := groups[rank].Receive(root.Announcement(), Receiver{Sink: all[rank]})
		if err != nil {
			t.Fatal(err)
		}
		transfers = append(transfers, tr)
	}
	return transfers
}

// gated is a source that gives no block until it is opened.
type gated struct {
	Source
	open chan struct{}
}

func (g gated) ReadBlock(i uint64, buf []byte) error {
	<-g.open
	return g.Source.ReadBlock(i, buf)
}

// TestOffloadWithoutRelays: once all is posted, a message reaches the end of a chain while the relays' engines do nothing at all.
func TestOffloadWithoutRelays(t *testing.T) {
	const block, n, blocks = 1000, 5, 24
	ds, _ := memDevices(t, n, mem.Config{Seed: 1, DelayMax: 100 * time.Microsecond})
	c := newCluster(t, ds)
	groups := c.all(GroupConfig{Number: 1, BlockSize: block, Algorithm: schedule.Chain, Window: 2 * blocks, Grants: blocks, Offload: true,
		SilenceTimeout: 20 * time.Second})
	all := make([]*placed, n)
	for rank := range all {
		all[rank] = newPlaced(t, ds[rank], blocks*block-7, block)
	}
	src := randomMemory(1, blocks*block-7, block)
	gate := gated{Source: src, open: make(chan struct{})}
	transfers := placedTransfers(t, groups, all, gate)
	relays := groups[1 : n-1]
	for _, g := range relays {
		waitFor(t, "the graph to be posted", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.core.offload.waiting) == blocks
		})
	}
	for _, g := range relays {
		g.mu.Lock() // its poller stands still now
	}
	close(gate.open)
	last := transfers[n-1]
	select {
	case <-last.Stored():
	case <-time.After(15 * time.Second):
		t.Error("the message did not pass the relays")
	}
	for _, g := range relays {
		if g.core.message(1).received != 0 {
			t.Errorf("rank %d looked at %d blocks", g.cfg.Rank, g.core.message(1).received)
		}
		g.mu.Unlock()
	}
	for rank, tr := range transfers {
		if err := tr.Wait(testContext(t)); err != nil || rank > 0 && !bytes.Equal(all[rank].Data, src.data) {
			t.Errorf("rank %d: %v, or other bytes", rank, err)
		}
	}
	closeAll(t, groups)
}

// TestOffloadFailureNamesTheDead: relays' queue pairs end one after another when a member dies, but only that one is suspected, by all, and
// within the bound.
func TestOffloadFailureNamesTheDead(t *testing.T) {
	const n, block, size = 6, 1000, 300_000
	for _, algorithm := range []schedule.Algorithm{schedule.Chain, schedule.BinomialPipeline} {
		for victim := range n {
			t.Run(fmt.Sprintf("%v/%d", algorithm, victim), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const noticed = 50 * time.Millisecond
					ds, fabric := memDevices(t, n, mem.Config{Seed: uint64(victim), DelayMax: 2 * time.Millisecond, PeerTimeout: noticed})
					groups := newCluster(t, ds).all(GroupConfig{Number: 1, BlockSize: block, Algorithm: algorithm, Offload: true, SilenceTimeout: faultSilence})
					transfers, _ := multicast(t, groups, randomMemory(1, size, block))
					<-time.After(20 * time.Millisecond) // in its midst
					began := time.Now()
					fabric.Kill(fmt.Sprint(victim))
					for rank, g := range groups {
						if rank == victim {
							continue
						}
						err := transfers[rank].Wait(testContext(t))
						var failure *GroupError
						if !errors.As(err, &failure) || !slices.Equal(failure.Suspects, []int{victim}) {
							t.Errorf("rank %d: %v", rank, err)
						}
						if took := time.Since(began); took > noticed+cutGraces*lossGrace+2*tickInterval {
							t.Errorf("rank %d was told after %v", rank, took)
						}
						g.Abort()
					}
				})
			})
		}
	}
}

// TestOffloadLosesOnlyBlocks: one queue pair for blocks ends, whose members live: all are told of that within the bound all the same.
func TestOffloadLosesOnlyBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, block, size = 5, 1000, 300_000
		ds, _ := memDevices(t, n, mem.Config{Seed: 1, DelayMax: 2 * time.Millisecond})
		groups := newCluster(t, ds).all(GroupConfig{Number: 1, BlockSize: block, Algorithm: schedule.Chain, Offload: true, SilenceTimeout: faultSilence})
		transfers, _ := multicast(t, groups, randomMemory(1, size, block))
		<-time.After(20 * time.Millisecond)
		began := time.Now()
		groups[2].lanes[groups[2].core.laneOf[1]].blocks.qp.Abort()
		for rank, g := range groups {
			err := transfers[rank].Wait(testContext(t))
			var failure *GroupError
			if took := time.Since(began); !errors.As(err, &failure) || failure.Reason != ReasonDisconnected || took > cutGraces*lossGrace+2*tickInterval {
				t.Errorf("rank %d after %v: %v", rank, took, err)
			}
			g.Abort()
		}
	})
}

// TestOffloadNeverDeliversDamage: a block that is damaged on its way from the root goes through relays that have not looked at it, and
// is refused by all that it reaches.
func TestOffloadNeverDeliversDamage(t *testing.T) {
	const n, block = 5, 1000
	for seed := range uint64(4) {
		ds, _ := memDevices(t, n, mem.Config{Seed: seed, DelayMax: 100 * time.Microsecond})
		bad := newFaulty(ds[0], seed, false)
		ds[0] = bad
		groups := newCluster(t, ds).all(GroupConfig{Number: 1, BlockSize: block, Algorithm: schedule.Chain, Offload: true})
		bad.set(spoilFlip)
		src := randomMemory(seed, 20_000, block)
		told := make(chan struct{}) // all members of the message, before the first of them can find it damaged
		src.fail = func(uint64) error {
			<-told
			return nil
		}
		transfers, _ := multicast(t, groups, src)
		close(told)
		for rank, tr := range transfers[1:] {
			err := tr.Wait(testContext(t))
			var failure *GroupError
			if !errors.As(err, &failure) || failure.Reason != ReasonCorrupt || tr.Have().Count() != 0 {
				t.Errorf("rank %d: %v with %d blocks", rank+1, err, tr.Have().Count())
			}
		}
		for _, g := range groups {
			g.Abort()
		}
	}
}

// TestOffloadBesideAnotherGroup: while an engine has two groups they take turns, and nothing is posted ahead.
func TestOffloadBesideAnotherGroup(t *testing.T) {
	const block, n, blocks = 1000, 3, 10
	ds, _ := memDevices(t, n, mem.Config{Seed: 1})
	c := newCluster(t, ds)
	cfg := GroupConfig{Number: 1, BlockSize: block, Algorithm: schedule.Chain, Window: 2 * blocks, Grants: blocks, Offload: true}
	groups := c.all(cfg)
	cfg.Number = 2
	other := c.group(cfg, 1, 2)
	src := randomMemory(1, blocks*block, block)
	open := make(chan struct{})
	src.fail = func(uint64) error {
		<-open
		return nil
	}
	transfers, sinks := multicast(t, groups, src)
	relay := groups[1]
	waitFor(t, "credit for all blocks", func() bool {
		relay.mu.Lock()
		defer relay.mu.Unlock()
		return relay.core.lanes[relay.core.laneOf[2]].credit >= blocks
	})
	relay.mu.Lock()
	ahead := len(relay.core.offload.waiting)
	relay.mu.Unlock()
	if ahead != 0 {
		t.Errorf("%d sends were posted ahead", ahead)
	}
	close(open)
	verify(t, transfers, sinks)
	verifyOther, otherSinks := multicast(t, other, randomMemory(2, blocks*block, block))
	verify(t, verifyOther, otherSinks)
	closeAll(t, groups)
	closeAll(t, other)
}

func TestOffloadWithACap(t *testing.T) {
	ds, _ := memDevices(t, 1, mem.Config{})
	c := newCluster(t, ds)
	if _, err := c.engines[0].NewGroup(GroupConfig{Members: []string{"a", "b"}, Offload: true, SendRate: 1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a group with both: %v", err)
	}
}
