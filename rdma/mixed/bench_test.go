package mixed

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/rdmatest"
)

// BenchmarkFabric compares tcp alone, as the one device of a mixed one, and as one of two.
func BenchmarkFabric(b *testing.B) {
	for _, c := range []struct {
		name string
		make func(t testing.TB) rdma.Device
	}{
		{"Bare", tcpDevice},
		{"Thin", func(t testing.TB) rdma.Device { return newMixed(t, devices(tcpDevice(t))) }},
		{"OfTwo", func(t testing.TB) rdma.Device { return newMixed(t, devices(tcpDevice(t), tcpDevice(t))) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			rdmatest.Bench(b, func(t testing.TB) rdmatest.Pair {
				return rdmatest.Pair{Devices: []rdma.Device{c.make(t), c.make(t)}}
			})
		})
	}
}
