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
