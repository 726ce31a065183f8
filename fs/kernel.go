package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Kernel is what sends requests to a file system, as the file system sees it. All methods may be called from several
// goroutines.
type Kernel interface {
	// Serve sends requests, and returns when no more will come.
	Serve()
	// Device is the number of the mount's device, as in mountinfo; "" if it has none, or if it is not known.
	Device() string
	// Passthrough reports whether the kernel can read and write staged files by itself; then a file is registered for
	// it.
	Passthrough() bool
	// MapsDirect reports whether programs can map files that are read without the page cache.
	MapsDirect() bool
	RegisterBackingFd(*fuse.BackingMap) (id int32, errno syscall.Errno)
	UnregisterBackingFd(id int32) syscall.Errno
	// InodeNotify drops the cached attributes of a node (offset -1), or all its pages too (offset 0, length 0): then it
	// waits for reads that fill them. It answers ENOENT for a node that the kernel does not know.
	InodeNotify(node uint64, offset, length int64) fuse.Status
	// Epoch makes the kernel look all cached names up again. It returns false where that can't be done: then no name
	// may be cached.
	Epoch() bool
	// Unmount ends the mount. While it is in use it returns a *BusyError and changes nothing.
	Unmount(ctx context.Context) error
	// Detach takes the name of the mount away. Programs that have files open get errors from now on.
	Detach() error
	// Abort cuts off all programs that still use the file system. Nothing happens when the connection has ended.
	Abort() error
	// Close is called when no requests come any more.
	Close() error
}

// linuxKernel is the kernel's connection of a mount.
type linuxKernel struct {
	*fuse.Server
	dir   string
	minor string        // the mount's device, as in mountinfo: 0:MINOR
	done  chan struct{} // closed when the connection has ended

	mu  sync.Mutex
	dev int // our own descriptor of the connection; -1 when closed
}

var _ Kernel = (*linuxKernel)(nil)

// mountLinux mounts at o.Dir.
func mountLinux(o Options, requests fuse.RawFileSystem) (Kernel, error) {
	dev, err := mountDevice(o.Dir, o)
	if err != nil {
		return nil, err
	}
	k := &linuxKernel{dir: o.Dir, minor: mountedDevice(o.Dir), done: make(chan struct{})}
	if k.dev, err = unix.FcntlInt(uintptr(dev), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return nil, errors.Join(err, unix.Close(dev), detach(o.Dir))
	}
	var more uint64
	if o.ACL {
		more = fuse.CAP_DONT_MASK | fuse.CAP_SETXATTR_EXT
	}
	if o.Follow {
		more |= fuse.CAP_DIRECT_IO_ALLOW_MMAP
	}
	k.Server, err = fuse.NewServer(requests, fmt.Sprintf("/dev/fd/%d", dev), &fuse.MountOptions{
		MaxWrite: maxWrite, MaxBackground: maxBackground, MaxReadAhead: maxReadAhead,
		ExplicitDataCacheControl: true, EnableAcl: o.ACL, Debug: o.Debug, DisableReadDirPlus: true, EnableLocks: true,
		ExtraCapabilities: capHandleKillprivV2 | fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_EXPORT_SUPPORT | more,
		Logger:            slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
	})
	if err != nil {
		return nil, errors.Join(err, k.Close(), detach(o.Dir))
	}
	return k, nil
}

// Serve implements Kernel.
func (k *linuxKernel) Serve() {
	defer close(k.done)
	k.Server.Serve()
}

// capHandleKillprivV2 makes the kernel leave the clearing of setuid and file capabilities to us, instead of
// asking for an attribute on every write.
const capHandleKillprivV2 = 1 << 28

// mountDevice opens a connection to the kernel and mounts it.
func mountDevice(dir string, o Options) (int, error) {
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("/dev/fuse: %w (is the fuse module loaded, and does this container have the device?)", err)
	}
	source := o.Source
	if source == "" {
		source = "rdmcfs"
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,allow_other,max_read=%d",
		dev, os.Geteuid(), os.Getegid(), maxWrite)
	if err := unix.Mount(source, dir, fsType, o.Flags.on(defaultFlags), data); err != nil {
		return -1, errors.Join(fmt.Errorf("mount(2): %w", err), unix.Close(dev))
	}
	return dev, nil
}

