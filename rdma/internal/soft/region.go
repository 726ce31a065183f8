package soft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/pages"
	"github.com/rdmcfs/rdmcfs/rdma"
)

// Region is registered memory of a software provider.
type Region struct {
	table  *Table
	mem    []byte
	key    rdma.RegionKey
	access rdma.Access
	mapped bool // mem is ours to unmap
	uses   pages.Uses
}

var _ rdma.Region = (*Region)(nil)

// Bytes is the memory of the region.
func (r *Region) Bytes() []byte { return r.mem }

// Key is the remote key.
func (r *Region) Key() rdma.RegionKey { return r.key }

// Invalidate makes the region stale: nobody can acquire it any more. It does not wait.
func (r *Region) Invalidate() { r.uses.Invalidate() }

// Release ends one use that Table.Acquire or a post began.
func (r *Region) Release() { r.uses.Release() }

// Close waits for the users of the region, takes it out of the table and unmaps what AllocRegion mapped. If the table
// does not wait (stepped fabrics), Close of a used region returns ErrState, and the region stays stale.
func (r *Region) Close() error {
	if r.table.NoWait && r.uses.Users() > 0 {
		r.Invalidate()
		return fmt.Errorf("soft: close region %#x: in use: %w", uint64(r.key), rdma.ErrState)
	}
	if !r.uses.Close() {
		<-r.uses.Ended()
		return nil
	}
	<-r.uses.Idle()
	defer r.uses.End()
	r.table.remove(r.key)
	if !r.mapped {
		return nil
	}
	if err := unix.Munmap(r.mem); err != nil {
		return fmt.Errorf("soft: unmap region %#x: %w", uint64(r.key), err)
	}
	return nil
}
