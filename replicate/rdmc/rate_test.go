package rdmc

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// TestSendRate caps the root of a real group: the time is what the cap says, small messages included.
func TestSendRate(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(3))
		const size, rate = 400_000, 1_000_000
		groups, _ := smallGroups(t, c, GroupConfig{BlockSize: 4096, SmallBytes: 1000, SendRate: rate})
		began := time.Now()
		transfers, sinks := multicast(t, groups, randomMemory(1, size, 4096))
		verify(t, transfers, sinks)
		var last uint64
		for range 50 {
			last = sendSmall(t, groups[0], make([]byte, 960))
		}
		if err := groups[0].WaitDelivered(testContext(t), last); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began).Seconds()
		// The root sends at least the large message once and each small one twice; a burst of 10 ms and two blocks
		// are free.
		if least := float64(size+2*50*1000)/rate - 0.03; took < least {
			t.Errorf("took %.3f s, the cap allows no less than %.3f", took, least)
		}
		closeAll(t, groups)
	})
}