const fsType = "fuse.rdmcfs"

// Passthrough implements Kernel.
func (k *linuxKernel) Passthrough() bool {
	return k.KernelSettings().Flags64()&fuse.CAP_PASSTHROUGH != 0
}

// MapsDirect implements Kernel.
func (k *linuxKernel) MapsDirect() bool {
	return k.KernelSettings().Flags64()&fuse.CAP_DIRECT_IO_ALLOW_MMAP != 0
}

// Device implements Kernel.
func (k *linuxKernel) Device() string { return k.minor }

// Epoch implements Kernel.
func (k *linuxKernel) Epoch() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dev < 0 {
		return false
	}
	_, err := unix.Write(k.dev, epochMessage())
	return err == nil
}

// Close implements Kernel.
func (k *linuxKernel) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	dev := k.dev
	k.dev = -1
	if dev < 0 {
		return nil
	}
	return unix.Close(dev)
}

// Detach implements Kernel.
func (k *linuxKernel) Detach() error {
	if err := detach(k.dir); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("fs: unmount %s: %w", k.dir, err)
	}
	return nil
}

// unmountRetry is how long a mount that looks busy is tried again: a close that has returned may not have reached us.
const unmountRetry = 500 * time.Millisecond

// Unmount implements Kernel.
func (k *linuxKernel) Unmount(ctx context.Context) error {
	deadline := time.Now().Add(unmountRetry)
	for {
		select {
		case <-k.done:
			return nil
		default:
		}
		err := unix.Unmount(k.dir, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil, errors.Is(err, unix.EINVAL) && !isMounted(k.dir):
			return nil
		case !errors.Is(err, unix.EBUSY):
			return fmt.Errorf("fs: unmount %s: %w", k.dir, err)
		case time.Now().After(deadline):
			return &BusyError{Dir: k.dir, Users: usersOf(k.dir)}
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// fuseControl is where the kernel lists its connections.
const fuseControl = "/sys/fs/fuse/connections"

// Abort implements Kernel. The number of a device is given to the next mount of the host as soon as this one has ended,
// so that the file of this number may be that of another connection. Hence it is opened before the look at ours: if
// that is alive, the number was ours when the file was opened; and a write to a file whose connection has ended since
// does nothing.
func (k *linuxKernel) Abort() error {
	_, minor, ok := strings.Cut(k.minor, ":")
	if !ok {
		return fmt.Errorf("fs: abort %s: device not known", k.dir)
	}
	f, err := openControl(filepath.Join(fuseControl, minor, "abort"))
	if err == nil {
		if k.connected() {
			_, err = f.Write([]byte("1"))
		}
		err = errors.Join(err, f.Close())
	}
	if err != nil && k.connected() {
		return fmt.Errorf("fs: abort %s: %w", k.dir, err)
	}
	return nil
}

// openControl opens a control file of a connection for writing, also where the directory of them is not mounted.
func openControl(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if !errors.Is(err, os.ErrNotExist) || mountType(fuseControl) != "" {
		return f, err
	}
	if err := unix.Mount("fusectl", fuseControl, "fusectl", 0, ""); err != nil {
		return nil, err
	}
	f, err = os.OpenFile(path, os.O_WRONLY, 0)
	if err := errors.Join(err, unix.Unmount(fuseControl, unix.MNT_DETACH)); err != nil {
		_ = f.Close() // fails where it was not opened
		return nil, err
	}
	return f, nil
}

// connected reports whether the kernel still has the connection.
func (k *linuxKernel) connected() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dev < 0 {
		return false
	}
	look := []unix.PollFd{{Fd: int32(k.dev)}}
	_, err := unix.Poll(look, 0)
	for err == unix.EINTR {
		_, err = unix.Poll(look, 0)
	}
	return err == nil && look[0].Revents&unix.POLLERR == 0
}
