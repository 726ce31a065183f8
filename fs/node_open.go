package fs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/internal/filelock"
	"github.com/rdmcfs/rdmcfs/meta"
)

// mayWrite reports whether open flags allow a change of the file.
func mayWrite(flags uint32) bool {
	return flags&syscall.O_ACCMODE != syscall.O_RDONLY || flags&syscall.O_TRUNC != 0
}

// mayMap reports whether open flags allow a writable shared mapping.
func mayMap(flags uint32) bool { return flags&syscall.O_ACCMODE == syscall.O_RDWR }

// Open answers FUSE_OPEN.
func (f *fileSystem) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	switch {
	case n == nil:
		return fuse.Status(syscall.ESTALE)
	case n.kind != meta.KindFile:
		return fuse.EINVAL
	case f.files.follow != nil && mayWrite(in.Flags):
		return fuse.EROFS
	}
	ctx, stop := f.life.callContext(cancel, in.Pid)
	defer stop()
	no := syscall.Errno(0)
	if mayWrite(in.Flags) {
		no = f.names.settle(ctx, n)
	}
	if no != 0 {
		return fuse.Status(no)
	}
	h, no := f.retries.acquire(ctx, n, in)
	if no != 0 {
		return fuse.Status(no)
	}
	if in.Mode&fuse.OPEN_KILL_SUIDGID != 0 {
		f.attrs.killPrivOf(ctx, n)
	}
	h.maps = mayMap(in.Flags)
	if h.writer && in.Flags&syscall.O_TRUNC == 0 {
		h.opened, _, _ = h.live.sampled() // if it fails, it is not known
	}
	f.files.opened(h, in.Pid, out)
	return fuse.OK
}

// killPrivOf clears setuid and setgid when an unprivileged caller truncates by open.
func (at *attributes) killPrivOf(ctx context.Context, n *node) {
	patch := meta.AttrPatch{Mask: meta.AttrKillPriv}
	if no := at.change(ctx, n, patch, newTimes{}, 0); no != 0 {
		at.log.Warn("clear setuid", "inode", uint64(n.ino()), "errno", no)
	}
}

// Create answers FUSE_CREATE: the name is reserved for this node until the first publish.
func (f *fileSystem) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if f.files.follow != nil {
		return fuse.EROFS // also if somebody has remounted it for writing
	}
	defer f.creating(in.NodeId, name)()
	op := &meta.Create{Name: name, Kind: meta.KindFile, Mode: in.Mode, Excl: in.Flags&syscall.O_EXCL != 0}
	rec, attr, no := f.creation(cancel, &in.InHeader, op, in.Umask)
	if no == syscall.EEXIST && !op.Excl {
		// a directory or the like has taken the name since the kernel looked: it looks again
		return fuse.Status(syscall.ESTALE)
	}
	if no == syscall.ESTALE {
		f.retries.sendBack(retryKey{in.Pid, rec.Ino, mayWrite(in.Flags)}, nil)
	}
	if no != 0 {
		return fuse.Status(no)
	}
	h, no := f.files.stageNew(rec, name)
	if no != 0 {
		return fuse.Status(no)
	}
	h.live.begin(attr, mayMap(in.Flags))
	h.maps = mayMap(in.Flags)
	f.fillEntry(h.node, &out.EntryOut)
	f.files.opened(h, in.Pid, &out.OpenOut)
	return fuse.OK
}

// Flush answers FUSE_FLUSH: the status is what close(2) returns. Locks of the process go when the bytes are published.
func (f *fileSystem) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	h := f.files.handles.get(in.Fh)
	if h == nil {
		return fuse.OK
	}
	status := syscall.Errno(0)
	if h.live != nil && h.writer {
		status = f.publisher.flush(cancel, in.Pid, h.live, f.closing(h, in))
		f.files.noteClosing(h)
		h.live.mapsBy(h, in.Pid, false)
	}
	f.siblings.locks.closedDescriptor(f.life.ctx, h.node, filelock.Owner{Space: f.space, ID: in.LockOwner}, in.Fh)
	f.files.unlocked(h.node)
	f.files.follow.unlocked(h)
	return fuse.Status(status)
}

// closing is the handle whose publish may be deferred; nil if locks go with this close that hold between nodes: the
// next owner is to see what was written under them.
func (f *fileSystem) closing(h *handle, in *fuse.FlushIn) *handle {
	owner := filelock.Owner{Space: f.space, ID: in.LockOwner}
	if f.siblings.locks.hasRecords(h.node, owner) && !wasKilled(in.Pid) {
		return nil
	}
	return h
}

// Fsync answers FUSE_FSYNC.
func (f *fileSystem) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	h := f.files.handles.get(in.Fh)
	if h == nil || h.staged() == nil {
		return fuse.OK
	}
	return fuse.Status(f.publisher.fsync(cancel, in.Pid, h))
}

// Release answers FUSE_RELEASE.
func (f *fileSystem) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	if h := f.files.handles.remove(in.Fh); h != nil {
		f.siblings.locks.closedHandle(f.life.ctx, h.node, f.space, in.Fh)
		f.files.unlocked(h.node)
		f.files.follow.unlocked(h)
		f.files.release(h)
	}
}
