package mixed

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
	"github.com/rdmcfs/rdmcfs/rdma/rdmatest"
	"github.com/rdmcfs/rdmcfs/rdma/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tcpDevice listens on loopback and gives up early on missing receives.
func tcpDevice(t testing.TB) rdma.Device {
	t.Helper()
	d, err := tcp.New(tcp.Config{ReceiverTimeout: 1500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func newFabric(seed uint64) *mem.Fabric {
	return mem.NewFabric(mem.Config{Seed: seed, DelayMax: 50 * time.Microsecond,
		ReceiverTimeout: 1500 * time.Millisecond, PeerTimeout: 50 * time.Millisecond})
}

func newMixed(t testing.TB, cfg Config) *Device {
	t.Helper()
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func devices(d ...rdma.Device) Config { return Config{Devices: d} }

// shapes are the combinations of devices at both ends, and who carries their pairs.
var shapes = []struct {
	name    string
	carrier string
	make    func(t testing.TB) (a, b Config)
}{
	{"MemTcp", "mem:b", func(t testing.TB) (a, b Config) {
		f := newFabric(1)
		return devices(f.Device("a"), tcpDevice(t)), devices(f.Device("b"), tcpDevice(t))
	}},
	{"TwoFabrics", "mem:b", func(t testing.TB) (a, b Config) {
		f, g := newFabric(1), newFabric(2)
		return devices(f.Device("a"), g.Device("c")), devices(f.Device("b"), g.Device("d"))
	}},
	{"TwoTcp", "tcp", func(t testing.TB) (a, b Config) {
		return devices(tcpDevice(t), tcpDevice(t)), devices(tcpDevice(t), tcpDevice(t))
	}},
	{"OnlyOneHasMem", "tcp", func(t testing.TB) (a, b Config) {
		return devices(newFabric(1).Device("a"), tcpDevice(t)), devices(tcpDevice(t))
	}},
	{"OnlyOtherHasMem", "tcp", func(t testing.TB) (a, b Config) {
		return devices(tcpDevice(t)), devices(newFabric(1).Device("b"), tcpDevice(t))
	}},
	{"ThinTcp", "tcp", func(t testing.TB) (a, b Config) {
		return devices(tcpDevice(t)), devices(tcpDevice(t))
	}},
	{"FullMemOfOne", "mem:b", func(t testing.TB) (a, b Config) {
		f := newFabric(1)
		return Config{Devices: []rdma.Device{f.Device("a")}, Full: true}, devices(f.Device("b"), tcpDevice(t))
	}},
}

func TestConformance(t *testing.T) {
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			rdmatest.Run(t, func(t testing.TB) rdmatest.Pair {
				a, b := s.make(t)
				return rdmatest.Pair{Devices: []rdma.Device{newMixed(t, a), newMixed(t, b)}}
			})
		})
	}
}
