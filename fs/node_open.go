package fs

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
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
	}
	ctx, stop := f.callContext(cancel, in.Pid)
	defer stop()
	no := syscall.Errno(0)
	if mayWrite(in.Flags) {
		no = f.settle(ctx, n)
	}
	if no != 0 {
		return fuse.Status(no)
	}
	h, no := f.acquire(ctx, n, in)
	if no != 0 {
		return fuse.Status(no)
	}
	if in.Mode&fuse.OPEN_KILL_SUIDGID != 0 {
		f.killPrivOf(ctx, n)
	}
	f.opened(h, in.Pid, out)
	return fuse.OK
}

// settle waits until it is known what earlier changes did that were answered with EIO. A program whose unlink or
// rename failed so may go on and write the file under that name: the change must come first, or it would take the
// name of what is written now. ESTALE makes the kernel look the name up again.
func (f *fileSystem) settle(ctx context.Context, n *node) syscall.Errno {
	waited, err := f.cluster.Settle(ctx)
	switch {
	case err != nil:
		return f.fail("open", n.ino(), err)
	case waited:
		return syscall.ESTALE
	}
	return 0
}

// opened tells the kernel how a new handle is read, written and closed.
func (f *fileSystem) opened(h *handle, tid uint32, out *fuse.OpenOut) {
	h.opener = tid
	if h.live != nil {
		f.attachBacking(&h.live.backing, h.live.stage.Fd(), out)
		if h.writer && h.live.mapsUnseen() {
			f.notifier.attr(h.node.id)
		}
	} else {
		f.attachBacking(&h.version.backing, h.version.fd(), out)
		f.keepCache(h, out)
	}
	if !h.writer {
		out.OpenFlags |= fuse.FOPEN_NOFLUSH
	}
	out.Fh = f.handles.add(h)
}

// mapsUnseen reports whether stores may reach the file without any request: attributes must not stay cached then.
func (l *live) mapsUnseen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mayMap
}

// keepCache lets the kernel keep its page cache when it holds the bytes that are opened again.
func (f *fileSystem) keepCache(h *handle, out *fuse.OpenOut) {
	if out.OpenFlags&fuse.FOPEN_PASSTHROUGH != 0 {
		return
	}
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	n := h.node
	if n.cachedValid && n.cached == h.version.id {
		out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
	}
	n.cached, n.cachedValid = h.version.id, true
}

// killPrivOf clears setuid and setgid when an unprivileged caller truncates by open.
func (f *fileSystem) killPrivOf(ctx context.Context, n *node) {
	patch := meta.AttrPatch{Mask: meta.AttrKillPriv}
	if no := f.change(ctx, n, patch, newTimes{}, 0); no != 0 {
		f.log.Warn("clear setuid", "inode", uint64(n.ino()), "errno", no)
	}
}

// Create answers FUSE_CREATE: the name is reserved for this node until the first publish.
func (f *fileSystem) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	op := &meta.Create{Name: name, Kind: meta.KindFile, Mode: in.Mode, Excl: in.Flags&syscall.O_EXCL != 0}
	rec, attr, no := f.creation(cancel, &in.InHeader, op, in.Umask)
	if no == syscall.EEXIST && !op.Excl {
		return fuse.Status(syscall.ESTALE) // a directory or the like has taken the name since the kernel looked: it looks again
	}
	if no == syscall.ESTALE {
		f.retries.sendBack(retryKey{in.Pid, rec.Ino, mayWrite(in.Flags)}, nil)
	}
	if no != 0 {
		return fuse.Status(no)
	}
	h, no := f.stageNew(rec, name)
	if no != 0 {
		return fuse.Status(no)
	}
	h.live.begin(attr, mayMap(in.Flags))
	f.fillEntry(h.node, rec, &out.EntryOut)
	f.opened(h, in.Pid, &out.OpenOut)
	return fuse.OK
}

// stageNew makes the live file of a reserved inode, referenced by the kernel.
func (f *fileSystem) stageNew(rec meta.Inode, name string) (*handle, syscall.Errno) {
	n := f.nodes.looked(rec)
	l, mine, no := f.joinOrBegin(n)
	if no != 0 || !mine {
		f.nodes.forget(n.id, 1)
		return nil, syscall.EIO // nobody can have had it open
	}
	l.reserved, l.lease = true, rec.Reserved
	l.parent, l.name = rec.Parent, name
	stage, err := f.staging.Create(StageInfo{Ino: rec.Ino, Parent: rec.Parent, Path: f.path(rec)})
	h := &handle{node: n, live: l, writer: true}
	if err != nil {
		l.err = f.fail("stage", rec.Ino, err)
		close(l.ready)
		f.release(h, 0)
		f.unreserve(l)
		f.nodes.forget(n.id, 1)
		return nil, l.err
	}
	l.stage = stage
	close(l.ready)
	return h, 0
}

