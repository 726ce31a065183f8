package fs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
	"golang.org/x/sys/unix"
)

// Options of a mount.
type Options struct {
	Dir     string // the mount point, an empty directory
	Cluster Cluster
	Staging Staging
	Log     *slog.Logger
	// Keep lists directories that must not lie on the mount: the data directory, that of the logs.
	Keep []string
	// Source is shown by df and mount; "rdmcfs" when empty.
	Source string
	// NoPassthrough sends every read and write through the daemon.
	NoPassthrough bool
	// NoNameCache makes the kernel look up each name each time, as it has to before Linux 6.16.
	NoNameCache bool
	// AllowSuid and AllowDev leave out nosuid and nodev.
	AllowSuid, AllowDev bool
	// ACL stores POSIX access control lists; the kernel evaluates them.
	ACL bool
	// Debug prints each request by the standard logger.
	Debug bool
	// Attach gives a file system the kernel that sends it requests; nil mounts it at Dir with Linux's.
	Attach func(requests fuse.RawFileSystem) (Kernel, error)
}

// Mount is a mounted file system.
type Mount struct {
	dir    string
	fs     *fileSystem
	kernel Kernel
	why    string
	done   chan struct{} // closed when the kernel's connection has ended

	ending sync.Mutex // held by finish: one at a time
}

const (
	maxWrite      = 1 << 20
	maxBackground = 64
	maxReadAhead  = 1 << 20
)

// CheckMountPoint looks at the mount point as NewMount does. It waits for as long as what is mounted there does not
// answer.
func CheckMountPoint(o Options) error {
	_, err := o.mountPoint()
	return err
}

func (o Options) mountPoint() (string, error) {
	if o.Attach != nil {
		return o.Dir, nil
	}
	dir, err := mountPoint(o.Dir, o.Keep)
	if err != nil {
		return "", fmt.Errorf("fs: mount: %w", err)
	}
	return dir, nil
}

// NewMount mounts the file system and serves it until Unmount, or until it is unmounted by somebody else (see Done).
// A mount that a dead daemon left behind at the mount point is detached first.
func NewMount(ctx context.Context, o Options) (*Mount, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	var err error
	if o.Dir, err = o.mountPoint(); err != nil {
		return nil, err
	}
	root, err := o.Cluster.Names().Inode(meta.RootIno)
	if err != nil {
		return nil, fmt.Errorf("fs: mount %s: root directory: %w", o.Dir, err)
	}
	if o.Attach == nil {
		o.Attach = func(requests fuse.RawFileSystem) (Kernel, error) { return mountLinux(o, requests) }
	}
	m := &Mount{dir: o.Dir, fs: newFileSystem(ctx, o, root), done: make(chan struct{})}
	if err := m.attach(o); err != nil {
		m.fs.over()
		return nil, fmt.Errorf("fs: mount %s: %w", o.Dir, err)
	}
	return m, nil
}

// attach mounts and begins to serve.
func (m *Mount) attach(o Options) (err error) {
	f := m.fs
	f.notifier = &notifier{queue: make(chan uint64, notifyQueue)}
	f.nodes.dropAttr = f.notifier.attr
	f.fineTimes = fineTimes(o.Staging)
	if m.kernel, err = o.Attach(f); err != nil {
		return err
	}
	f.notifier.attach(m.kernel)
	if f.notifier.epoch() && !o.NoNameCache {
		f.entryTimeout = cacheForever
	}
	m.probePassthrough(o)
	f.work.Go(func() { f.notifier.run(f.ctx) })
	go func() { // ends when the file system is unmounted
		defer close(m.done)
		m.kernel.Serve()
	}()
	return nil
}

// probePassthrough finds out whether the kernel can read and write staged files by itself.
func (m *Mount) probePassthrough(o Options) {
	switch {
	case o.NoPassthrough:
		m.why = "switched off by option"
		return
	case !m.kernel.Passthrough():
		m.why = "this kernel has no FUSE passthrough (6.9 and later have)"
		return
	}
	fd, err := unix.MemfdCreate("rdmcfs-probe", unix.MFD_CLOEXEC)
	if err != nil {
		m.why = fmt.Sprintf("memfd_create: %v", err)
		return
	}
	defer unix.Close(fd)
	id, no := m.kernel.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
	if no != 0 {
		m.why = fmt.Sprintf("kernel refuses it: %v (it needs CAP_SYS_ADMIN)", no)
		return
	}
	m.kernel.UnregisterBackingFd(id)
	m.fs.passthrough.Store(true)
}

// Passthrough reports whether staged files are read and written by the kernel itself, and if not, why.
func (m *Mount) Passthrough() (on bool, why string) { return m.fs.passthrough.Load(), m.why }

// Dir is the mount point.
func (m *Mount) Dir() string { return m.dir }

// Done is closed when the mount has ended, by Unmount or by umount(8).
func (m *Mount) Done() <-chan struct{} { return m.done }

// Apply makes the effects of applied entries visible to the kernel. It is called in the order of the log, by one
// goroutine, after each entry and before its index counts as visible. It waits for nothing.
func (m *Mount) Apply(events []meta.Event) { m.fs.apply(events) }

// DropCaches is to be called instead of Apply when the whole state was replaced by a snapshot.
func (m *Mount) DropCaches() { m.fs.dropAll() }

// Unmount unmounts, waits for what is being published, and keeps what could not be. While the mount is in use it
// returns a *BusyError and the mount goes on.
func (m *Mount) Unmount(ctx context.Context) error {
	if err := m.kernel.Unmount(ctx); err != nil {
		return err
	}
	return m.finish(ctx)
}

// Detach unmounts even while files are open: the name goes at once, open files get errors from now on. What they had
// staged is kept as unpublished.
func (m *Mount) Detach(ctx context.Context) error {
	if err := m.kernel.Detach(); err != nil {
		return err
	}
	return m.finish(ctx)
}

// finish ends everything that belongs to a mount whose name is gone.
func (m *Mount) finish(ctx context.Context) error {
	m.ending.Lock()
	defer m.ending.Unlock()
	defer context.AfterFunc(ctx, m.fs.over)()
	idle := make(chan struct{})
	go func() { // ends with the work, which f.stop bounds
		m.fs.drain()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	m.fs.stop()
	m.fs.work.Wait()
	if err := m.disconnect(); err != nil {
		return err
	}
	m.fs.work.Wait() // for what the last requests began
	m.fs.keepAll()
	m.fs.work.Wait()
	m.fs.over()
	return m.kernel.Close()
}
