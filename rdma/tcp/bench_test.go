package tcp

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/rdmatest"
)

func BenchmarkLoopback(b *testing.B) {
	rdmatest.Bench(b, func(t testing.TB) rdmatest.Pair {
		return rdmatest.Pair{Devices: []rdma.Device{testDevice(t, Config{}), testDevice(t, Config{})}}
	})
}
