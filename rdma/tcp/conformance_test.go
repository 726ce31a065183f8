package tcp

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/rdmatest"
)

// testDevice listens on loopback and gives up early on missing receives.
func testDevice(t testing.TB, cfg Config) *Device {
	t.Helper()
	if cfg.ReceiverTimeout == 0 {
		cfg.ReceiverTimeout = 1500 * time.Millisecond
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func TestConformance(t *testing.T) {
	inBothWays(t, func(t *testing.T, cfg Config) {
		rdmatest.Run(t, func(t testing.TB) rdmatest.Pair {
			return rdmatest.Pair{Devices: []rdma.Device{testDevice(t, cfg), testDevice(t, cfg)}}
		})
	})
}

// inBothWays tests pairs that read by themselves, and such that the watch reads.
func inBothWays(t *testing.T, test func(t *testing.T, cfg Config)) {
	t.Run("Own", func(t *testing.T) { test(t, Config{}) })
	t.Run("Watch", func(t *testing.T) { test(t, Config{watch: true}) })
}
