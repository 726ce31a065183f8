package fs

import (
	"context"
	"log/slog"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// fileSystem answers the kernel: one method for each request, called from many goroutines. What the answers are made
// of is in the types below; see the package comment.
type fileSystem struct {
	flagless // ioctl, and ENOSYS for what is not implemented
	statRequests

	log      *slog.Logger
	life     *lifetime
	siblings *Siblings
	space    uint64 // of the owners of locks, among siblings

	names     *namespace
	nodes     *nodeTable
	cache     *kernelCache
	pass      *passthrough
	reserved  *reservations
	publisher *publisher
	files     *openFiles
	retries   *retries
	attrs     *attributes
	applier   *applier
}

var _ fuse.RawFileSystem = (*fileSystem)(nil)

func newFileSystem(ctx context.Context, o Options, root meta.Inode) *fileSystem {
	life := newLifetime(ctx)
	names := newNamespace(o.Cluster, life, o.Log)
	names.reads = o.Follow
	nodes := newNodeTable(root, names.state)
	nodes.locks = &o.Siblings.locks
	cache := newKernelCache(nodes)
	pass := &passthrough{log: o.Log}
	reserved := &reservations{names: names, nodes: nodes, cache: cache, life: life, log: o.Log, siblings: o.Siblings}
	publisher := &publisher{
		names: names, reserved: reserved, nodes: nodes, cache: cache, pass: pass, life: life, log: o.Log,
	}
	files := &openFiles{
		names: names, nodes: nodes, staging: o.Staging, publisher: publisher, reserved: reserved, cache: cache, pass: pass,
		life: life, log: o.Log, handles: newHandles(),
	}
	reserved.renew = func(l *live) { publisher.roundLocked(l, roundAttrs) }
	publisher.done = files.unbusy
	if o.Follow {
		files.follow = &following{files: files, nodes: nodes, locks: nodes.locks}
	}
	attrs := &attributes{names: names, nodes: nodes, files: files, log: o.Log, acl: o.ACL}
	return &fileSystem{
		flagless: flagless{fuse.NewDefaultRawFileSystem()}, statRequests: statRequests{attrs: attrs, life: life},
		log: o.Log, life: life, siblings: o.Siblings, names: names, nodes: nodes, cache: cache, pass: pass,
		reserved: reserved, publisher: publisher, files: files, retries: newRetries(files),
		attrs:   attrs,
		applier: &applier{names: names, nodes: nodes, cache: cache, reserved: reserved, follow: files.follow},
	}
}

// String names the file system.
func (f *fileSystem) String() string { return "rdmcfs" }

// Access answers FUSE_ACCESS; the kernel checks permissions itself.
func (f *fileSystem) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.ENOSYS }
