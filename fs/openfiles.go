package fs

import (
	"context"
	"log/slog"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// openFiles are the files that are open here: handles, and the versions and live files behind them.
type openFiles struct {
	names     *namespace
	nodes     *nodeTable
	staging   Staging
	publisher *publisher
	reserved  *reservations
	cache     *kernelCache
	pass      *passthrough
	life      *lifetime
	log       *slog.Logger

	follow *following // nil if open files keep their versions

	handles   *handles
	fineTimes bool // of the staged files; constant from the mount on
}

// acquireWrite makes a write handle on a node, which becomes live if it is not. trunc empties the file.
func (o *openFiles) acquireWrite(ctx context.Context, n *node, mayMap, trunc bool) (*handle, syscall.Errno) {
	o.awaitSettled(ctx, n)
	l, mine, no := o.joinOrBegin(n)
	for tries := 0; no == syscall.EAGAIN && tries < endingTries; tries++ {
		o.awaitSettled(ctx, n)
		l, mine, no = o.joinOrBegin(n)
	}
	if no == syscall.EAGAIN {
		no = syscall.EIO
	}
	if no != 0 {
		return nil, no
	}
	if mine {
		o.prepare(ctx, l, trunc)
	}
	h, no := o.awaitLive(ctx, l, true)
	if no == 0 {
		no = o.joined(ctx, h, mayMap, trunc && !mine)
	}
	if no != 0 {
		return nil, no
	}
	return h, 0
}

// joined prepares a handle on a live file for its open; an error releases it.
func (o *openFiles) joined(ctx context.Context, h *handle, mayMap, trunc bool) syscall.Errno {
	l := h.live
	l.mu.Lock()
	l.mayMap = l.mayMap || mayMap
	l.mu.Unlock()
	if !trunc {
		return 0
	}
	// Others may write meanwhile, unlike at a truncate: what is empty now need not be so when it is cut.
	if err := l.stageReads.cut(ctx, func() error { return l.stage.Truncate(0) }); err != nil {
		o.release(h)
		return fail(o.log, "truncate", h.node.ino(), err)
	}
	l.touched()
	return 0
}

// endingTries bounds how often an open finds the live file that has just ended when another one has ended since. It
// is not left to the kernel, which looks a name up again once only: two programs that append in turns would see
// ESTALE.
const endingTries = 100

// joinOrBegin gives the live file of a node, counted for one more writer; mine says that the caller has to prepare
// it. EAGAIN: there is one that is ending. ESTALE: the programs that have the file open keep what they have, and
// the name has to be looked up again.
func (o *openFiles) joinOrBegin(n *node) (l *live, mine bool, no syscall.Errno) {
	o.nodes.mu.Lock()
	defer o.nodes.mu.Unlock()
	switch l := n.live; {
	case n.detached:
		return nil, false, syscall.ESTALE
	case l != nil && !l.users.ended && (!l.users.frozen() || l.thawsLocked()) && o.nodes.checkLocks(l) == nil:
		l.users.addWriter()
		n.pins++
		return l, false, 0
	case l != nil && l.users.ended:
		return nil, false, syscall.EAGAIN
	case l != nil:
		o.nodes.detachLocked(n)
		return nil, false, syscall.ESTALE
	}
	l = &live{
		node: n, fineTimes: o.fineTimes, ready: make(chan struct{}), settled: make(chan struct{}), users: newUsers(),
		backing: new(backing), bootAt: bootAt(),
	}
	n.live = l
	n.pins++
	o.nodes.guard(l, true)
	return l, true, 0
}

// awaitLive waits until a live file is prepared. The caller has counted one handle (and writer) and one pin.
func (o *openFiles) awaitLive(ctx context.Context, l *live, writer bool) (*handle, syscall.Errno) {
	if !l.awaitReady(ctx) {
		o.life.work.Go(func() { o.abandon(l, writer) }) // ends with prepare, which is bounded
		return nil, syscall.EIO
	}
	h := &handle{node: l.node, live: l, writer: writer}
	if l.err != 0 {
		o.release(h)
		return nil, l.err
	}
	return h, 0
}

func (o *openFiles) abandon(l *live, writer bool) {
	<-l.ready
	o.release(&handle{node: l.node, live: l, writer: writer})
}

// readyLive is the prepared live file of a node, held, or nil.
func (o *openFiles) readyLive(ctx context.Context, n *node) *live {
	l := o.holdLive(n)
	if l == nil {
		return nil
	}
	if l.awaitReady(ctx) && l.err == 0 {
		return l
	}
	o.unhold(l)
	return nil
}

// holdLive is the live file of a node, perhaps still being prepared, held, or nil if there is none.
func (o *openFiles) holdLive(n *node) *live {
	o.nodes.mu.Lock()
	defer o.nodes.mu.Unlock()
	l := n.live
	if l == nil || l.users.ended {
		return nil
	}
	l.users.holds++
	return l
}

// publishStaged publishes a live file that holds unpublished bytes, if there is one, unless others are writing the file
// and the process has no part in that. Its caller has a directory's lock and changes a name next: that is shown then.
func (o *openFiles) publishStaged(ctx context.Context, cancel <-chan struct{}, pid uint32, ino meta.Ino) syscall.Errno {
	n := o.nodes.known(ino)
	if n == nil {
		return 0
	}
	l := o.readyLive(ctx, n)
	if l == nil {
		return 0
	}
	defer o.unhold(l)
	st, err := l.stage.Stat()
	if err == nil && (l.isPublished(st) || o.publisher.isStranger(pid, l, nil, st)) {
		return 0
	}
	return o.publisher.publishFor(cancel, pid, l)
}

// tmpOf is the live file of an O_TMPFILE that has no name yet, or nil.
func (o *openFiles) tmpOf(n *node) *live {
	o.nodes.mu.Lock()
	l := n.live
	o.nodes.mu.Unlock()
	if l == nil || !l.isTmp() {
		return nil
	}
	return l
}

// writable is the live file of a handle that may write, or nil. A mapping of a handle that is already closed writes
// by whatever handle of the inode is open.
func (o *openFiles) writable(fh uint64) *live {
	h := o.handles.get(fh)
	if h == nil {
		return nil
	}
	return h.staged()
}

// opened tells the kernel how a new handle is read, written and closed.
func (o *openFiles) opened(h *handle, tid uint32, out *fuse.OpenOut) {
	h.opener = tid
	if h.writer {
		h.live.mapsBy(h, tid, true)
		o.knowMappers(h)
	}
	if h.followed != nil {
		out.OpenFlags |= o.follow.openFlags
	} else if h.live != nil {
		o.pass.attach(h.live.backing, h.live.stage.Fd(), out)
		if h.writer && h.live.mapsUnseen() {
			o.cache.dropAttrSoon(h.node.id)
		}
	} else {
		o.pass.attach(h.version.backing, h.version.fd(), out)
		o.keepCache(h, out)
	}
	if h.silent = !h.writer && !o.nodes.locks.hadAny(h.node); h.silent {
		out.OpenFlags |= fuse.FOPEN_NOFLUSH
	}
	out.Fh = o.handles.add(h)
}

// knowMappers is called when a handle that may write is opened.
func (o *openFiles) knowMappers(h *handle) {
	o.nodes.mu.Lock()
	others, _ := h.live.users.others(h)
	o.nodes.mu.Unlock()
	if others > 0 {
		h.live.knowMappers()
	}
}

// keepCache lets the kernel keep its page cache when it holds the bytes that are opened again. Else it drops what it
// has when it comes to this answer; that it has, the first read of the handle says.
func (o *openFiles) keepCache(h *handle, out *fuse.OpenOut) {
	if out.OpenFlags&fuse.FOPEN_PASSTHROUGH != 0 {
		return
	}
	o.nodes.mu.Lock()
	defer o.nodes.mu.Unlock()
	n := h.node
	if n.cachedValid && n.cached == h.version.id {
		out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
	} else {
		h.drops.Store(true)
	}
}

// noteCached notes that the kernel's page cache holds what a handle reads.
func (o *openFiles) noteCached(h *handle) {
	if !h.drops.Load() || !h.drops.CompareAndSwap(true, false) {
		return
	}
	o.nodes.mu.Lock()
	defer o.nodes.mu.Unlock()
	h.node.cached, h.node.cachedValid = h.version.id, true
}
