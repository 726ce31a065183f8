package rdmatest

import "github.com/rdmcfs/rdmcfs/rdma"

// Ordered is a device of which a test knows that it places writes in order, although the device does not say so.
type Ordered struct{ rdma.Device }

// OrderedWrites is true.
func (Ordered) OrderedWrites() bool { return true }
