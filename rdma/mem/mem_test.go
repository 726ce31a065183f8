package mem

import (
	"fmt"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/rdmatest"
)

func TestConformance(t *testing.T) {
	for _, delay := range []time.Duration{0, 200 * time.Microsecond} {
		t.Run(fmt.Sprintf("DelayMax=%v", delay), func(t *testing.T) {
			rdmatest.Run(t, func(t testing.TB) rdmatest.Pair {
				f := NewFabric(Config{Seed: 1, DelayMax: delay, ReceiverTimeout: 1500 * time.Millisecond,
					PeerTimeout: 50 * time.Millisecond})
				names := []string{"a", "b"}
				return rdmatest.Pair{
					Devices: []rdma.Device{f.Device("a"), f.Device("b")},
					Kill:    func(i int) { f.Kill(names[i]) },
				}
			})
		})
	}
}
