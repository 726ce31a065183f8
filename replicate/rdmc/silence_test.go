package rdmc

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma/mem"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// watcher is the root of a group of two, with a message under way to a member that says nothing.
func watcher(t *testing.T, now time.Time) *core {
	t.Helper()
	plan, err := schedule.NewPlan(schedule.BinomialPipeline, 2)
	if err != nil {
		t.Fatal(err)
	}
	c := newCore(plan, 0, 1000, 1, false, coreLimits{slots: 4, posted: 2, pins: 2, sends: 1, silence: 2 * time.Second,
		interval: time.Second})
	c.now = now
	c.connected(0)
	if err := c.announce(Announcement{Seq: 1, Size: 9000, Blocks: AllBlocks(9)}, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestStarvedWatcherAccusesNobody: a member runs once in 0.9 s. Time that it did not watch does not count as silence.
// When it runs again as it should, it notices silence in time.
func TestStarvedWatcherAccusesNobody(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	c := watcher(t, now)
	for range 15 {
		now = now.Add(900 * time.Millisecond)
		if c.tick(now); c.failure != nil {
			t.Fatalf("accused %v after %v of starvation", c.failure.suspects, now.Sub(time.Unix(1_000_000, 0)))
		}
	}
	from := now
	for c.failure == nil && now.Sub(from) < 3*time.Second {
		now = now.Add(tickInterval)
		c.tick(now)
	}
	if c.failure == nil || c.failure.reason != ReasonSilent || now.Sub(from) > 2*time.Second {
		t.Fatalf("%+v after %v", c.failure, now.Sub(from))
	}
}

// TestSilenceIsNoticedInTime: the ticks come as they should, or a little late.
func TestSilenceIsNoticedInTime(t *testing.T) {
	for _, every := range []time.Duration{tickInterval, tickInterval + 30*time.Millisecond} {
		now := time.Unix(1_000_000, 0)
		c := watcher(t, now)
		for c.failure == nil && now.Sub(time.Unix(1_000_000, 0)) < 5*time.Second {
			now = now.Add(every)
			c.tick(now)
		}
		if took := now.Sub(time.Unix(1_000_000, 0)); c.failure == nil || took < 2*time.Second ||
			took > 2*time.Second+2*every {
			t.Errorf("ticks every %v: %+v after %v", every, c.failure, took)
		}
	}
}

// TestWhoIsDoneWatchesOn: a member of a chain stops when all others have the message. The root is no neighbour of it
// and the member before it is done, but all hear of it.
func TestWhoIsDoneWatchesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, last, blocks = 4, 3, 40
		devices, fabric := memDevices(t, n, mem.Config{Seed: 1, PeerTimeout: time.Hour})
		c := newCluster(t, devices)
		groups := c.all(GroupConfig{Number: 1, BlockSize: faultBlock, Algorithm: schedule.Chain,
			SilenceTimeout: 300 * time.Millisecond})
		root, err := groups[0].Send(Outgoing{Size: blocks * faultBlock,
			Source: randomMemory(1, blocks*faultBlock, faultBlock)})
		if err != nil {
			t.Fatal(err)
		}
		var before []*Transfer
		for rank, g := range groups[1:] {
			sink := newMemory(blocks*faultBlock, faultBlock)
			if rank+1 == last {
				sink.fail = func(i uint64) error {
					if i == blocks-1 { // it has come, and is not stored before the member stops
						for _, tr := range before {
							<-tr.Done()
						}
						fabric.Stop(fmt.Sprint(last))
					}
					return nil
				}
			}
			tr, err := g.Receive(root.Announcement(), Receiver{Sink: sink})
			if err != nil {
				t.Fatal(err)
			}
			if rank+1 != last {
				before = append(before, tr)
			}
		}
		for rank, g := range groups[:last] {
			select {
			case <-g.Failed():
			case <-time.After(5 * time.Second):
				t.Fatalf("rank %d was not told", rank)
			}
			var failure *GroupError
			if !errors.As(g.Err(), &failure) || !slices.Equal(failure.Suspects, []int{last}) {
				t.Errorf("rank %d: %v", rank, g.Err())
			}
		}
		fabric.Resume(fmt.Sprint(last))
	})
}

// TestLateMemberIsWaitedFor: a member that lives hears of a message long after all others have it. Nobody takes it for
// dead.
func TestLateMemberIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, last, blocks = 3, 2, 3
		devices, _ := memDevices(t, n, mem.Config{Seed: 1})
		c := newCluster(t, devices)
		groups := c.all(GroupConfig{Number: 1, BlockSize: faultBlock, Algorithm: schedule.Chain,
			SilenceTimeout: 200 * time.Millisecond})
		src := randomMemory(1, blocks*faultBlock, faultBlock)
		root, err := groups[0].Send(Outgoing{Size: blocks * faultBlock, Source: src})
		if err != nil {
			t.Fatal(err)
		}
		sinks := []*memory{src, newMemory(blocks*faultBlock, faultBlock), newMemory(blocks*faultBlock, faultBlock)}
		transfers := []*Transfer{root, nil, nil}
		for rank := 1; rank < n; rank++ {
			if rank == last {
				select {
				case <-time.After(time.Second): // five times the silence
				case <-groups[0].Failed():
					t.Fatal(groups[0].Err())
				}
			}
			if transfers[rank], err = groups[rank].Receive(root.Announcement(), Receiver{Sink: sinks[rank]}); err != nil {
				t.Fatal(err)
			}
		}
		verify(t, transfers, sinks)
		closeAll(t, groups)
	})
}
