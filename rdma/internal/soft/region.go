package soft

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// The state word of a region: two flags and the number of users.
const (
	stateStale   = 1 << 63
	stateClosing = 1 << 62
	stateUsers   = 1<<32 - 1
)

// Region is registered memory of a software provider.
type Region struct {
	table  *Table
	mem    []byte
	key    rdma.RegionKey
	access rdma.Access
	mapped bool          // mem is ours to unmap
	state  atomic.Uint64 // flags | users
	idle   chan struct{} // closed by the last user of a closing region
	closed chan struct{} // closed when Close is done
}

var _ rdma.Region = (*Region)(nil)

// Bytes is the memory of the region.
func (r *Region) Bytes() []byte { return r.mem }

// Key is the remote key.
func (r *Region) Key() rdma.RegionKey { return r.key }

// Invalidate makes the region stale: nobody can acquire it any more. It does not wait.
func (r *Region) Invalidate() { r.state.Or(stateStale) }

// acquire makes the caller a user; it fails on a stale region.
func (r *Region) acquire() bool {
	for {
		s := r.state.Load()
		if s&stateStale != 0 {
			return false
		}
		if r.state.CompareAndSwap(s, s+1) {
			return true
		}
	}
}

// Release ends one use that Table.Acquire or a post began.
func (r *Region) Release() {
	s := r.state.Add(^uint64(0))
	if s&stateClosing != 0 && s&stateUsers == 0 {
		close(r.idle)
	}
}

// Close waits for the users of the region, takes it out of the table and unmaps what AllocRegion mapped.
// Where the table does not wait (stepped fabrics), a used region answers ErrState and stays stale.
func (r *Region) Close() error {
	if r.table.NoWait && r.state.Load()&stateUsers != 0 {
		r.Invalidate()
		return fmt.Errorf("soft: close region %#x: in use: %w", uint64(r.key), rdma.ErrState)
	}
	if !r.beginClose() {
		<-r.closed
		return nil
	}
	<-r.idle
	defer close(r.closed)
	r.table.remove(r.key)
	if !r.mapped {
		return nil
	}
	if err := unix.Munmap(r.mem); err != nil {
		return fmt.Errorf("soft: unmap region %#x: %w", uint64(r.key), err)
	}
	return nil
}

// beginClose sets the flags and reports whether this call was the first to do so.
func (r *Region) beginClose() bool {
	for {
		s := r.state.Load()
		if s&stateClosing != 0 {
			return false
		}
		if !r.state.CompareAndSwap(s, s|stateClosing|stateStale) {
			continue
		}
		if s&stateUsers == 0 {
			close(r.idle)
		}
		return true
	}
}
