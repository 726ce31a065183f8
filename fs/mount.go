package fs

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
	"golang.org/x/sys/unix"
)

// Options of a mount.
type Options struct {
	Dir     string // the mount point, an empty directory unless NonEmpty
	Cluster Cluster
	Staging Staging
	Log     *slog.Logger
	// Siblings are the mounts of the node, of which this becomes one; nil if it has no others.
	Siblings *Siblings
	// Keep lists directories that must not lie on the mount: the data directory, that of the logs.
	Keep []string
	// Source is shown by df and mount; "rdmcfs" when empty.
	Source string
	// NoPassthrough sends every read and write through the daemon.
	NoPassthrough bool
	// NoNameCache makes the kernel look up each name each time, as it has to before Linux 6.16.
	NoNameCache bool
	// Flags are changes to those of mount(2), which are nosuid and nodev without them.
	Flags Flags
	// NonEmpty allows a mount point with files, which the mount hides.
	NonEmpty bool
	// ACL stores POSIX access control lists; the kernel evaluates them.
	ACL bool
	// Follow makes open files show each new version that is committed, also by other nodes. The mount is read-only.
	Follow bool
	// ClusterLocks makes file locks hold between nodes. All mounts of a node have the same.
	ClusterLocks bool
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
	done   chan struct{} // closed when the kernel's connection has ended

	ending sync.Mutex // held by finish: one at a time
}

const (
	maxWrite      = 1 << 20
	maxBackground = 64
	maxReadAhead  = 1 << 20
)

// CheckMountPoint checks the mount point as NewMount does. It waits for as long as what is mounted there does not
// answer.
func CheckMountPoint(o Options) error {
	_, err := o.mountPoint()
	return err
}

func (o Options) mountPoint() (string, error) {
	if o.Attach != nil {
		return o.Dir, nil
	}
	dir, err := mountPoint(o.Dir, o.Keep, o.NonEmpty)
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
	if o.Follow {
		o.Flags.Add("ro")
		o.NoPassthrough = true
	}
	if o.Siblings == nil {
		o.Siblings = new(Siblings)
	}
	var err error
	if o.Dir, err = o.mountPoint(); err != nil {
		return nil, err
	}
	if err := o.Siblings.share(o); err != nil {
		return nil, err
	}
	root, err := o.Cluster.Names().Inode(meta.RootIno)
	if err != nil {
		o.Siblings.unshare()
		return nil, fmt.Errorf("fs: mount %s: root directory: %w", o.Dir, err)
	}
	if o.Attach == nil {
		o.Attach = func(requests fuse.RawFileSystem) (Kernel, error) { return mountLinux(o, requests) }
	}
	m := &Mount{dir: o.Dir, fs: newFileSystem(ctx, o, root), done: make(chan struct{})}
	o.Siblings.join(m.fs)
	if err := m.attach(o); err != nil {
		o.Siblings.leave(m.fs)
		m.fs.life.over()
		return nil, fmt.Errorf("fs: mount %s: %w", o.Dir, err)
	}
	return m, nil
}

// attach mounts and begins to serve.
func (m *Mount) attach(o Options) (err error) {
	f := m.fs
	f.files.fineTimes = fineTimes(o.Staging)
	if m.kernel, err = o.Attach(f); err != nil {
		return err
	}
	f.publisher.device = m.kernel.Device()
	f.cache.attach(m.kernel, o.NoNameCache)
	f.pass.probe(m.kernel, o.NoPassthrough)
	f.files.follow.attach(m.kernel)
	f.life.work.Go(func() { f.cache.run(f.life.ctx) })
	go func() { // ends when the file system is unmounted
		defer close(m.done)
		m.kernel.Serve()
	}()
	return nil
}

// Passthrough reports whether staged files are read and written by the kernel itself, and if not, why.
func (m *Mount) Passthrough() (on bool, why string) { return m.fs.pass.on.Load(), m.fs.pass.why }

// ReadOnly reports whether the mount is read-only now: a remount can change that.
func (m *Mount) ReadOnly() bool {
	device := m.kernel.Device()
	if device == "" {
		return false
	}
	var flags Flags
	for _, line := range readMounts() {
		if line.dev == device && line.dir == m.dir {
			for word := range strings.SplitSeq(line.options, ",") {
				flags.Add(word)
			}
		}
	}
	return flags.set&unix.MS_RDONLY != 0
}

// Dir is the mount point.
func (m *Mount) Dir() string { return m.dir }

// Done is closed when the mount has ended, by Unmount or by umount(8).
func (m *Mount) Done() <-chan struct{} { return m.done }

// Apply makes the effects of applied entries visible to the kernel. It is called in the order of the log, by one
// goroutine, after each entry and before its index counts as visible. It waits for nothing.
func (m *Mount) Apply(events []meta.Event) { m.fs.applier.apply(events) }

// DropCaches is to be called instead of Apply when the whole state was replaced by a snapshot.
func (m *Mount) DropCaches() { m.fs.applier.dropAll() }

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
	defer context.AfterFunc(ctx, m.fs.life.over)()
	idle := make(chan struct{})
	go func() { // ends with the work, which f.stop bounds
		m.fs.files.drain()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	m.fs.life.stop()
	m.fs.life.work.Wait()
	if err := m.disconnect(); err != nil {
		return err
	}
	m.fs.life.work.Wait() // for what the last requests began
	m.fs.files.keepAll()
	m.fs.life.work.Wait()
	m.fs.life.over()
	m.fs.reserved.siblings.leave(m.fs)
	return m.kernel.Close()
}
