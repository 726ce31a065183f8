//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/pages"
	"github.com/rdmcfs/rdmcfs/rdma"
)

// keyShift is where a key holds the offset of the region in its first page. Peers address the region from
// zero, but devices want addresses and memory at the same place in a page.
const (
	keyShift = 32
	keyBits  = keyShift + 12
	pageMask = 1<<12 - 1
)

// region is registered memory. Its remote registration is one of its own: see the package comment.
type region struct {
	dev      *device
	mem      []byte
	base     uint64 // address of mem
	mapped   bool   // mem is ours to unmap
	localMR  uintptr
	localKey uint32
	key      rdma.RegionKey

	uses pages.Uses

	mu       sync.Mutex // protects remoteMR
	remoteMR uintptr    // 0: none, or withdrawn
}

var _ rdma.Region = (*region)(nil)

func (d *device) alloc(size int, access rdma.Access) (*region, error) {
	mem, err := pages.Map(size)
	if err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	r, err := d.register(mem, access, true)
	if err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	return r, nil
}

func (d *device) register(mem []byte, access rdma.Access, mapped bool) (*region, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("verbs: register no memory: %w", rdma.ErrRequest)
	}
	if limit := d.info.Limits.RegionBytes; uint64(len(mem)) > limit {
		return nil, fmt.Errorf("verbs: register %d bytes, limit of the device %d: %w", len(mem), limit, rdma.ErrRequest)
	}
	r := &region{dev: d, mem: mem, mapped: mapped, base: uint64(uintptr(unsafe.Pointer(&mem[0])))}
	r.uses.Init()
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.calls.Done()
	if err := r.pin(access); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.regions[r] = struct{}{}
	return r, nil
}

func (d *device) forgetRegion(r *region) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.regions, r)
}

// pin registers the memory with the device.
func (r *region) pin(access rdma.Access) error {
	l, d, n := r.dev.lib, r.dev, uintptr(len(r.mem))
	mr, errno := l.call(l.regMR, d.pd, uintptr(r.base), n, accessLocalWrite)
	if mr == 0 && errno == syscall.EFAULT && access&rdma.RemoteWrite == 0 {
		mr, errno = l.call(l.regMR, d.pd, uintptr(r.base), n, 0) // a read-only mapping
	}
	if mr == 0 {
		return pinError(len(r.mem), errno)
	}
	r.localMR, r.localKey = mr, *field[uint32](mr, mrLocalKey)
	if access == 0 {
		return nil
	}
	rights := uintptr(0)
	if access&rdma.RemoteRead != 0 {
		rights |= accessRemoteRead
	}
	if access&rdma.RemoteWrite != 0 {
		rights |= accessRemoteWrite | accessLocalWrite // no remote writes without local ones
	}
	offset := uintptr(r.base) & pageMask
	mr, errno = l.call(l.regMRIova, d.pd, uintptr(r.base), n, offset, rights)
	if mr == 0 {
		_, _ = l.call(l.deregMR, r.localMR)
		return pinError(len(r.mem), errno)
	}
	r.remoteMR = mr
	r.key = rdma.RegionKey(*field[uint32](mr, mrRemoteKey)) | rdma.RegionKey(offset)<<keyShift
	return nil
}

// pinError says what keeps memory from being registered.
func pinError(bytes int, errno syscall.Errno) error {
	switch {
	case errno == syscall.ENOMEM:
		return lockedError(fmt.Errorf("verbs: register %d bytes: %w", bytes, errno), lockedLimit)
	case errno == syscall.EFAULT:
		return fmt.Errorf("verbs: register %d bytes: %w: the kernel pins no file-backed pages for writing; use anonymous "+
			"memory", bytes, errno)
	case errno == 0:
		return errors.New("verbs: register memory: refused without a reason")
	}
	return fmt.Errorf("verbs: register %d bytes: %w", bytes, errno)
}

// lockedError adds to err what it mostly means if locked memory has a limit and the kernel finds no memory: the queues
// of cards are in locked memory, too.
func lockedError(err error, limit func() (uint64, error)) error {
	if !errors.Is(err, syscall.ENOMEM) {
		return err
	}
	most, unknown := limit()
	if unknown != nil || most == ^uint64(0) {
		return err
	}
	return fmt.Errorf("%w: %w; %d KiB may be locked in all (regions with remote rights count twice); %s",
		ErrLockedMemory, err, most>>10, lockedAdvice)
}

// Bytes is the memory of the region.
func (r *region) Bytes() []byte { return r.mem }

// Key is the remote key; zero without remote rights.
func (r *region) Key() rdma.RegionKey { return r.key }

// remoteAddress turns a key and an offset into what the device at the other end expects. A key that no
// region can have becomes 0, which devices refuse.
func remoteAddress(key rdma.RegionKey, offset uint64) (addr uint64, rkey uint32) {
	if key>>keyBits != 0 {
		return offset, 0
	}
	return offset + uint64(key>>keyShift), uint32(key)
}

// acquire makes the caller a user of n bytes at offset; release ends that.
func (r *region) acquire(offset, n int) error {
	if offset < 0 || n < 0 || offset > len(r.mem) || n > len(r.mem)-offset {
		return fmt.Errorf("verbs: %d bytes at %d of a region with %d: %w", n, offset, len(r.mem), rdma.ErrBounds)
	}
	if !r.uses.Acquire() {
		return fmt.Errorf("verbs: region is stale: %w", rdma.ErrState)
	}
	return nil
}

func (r *region) release() { r.uses.Release() }

// Invalidate withdraws the region from peers and refuses later posts. It does not wait for posted work.
func (r *region) Invalidate() {
	r.uses.Invalidate()
	r.mu.Lock()
	mr := r.remoteMR
	r.remoteMR = 0
	r.mu.Unlock()
	if err := r.unpin(mr); err != nil {
		r.dev.cfg.Log.Warn("invalidate region", "error", err)
	}
}

// unpin ends one registration. That of a device which is gone has ended by itself.
func (r *region) unpin(mr uintptr) error {
	if mr == 0 {
		return nil
	}
	err := r.dev.lib.check("deregister region", r.dev.lib.deregMR, mr)
	if err != nil && r.dev.lost() {
		return nil
	}
	return err
}

// Close waits for the users of the region, deregisters it, and unmaps what AllocRegion mapped.
func (r *region) Close() error {
	if !r.uses.Close() {
		<-r.uses.Ended()
		return nil
	}
	if r.uses.Users() > 0 {
		r.dev.ask()
	}
	<-r.uses.Idle()
	defer r.uses.End()
	r.Invalidate()
	err := r.unpin(r.localMR)
	if r.mapped {
		err = errors.Join(err, unix.Munmap(r.mem))
	}
	r.dev.forgetRegion(r)
	if err != nil {
		return fmt.Errorf("verbs: close region: %w", err)
	}
	return nil
}
