package fs

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// passthrough lets the kernel read and write files by itself, where it can.
type passthrough struct {
	log     *slog.Logger
	on      atomic.Bool
	kernel  Kernel // set before on is
	why     string // it is off; constant from the mount on
	refused sync.Once
}

// probe finds out whether the kernel can read and write staged files by itself.
func (pt *passthrough) probe(kernel Kernel, off bool) {
	pt.kernel = kernel
	switch {
	case off:
		pt.why = "switched off by option"
		return
	case !kernel.Passthrough():
		pt.why = "this kernel has no FUSE passthrough (6.9 and later have)"
		return
	}
	fd, err := unix.MemfdCreate("rdmcfs-probe", unix.MFD_CLOEXEC)
	if err != nil {
		pt.why = fmt.Sprintf("memfd_create: %v", err)
		return
	}
	defer unix.Close(fd)
	id, no := kernel.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
	if no != 0 {
		pt.why = fmt.Sprintf("kernel refuses it: %v (it needs CAP_SYS_ADMIN)", no)
		return
	}
	kernel.UnregisterBackingFd(id)
	pt.on.Store(true)
}

// backing is the passthrough of one version or live file: all its opens use the same one, or none does. The kernel
// refuses an inode that is open in both ways.
type backing struct {
	mu      sync.Mutex
	decided bool
	id      int32 // 0 = none: reads and writes come to the daemon
	passed  bool  // programs may have mappings by it
}

// attach decides at the first open how a version or live file is read and written, and lets the kernel know.
func (pt *passthrough) attach(b *backing, fd int, out *fuse.OpenOut) {
	pt.decide(b, fd)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.id != 0 {
		out.OpenFlags = (out.OpenFlags | fuse.FOPEN_PASSTHROUGH) &^ fuse.FOPEN_KEEP_CACHE
		out.BackingID = b.id
	}
}

// decide is attach without an open.
func (pt *passthrough) decide(b *backing, fd int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.decided {
		return
	}
	b.decided = true
	if fd >= 0 && pt.on.Load() {
		b.id = pt.register(fd)
	}
	b.passed = b.passed || b.id != 0
}

// renew makes the next open decide again. No handle is open; mappings may be.
func (pt *passthrough) renew(b *backing) {
	pt.detach(b)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decided = false
}

// register returns 0 for a file that the kernel will not take; only that file goes without passthrough.
func (pt *passthrough) register(fd int) int32 {
	id, no := pt.kernel.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
	if no == 0 {
		return id
	}
	pt.refused.Do(func() {
		pt.log.Warn("kernel refused a passthrough; such files are read and written through the daemon", "errno", no)
	})
	return 0
}

// on reports whether the kernel reads and writes the file by itself, or did so for mappings that may still be there.
func (b *backing) on() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.passed
}

// detach ends the passthrough when the last handle is closed.
func (pt *passthrough) detach(b *backing) {
	b.mu.Lock()
	id := b.id
	b.id, b.decided = 0, true
	b.mu.Unlock()
	if id == 0 {
		return
	}
	if no := pt.kernel.UnregisterBackingFd(id); no != 0 && no != syscall.EBADF && no != syscall.ENOTCONN {
		pt.log.Warn("close passthrough", "errno", no)
	}
}
