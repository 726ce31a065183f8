package rdmatest

import "github.com/rdmcfs/rdmcfs/rdma"

// Ordered is a device that a test knows to place writes in order, although the device does not say so.
type Ordered struct{ rdma.Device }

// OrderedWrites is true.
func (Ordered) OrderedWrites() bool { return true }
