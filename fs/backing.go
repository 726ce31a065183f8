package fs

import (
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// backing is the passthrough of one version or live file: all its opens use the same one, or none does. The kernel
// refuses an inode that is open in both ways.
type backing struct {
	mu      sync.Mutex
	decided bool
	id      int32 // 0 = none: reads and writes come to the daemon
}

// attachBacking decides at the first open how a version or live file is read and written, and tells it to the kernel.
func (f *fileSystem) attachBacking(b *backing, fd int, out *fuse.OpenOut) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.decided {
		b.decided = true
		if fd >= 0 && f.passthrough.Load() {
			b.id = f.registerBacking(fd)
		}
	}
	if b.id != 0 {
		out.OpenFlags = (out.OpenFlags | fuse.FOPEN_PASSTHROUGH) &^ fuse.FOPEN_KEEP_CACHE
		out.BackingID = b.id
	}
}

// registerBacking gives 0 for a file the kernel will not take; only that file goes without.
func (f *fileSystem) registerBacking(fd int) int32 {
	id, no := f.notifier.backing().RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
	if no == 0 {
		return id
	}
	f.backingRefused.Do(func() {
		f.log.Warn("kernel refused a passthrough; such files are read and written through the daemon", "errno", no)
	})
	return 0
}

// on reports whether the kernel reads and writes the file by itself.
func (b *backing) on() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.id != 0
}

// detachBacking ends the passthrough when the last handle is closed.
func (f *fileSystem) detachBacking(b *backing) {
	b.mu.Lock()
	id := b.id
	b.id, b.decided = 0, true
	b.mu.Unlock()
	if id == 0 {
		return
	}
	if no := f.notifier.backing().UnregisterBackingFd(id); no != 0 && no != syscall.EBADF && no != syscall.ENOTCONN {
		f.log.Warn("close passthrough", "errno", no)
	}
}
