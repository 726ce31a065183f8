// Package pages has the part of registered memory that all providers share: how it is mapped, and who uses it.
package pages

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// hugeBytes is the size from which mapped memory asks for huge pages: fewer entries in a device's tables.
const hugeBytes = 4 << 20

// Map maps anonymous memory. The caller unmaps it.
func Map(size int) ([]byte, error) {
	if size <= 0 {
		return nil, fmt.Errorf("alloc region of %d bytes: %w", size, rdma.ErrRequest)
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map region of %d bytes: %w", size, err)
	}
	if size >= hugeBytes {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // only a hint: kernels without it serve small pages
	}
	return mem, nil
}

// The state word: two flags and the number of users.
const (
	stateStale   = 1 << 63
	stateClosing = 1 << 62
	stateUsers   = 1<<32 - 1
)

// Uses counts the users of a region, from its registration to its end. All methods may be called by several goroutines.
type Uses struct {
	state  atomic.Uint64 // flags | users
	idle   chan struct{} // closed by the last user of a closing region
	closed chan struct{} // closed by End
}

// Init must be called before the region is given to others.
func (u *Uses) Init() { u.idle, u.closed = make(chan struct{}), make(chan struct{}) }

// Acquire makes the caller a user until Release; it fails on a stale region.
func (u *Uses) Acquire() bool {
	for {
		s := u.state.Load()
		if s&stateStale != 0 {
			return false
		}
		if u.state.CompareAndSwap(s, s+1) {
			return true
		}
	}
}

// Release ends one use.
func (u *Uses) Release() {
	s := u.state.Add(^uint64(0))
	if s&stateClosing != 0 && s&stateUsers == 0 {
		close(u.idle)
	}
}

// Invalidate makes the region stale: nobody can acquire it any more. It does not wait.
func (u *Uses) Invalidate() { u.state.Or(stateStale) }

// Stale reports whether the region can't be acquired any more.
func (u *Uses) Stale() bool { return u.state.Load()&stateStale != 0 }

// Users is how many there are.
func (u *Uses) Users() int { return int(u.state.Load() & stateUsers) }

// Over reports whether the region is being closed and has no user left.
func (u *Uses) Over() bool {
	s := u.state.Load()
	return s&stateClosing != 0 && s&stateUsers == 0
}

// Close makes the region stale and reports whether this call was the first to do so. The first caller waits for Idle,
// frees what the region holds, and calls End; all others wait for Ended.
func (u *Uses) Close() (first bool) {
	for {
		s := u.state.Load()
		if s&stateClosing != 0 {
			return false
		}
		if !u.state.CompareAndSwap(s, s|stateClosing|stateStale) {
			continue
		}
		if s&stateUsers == 0 {
			close(u.idle)
		}
		return true
	}
}

// Idle is closed when a closing region has no user any more.
func (u *Uses) Idle() <-chan struct{} { return u.idle }

// End says that the region is closed.
func (u *Uses) End() { close(u.closed) }

// Ended is closed by End.
func (u *Uses) Ended() <-chan struct{} { return u.closed }
