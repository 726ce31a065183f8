package soft

import "github.com/rdmcfs/rdmcfs/rdma"

// Base is what the devices of software providers have in common: their regions are those of a table, and the last
// aligned word of a write is stored after all else.
type Base struct{ table *Table }

// NewBase makes the base of a device with these regions.
func NewBase(t *Table) Base { return Base{t} }

// OrderedWrites is true.
func (b Base) OrderedWrites() bool { return true }

// AllocRegion maps anonymous memory.
func (b Base) AllocRegion(size int, access rdma.Access) (rdma.Region, error) {
	return b.table.Alloc(size, access)
}

// Register registers the caller's memory.
func (b Base) Register(mem []byte, access rdma.Access) (rdma.Region, error) {
	return b.table.Register(mem, access)
}

// NewCQ makes a completion queue.
func (b Base) NewCQ(depth int) (rdma.CompletionQueue, error) {
	q, err := NewCQ(depth)
	if err != nil {
		return nil, err
	}
	return q, nil
}