// begin gives a new file the attributes of its first version. Others may have opened and changed it since it was ready.
func (l *live) begin(attr meta.AttrPatch, mayMap bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mayMap = l.mayMap || mayMap
	l.attr = mergePatch(attr, l.attr)
}

// unreserve takes back the name of a file that got no version.
func (f *fileSystem) unreserve(l *live) {
	if l.name == "" {
		return
	}
	ino := l.node.ino()
	if rec, err := f.names().Inode(ino); err != nil || rec.Version != 0 {
		return
	}
	f.work.Go(func() { f.giveBack(l.parent, l.name, ino, l) })
}

// publishEmpty gives a reserved file its first version without bytes.
func (f *fileSystem) publishEmpty(cancel <-chan struct{}, pid uint32, rec meta.Inode, attr meta.AttrPatch) syscall.Errno {
	h, no := f.stageNew(rec, rec.Name)
	if no != 0 {
		return no
	}
	defer f.nodes.forget(h.node.id, 1)
	defer f.release(h, 0)
	h.live.begin(attr, false)
	return f.flushLive(cancel, pid, h.live, nil)
}

// truncate sets the size of a file, by its handle or by name. By name it is published before it answers.
func (f *fileSystem) truncate(ctx context.Context, cancel <-chan struct{}, in *fuse.SetAttrIn, n *node, size int64, patch meta.AttrPatch) syscall.Errno {
	if n.kind != meta.KindFile {
		return syscall.EINVAL
	}
	if size < 0 {
		return syscall.EFBIG
	}
	if fh, ok := in.GetFh(); ok {
		if h := f.handles.get(fh); h != nil && h.live != nil {
			return f.setSize(ctx, h.live, size, patch)
		}
	}
	h, no := f.acquireToCut(ctx, n, in.Pid, size == 0)
	if no != 0 {
		return no
	}
	defer f.release(h, 0)
	if no := f.setSize(ctx, h.live, size, patch); no != 0 {
		return no
	}
	return f.flushLive(cancel, in.Pid, h.live, nil)
}

func (f *fileSystem) setSize(ctx context.Context, l *live, size int64, patch meta.AttrPatch) syscall.Errno {
	if err := l.setSize(ctx, size); err != nil {
		return f.fail("truncate", l.node.ino(), err)
	}
	l.touched()
	if patch.Mask&meta.AttrKillPriv != 0 {
		return f.change(ctx, l.node, meta.AttrPatch{Mask: meta.AttrKillPriv}, newTimes{}, 0)
	}
	return 0
}

// Flush answers FUSE_FLUSH: the status is what close(2) returns.
func (f *fileSystem) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	h := f.handles.get(in.Fh)
	if h == nil || h.live == nil || !h.writer {
		return fuse.OK
	}
	status := f.flushLive(cancel, in.Pid, h.live, h)
	f.noteClosing(h)
	return fuse.Status(status)
}

// Fsync answers FUSE_FSYNC.
func (f *fileSystem) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	h := f.handles.get(in.Fh)
	if h == nil || h.live == nil {
		return fuse.OK
	}
	return fuse.Status(f.flushLive(cancel, in.Pid, h.live, nil))
}

// Release answers FUSE_RELEASE.
func (f *fileSystem) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	if h := f.handles.remove(in.Fh); h != nil {
		f.release(h, 0)
	}
}

// proposeMax bounds a proposal whatever the cluster does; it has a shorter limit of its own.
const proposeMax = time.Minute

// propose puts an operation into the log and waits for it, at most proposeMax.
func (f *fileSystem) propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	return f.proposeBy(f.cluster.Propose, ctx, op)
}

// proposePatient is propose for what an open file needs: it waits for a quorum.
func (f *fileSystem) proposePatient(ctx context.Context, op meta.Op) (meta.Result, error) {
	return f.proposeBy(f.cluster.ProposePatient, ctx, op)
}

func (f *fileSystem) proposeBy(do func(context.Context, meta.Op) (meta.Result, error), ctx context.Context, op meta.Op) (meta.Result, error) {
	ctx, stop := context.WithTimeout(ctx, proposeMax)
	defer stop()
	res, err := do(ctx, op)
	if err == nil {
		raise(&f.shown.changed, res.Index)
	}
	return res, err
}

// outcome is the errno of a proposal.
func (f *fileSystem) outcome(what string, ino meta.Ino, res meta.Result, err error) syscall.Errno {
	if err != nil {
		return f.fail(what, ino, err)
	}
	return known(res.Errno)
}

// fail logs what a caller only sees as an errno and gives that errno.
func (f *fileSystem) fail(what string, ino meta.Ino, err error) syscall.Errno {
	no := errno(err)
	if no == syscall.EIO && !errors.Is(err, context.Canceled) {
		f.log.Error(what, "inode", uint64(ino), "err", err)
	}
	return no
}
