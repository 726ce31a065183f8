//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"os"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/rdmatest"
)

// deviceName is the RDMA device of the machine for tests, which test/vm/run.sh makes.
func deviceName(t testing.TB) string {
	name := os.Getenv("RDMCFS_TEST_VERBS")
	if name == "" {
		t.Skip("needs an RDMA device: run the test binary by test/vm/run.sh")
	}
	return name
}

// testDevice opens the device of the VM. Its copies are of whole words, on one of the kernels in order: see
// test/vm/run.sh.
func testDevice(t testing.TB, cfg Config) *device {
	t.Helper()
	cfg.Device = deviceName(t)
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
	})
	if os.Getenv("RDMCFS_TEST_ORDERED") != "" {
		d.(*device).info.Vendor = mellanox // whose writes come in order
	}
	return d.(*device)
}

// quick has failures found early, yet not before a busy emulated processor has answered.
var quick = Config{PeerTimeout: time.Second, ReceiverTimeout: time.Second}

func TestConformance(t *testing.T) {
	for name, bye := range map[string]bool{"Farewell": true, "Silent": false} {
		t.Run(name, func(t *testing.T) {
			rdmatest.Run(t, func(t testing.TB) rdmatest.Pair {
				a, b := quick, quick
				a.GID, b.GID = "10.77.0.1", "10.77.0.2"
				devices := []*device{testDevice(t, a), testDevice(t, b)}
				return rdmatest.Pair{
					Devices: []rdma.Device{devices[0], devices[1]}, Patience: 30 * time.Second,
					Kill: func(i int) { // a process that dies says nothing
						devices[i].bell.muted.Store(!bye)
						_ = devices[i].Close()
					},
				}
			})
		})
	}
}

func BenchmarkVerbs(b *testing.B) {
	rdmatest.Bench(b, func(t testing.TB) rdmatest.Pair {
		return rdmatest.Pair{Devices: []rdma.Device{testDevice(t, quick), testDevice(t, quick)}}
	})
}
