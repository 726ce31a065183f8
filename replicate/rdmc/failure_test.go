package rdmc

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

// TestDSN_4_6_CorruptSenderIsTold: a member finds a block corrupt, and only the sender of that block could pass this on
// to others. The sender learns what was found before it sees the connection end, so that all suspect the sender and not
// the member that found the corruption.
func TestDSN_4_6_CorruptSenderIsTold(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		all := devices(2)
		bad := newFaulty(all[0], 1, false)
		all[0] = bad
		c := newCluster(t, all)
		groups := c.all(GroupConfig{Number: 1, BlockSize: 1000})
		bad.set(spoilFlip)
		multicast(t, groups, randomMemory(1, 20_000, 1000))
		ends := make(chan error, 2)
		for _, g := range groups {
			go func() { ends <- g.Close(testContext(t)) }()
		}
		for range groups {
			err := <-ends
			var failure *GroupError
			if !errors.As(err, &failure) || failure.Reason != ReasonCorrupt || !slices.Equal(failure.Suspects, []int{0}) {
				t.Errorf("%v, want a corrupt block of member 0", err)
			}
		}
	})
}

// TestDSN_4_6_StoppedWhileOthersClose: a member falls silent when no message is under way and others wait for the end
// of the group. They are notified as they would be in mid-transfer.
func TestDSN_4_6_StoppedWhileOthersClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		devices, fabric := memDevices(t, 4, mem.Config{Seed: 1})
		c := newCluster(t, devices)
		groups := c.all(GroupConfig{Number: 1, BlockSize: 1000, SilenceTimeout: faultSilence})
		transfers, sinks := multicast(t, groups, randomMemory(1, 20_000, 1000))
		verify(t, transfers, sinks)
		<-time.After(time.Hour) // idle: nobody watches nor is watched
		fabric.Stop("0")
		var closing sync.WaitGroup
		for _, g := range groups[1:] {
			closing.Go(func() { _ = g.Close(testContext(t)) }) // fails with the group
		}
		<-time.After(faultBound)
		for _, g := range groups[1:] {
			var failure *GroupError
			if !errors.As(g.Err(), &failure) || failure.Reason != ReasonSilent || !slices.Equal(failure.Suspects, []int{0}) {
				t.Errorf("rank %d: %v", g.cfg.Rank, g.Err())
			}
		}
		closing.Wait()
		fabric.Resume("0")
	})
}
