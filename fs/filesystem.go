package fs

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// fileSystem answers the kernel. Its methods are called from many goroutines.
type fileSystem struct {
	fuse.RawFileSystem // answers ENOSYS to what is not implemented: locks, ioctl, statx

	cluster  Cluster
	staging  Staging
	log      *slog.Logger
	opts     Options
	notifier *notifier

	nodes   *table
	handles *handles
	own     *ownOps
	retries *retries
	shown   shown
	tmpInos atomic.Uint64

	reserving reserving
	given     givenBack

	entryTimeout   time.Duration
	fineTimes      bool
	passthrough    atomic.Bool
	backingRefused sync.Once

	ctx  context.Context // ends with the mount
	stop context.CancelFunc
	late context.Context // of what the log is still told then: ends a bounded time later
	over context.CancelFunc
	work workers // publishes and watches under way
}

var _ fuse.RawFileSystem = (*fileSystem)(nil)

func newFileSystem(ctx context.Context, o Options, root meta.Inode) *fileSystem {
	f := &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		cluster:       o.Cluster, staging: o.Staging, log: o.Log, opts: o,
		nodes: newTable(root), handles: newHandles(), own: newOwnOps(), retries: newRetries(),
	}
	f.late, f.over = context.WithCancel(context.WithoutCancel(ctx))
	f.ctx, f.stop = context.WithCancel(f.late)
	return f
}

// String names the file system.
func (f *fileSystem) String() string { return "rdmcfs" }

func (f *fileSystem) names() meta.Reader { return f.cluster.Names() }

// Access answers FUSE_ACCESS; the kernel checks permissions itself.
func (f *fileSystem) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.ENOSYS }
