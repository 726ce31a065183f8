// Package rdmatest is the conformance suite of the fabric: what package rdma promises, as tests that every
// provider passes.
//
//	func TestConformance(t *testing.T) {
//		rdmatest.Run(t, func(t testing.TB) rdmatest.Pair {
//			a, b := newDevice(t), newDevice(t)
//			return rdmatest.Pair{Devices: []rdma.Device{a, b}}
//		})
//	}
//
// Each subtest gets devices of its own, closes them, and then looks for goroutines left behind.
package rdmatest
