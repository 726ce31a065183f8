package fs

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// following makes the open files of a mount show each new version that is committed; nil where open files keep theirs.
// Such a mount is read-only. The kernel has one inode of a file for all its versions, and reads it through the daemon,
// so that its pages and attributes can be dropped when the version changes.
type following struct {
	files *openFiles
	nodes *nodeTable
	locks *fileLocks

	openFlags uint32 // of all opens; constant from the mount on
}

// attach decides how files are read: by one request for each read(2), where mappings allow that. A page cache whose
// files get shorter without the kernel's doing can show zeros behind the end of a file.
func (fw *following) attach(k Kernel) {
	if fw == nil {
		return
	}
	fw.openFlags = fuse.FOPEN_KEEP_CACHE
	if k.MapsDirect() {
		fw.openFlags |= fuse.FOPEN_DIRECT_IO
	}
}

// followed is a file that is open on a mount that follows. All its handles read node.reading, or next if that is set.
// Protected by nodeTable.mu.
//
// One goroutine at a time looks which version is the newest, and changes to it: reads get the new version first, then
// the kernel drops the pages that mappings have of the old one, and only then the size is shown. A fault that began
// before holds the lock of its page until it is answered, and the kernel waits for that lock before it drops the page.
type followed struct {
	node    *node
	handles int
	next    *version // what is read while the kernel may have pages of the version before
	pinned  map[uint64]struct{}

	mtime, ctime int64 // of node.reading

	asked, done uint64        // how often somebody asked for a look, and up to which of these a look has answered
	running     bool          // a look is under way
	news        chan struct{} // closed when done grows; nil while nobody waits
	err         error         // of the last look
	refused     meta.Inode    // whose content could not be opened; zero if it could
	again       *time.Timer   // looks again because of that
}

// followRetry is how soon a content that could not be opened is tried again.
const followRetry = time.Second

// holds reports whether a version is the one of a record.
func (v *version) holds(rec meta.Inode) bool { return v.id == rec.Content && v.size == rec.Size }

// open makes a handle of a file. It is registered before anybody looks which version is the newest: a commit from then
// on asks for another look.
func (fw *following) open(ctx context.Context, n *node) (*handle, syscall.Errno) {
	fw.nodes.mu.Lock()
	f := n.follow
	if f == nil {
		f = &followed{node: n, pinned: map[uint64]struct{}{}}
		n.follow = f
		n.pins++
	}
	f.handles++
	fw.nodes.mu.Unlock()
	ended := fw.settle(ctx, f)
	fw.nodes.mu.Lock()
	open, err := n.reading != nil || f.next != nil, f.err
	fw.nodes.mu.Unlock()
	h := &handle{node: n, followed: f}
	if open {
		return h, 0
	}
	fw.release(h)
	switch {
	case errors.Is(err, errGone):
		return nil, syscall.ESTALE // its name may have been given to another file
	case err == nil && ended == nil:
		return nil, syscall.EIO // the mount has ended
	case err == nil:
		err = ended
	}
	return nil, fail(fw.files.log, "open", n.ino(), err)
}

// settle returns when a file shows the newest version, or the one that locks or an error keep; or when ctx ends.
func (fw *following) settle(ctx context.Context, f *followed) error {
	if fw.isNewest(f) {
		return nil
	}
	fw.nodes.mu.Lock()
	fw.askLocked(f)
	want := f.asked
	for f.done < want {
		if f.news == nil {
			f.news = make(chan struct{})
		}
		news := f.news
		fw.nodes.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
		fw.nodes.mu.Lock()
	}
	fw.nodes.mu.Unlock()
	return nil
}

// isNewest reports whether a file shows the newest version.
func (fw *following) isNewest(f *followed) bool {
	rec, err := fw.files.names.state().Inode(f.node.ino())
	fw.nodes.mu.Lock()
	defer fw.nodes.mu.Unlock()
	return err == nil && f.next == nil && f.node.reading != nil && f.node.reading.holds(rec)
}

// await gives a file a moment to show what was just committed, before its attributes are shown.
func (fw *following) await(ctx context.Context, n *node) {
	fw.nodes.mu.Lock()
	f := n.follow
	wait := f != nil && len(f.pinned) == 0 && f.refused.Ino == 0
	fw.nodes.mu.Unlock()
	if !wait || fw.isNewest(f) {
		return
	}
	ctx, stop := context.WithTimeout(ctx, releaseGrace)
	defer stop()
	_ = fw.settle(ctx, f)
}

// askLocked asks for a look at a file, if it is not nil. nodeTable.mu is held.
func (fw *following) askLocked(f *followed) {
	if f == nil {
		return
	}
	f.asked++
	switch {
	case fw.files.life.ctx.Err() != nil:
		f.answerLocked(f.asked) // the mount has ended
	case !f.running:
		f.running = true
		fw.files.life.work.Go(func() { fw.look(f) })
	}
}

// ask is askLocked for a timer.
func (fw *following) ask(f *followed) {
	fw.nodes.mu.Lock()
	defer fw.nodes.mu.Unlock()
	if f.node.follow == f {
		fw.askLocked(f)
	}
}

// look brings a file up to date until nobody has asked since.
func (fw *following) look(f *followed) {
	for {
		fw.nodes.mu.Lock()
		asked := f.asked
		fw.nodes.mu.Unlock()
		err := fw.bring(f)
		fw.nodes.mu.Lock()
		f.err = err
		f.answerLocked(asked)
		f.running = f.asked != asked && f.handles > 0
		running, last := f.running, (*version)(nil)
		if !running {
			last = fw.endLocked(f)
		}
		fw.nodes.mu.Unlock()
		if last != nil {
			fw.files.closeVersion(last)
		}
		if !running {
			return
		}
	}
}

func (f *followed) answerLocked(upTo uint64) {
	f.done = max(f.done, upTo)
	if f.news != nil {
		close(f.news)
		f.news = nil
	}
}

// bring brings a file up to date once. An error means that it has no version at all.
func (fw *following) bring(f *followed) error {
	n := f.node
	rec, err := fw.files.names.state().Inode(n.ino())
	fw.nodes.mu.Lock()
	shown, last, kept := n.reading, n.last, f.keptLocked()
	fw.nodes.mu.Unlock()
	if errors.Is(err, meta.ErrNotFound) {
		rec, err = last, nil
	}
	if kept || err == nil && shown != nil && shown.holds(rec) {
		return nil
	}
	var v *version
	if err == nil {
		v, rec, err = fw.openNewest(rec, last)
	}
	if err != nil && shown != nil {
		fw.cannotOpen(f, rec, err)
		return nil
	} else if err != nil {
		return err
	}
	fw.change(f, v, rec)
	return nil
}

// openNewest opens the newest version; with an error it returns the record whose version that is.
func (fw *following) openNewest(rec, last meta.Inode) (*version, meta.Inode, error) {
	v, now, err := fw.files.openVersion(fw.files.life.ctx, rec.Ino, last)
	if err != nil {
		return nil, rec, err
	}
	return v, now, nil
}

// keptLocked reports whether a file stays at the version that it shows. nodeTable.mu is held.
func (f *followed) keptLocked() bool {
	return f.handles == 0 || len(f.pinned) > 0 && f.node.reading != nil
}

// cannotOpen leaves a file at the version that it shows, and tries again later. It is logged once for each content.
func (fw *following) cannotOpen(f *followed, rec meta.Inode, err error) {
	if errors.Is(err, errGone) || fw.files.life.ctx.Err() != nil {
		return
	}
	fw.nodes.mu.Lock()
	known := f.refused.Ino != 0 && f.refused.Content == rec.Content
	f.refused = rec
	if f.again != nil {
		f.again.Stop()
	}
	f.again = time.AfterFunc(followRetry, func() { fw.ask(f) })
	fw.nodes.mu.Unlock()
	if !known {
		fw.files.log.Warn("an open file stays at its version: the newer one can't be opened", "inode", uint64(rec.Ino),
			"content", rec.Content, "err", err)
	}
}

// change changes a file to another version.
func (fw *following) change(f *followed, v *version, rec meta.Inode) {
	n := f.node
	fw.nodes.mu.Lock()
	if f.keptLocked() || n.reading != nil && n.reading.holds(rec) {
		fw.nodes.mu.Unlock()
		fw.files.closeVersion(v)
		return
	}
	v.handles = 1 // as what is shown; each read counts one more
	f.next, f.refused = v, meta.Inode{}
	stale := n.reading != nil || !n.kernelHasLocked(v)
	n.last = rec
	fw.nodes.mu.Unlock()
	if stale {
		fw.dropPages(n)
	}
	fw.nodes.mu.Lock()
	old := n.reading
	n.reading, f.next = v, nil
	f.mtime, f.ctime = rec.Mtime, rec.Ctime
	n.cached, n.cachedValid = v.id, true
	n.noteKernelAttrsLocked(v.id, v.size)
	done := old != nil && old.endLocked()
	fw.nodes.mu.Unlock()
	if done {
		fw.files.closeVersion(old)
	}
}

// kernelHasLocked reports whether the kernel has pages and attributes of no other version. nodeTable.mu is held.
func (n *node) kernelHasLocked(v *version) bool {
	k := n.kernel
	return n.cachedValid && n.cached == v.id && !(k.known && (k.id != v.id || k.size != v.size))
}

// dropPages makes the kernel drop the pages and attributes of a node. It waits for the reads of those pages, but not
// beyond the end of the mount: only that cuts off a read that hangs.
func (fw *following) dropPages(n *node) {
	done := make(chan struct{})
	go func() { // ends with the kernel's connection, if not before
		defer close(done)
		fw.files.cache.dropPages(n.id)
	}()
	select {
	case <-done:
	case <-fw.files.life.ctx.Done():
	}
}

// endLocked takes one use off a version, and reports whether it was the last. nodeTable.mu is held.
func (v *version) endLocked() bool {
	v.handles--
	return v.handles == 0
}

// read gives the version that a read of a file begins with; nil if the mount has ended. done is called when it has
// ended.
func (fw *following) read(f *followed) (v *version, done func()) {
	fw.nodes.mu.Lock()
	defer fw.nodes.mu.Unlock()
	v = f.node.reading
	if f.next != nil {
		v = f.next
	}
	if v == nil {
		return nil, nil
	}
	v.handles++
	return v, func() {
		fw.nodes.mu.Lock()
		last := v.endLocked()
		fw.nodes.mu.Unlock()
		if last {
			fw.files.closeVersion(v)
		}
	}
}

// release ends a handle.
func (fw *following) release(h *handle) {
	f := h.followed
	fw.nodes.mu.Lock()
	f.handles--
	last := (*version)(nil)
	if !f.running {
		last = fw.endLocked(f)
	}
	fw.nodes.mu.Unlock()
	if last != nil {
		fw.files.closeVersion(last)
	}
}

// endLocked ends a file that nobody has open, and returns the version that is to be closed. nodeTable.mu is held.
func (fw *following) endLocked(f *followed) *version {
	n := f.node
	if f.handles > 0 || n.follow != f {
		return nil
	}
	n.follow = nil
	f.answerLocked(f.asked)
	if f.again != nil {
		f.again.Stop()
	}
	v := n.reading
	n.reading = nil
	n.pins--
	fw.nodes.dropLocked(n)
	if v == nil || !v.endLocked() {
		return nil
	}
	return v
}

// attrLocked completes the attributes of a node that were made from a record, and says how long they may be cached. The
// times of a newer version are shown with it: who reads a file again when its times have changed would take the bytes
// of the old version for those of the new one. nodeTable.mu is held.
func (f *followed) attrLocked(out *fuse.Attr, rec meta.Inode, valid time.Duration) time.Duration {
	v := f.node.reading
	switch {
	case v == nil:
		return 0
	case !v.holds(rec):
		out.Size, out.Blocks = uint64(v.size), blocks(v.size, v.holes)
		setTime(&out.Mtime, &out.Mtimensec, f.mtime)
		setTime(&out.Ctime, &out.Ctimensec, f.ctime)
		valid = 0
	default:
		f.mtime, f.ctime = rec.Mtime, rec.Ctime // they may have been set
	}
	if f.next != nil { // pages of both may be there: none has an end that another size would fill with zeros
		out.Size = min(out.Size, uint64(f.next.size))
		valid = 0
	}
	f.node.noteKernelAttrsLocked(v.id, int64(out.Size))
	return valid
}

// locked keeps a file at its version while an open file has locks on it. The first lock brings it up to date before.
func (fw *following) locked(ctx context.Context, h *handle, fh uint64) error {
	if fw == nil || h.followed == nil {
		return nil
	}
	f := h.followed
	for {
		if fw.joinPinned(f, fh) {
			return nil
		}
		if err := fw.settle(ctx, f); err != nil {
			return err
		}
		if fw.pin(f, fh) {
			return nil
		}
	}
}

// joinPinned adds an open file to those that keep a version; false if there are none.
func (fw *following) joinPinned(f *followed, fh uint64) bool {
	fw.locks.mu.Lock()
	defer fw.locks.mu.Unlock()
	fw.nodes.mu.Lock()
	defer fw.nodes.mu.Unlock()
	fw.prunedLocked(f)
	if len(f.pinned) == 0 {
		return false
	}
	f.pinned[fh] = struct{}{}
	return true
}

// pin makes an open file keep the version; false while it changes.
func (fw *following) pin(f *followed, fh uint64) bool {
	fw.nodes.mu.Lock()
	defer fw.nodes.mu.Unlock()
	if f.next == nil {
		f.pinned[fh] = struct{}{}
	}
	return f.next == nil
}

// unlocked lets a file go on if nobody here has locks on it any more.
func (fw *following) unlocked(h *handle) {
	if fw == nil || h.followed == nil {
		return
	}
	fw.locks.mu.Lock()
	defer fw.locks.mu.Unlock()
	fw.unlockedLocked(h)
}

// unlockedLocked is unlocked where fileLocks.mu is held.
func (fw *following) unlockedLocked(h *handle) {
	if fw == nil || h.followed == nil {
		return
	}
	fw.nodes.mu.Lock()
	defer fw.nodes.mu.Unlock()
	if fw.prunedLocked(h.followed) && len(h.followed.pinned) == 0 {
		fw.askLocked(h.followed)
	}
}

// prunedLocked forgets open files that have no locks any more, and reports whether there were any. fileLocks.mu and
// nodeTable.mu are held.
func (fw *following) prunedLocked(f *followed) (any bool) {
	for fh := range f.pinned {
		if !fw.locks.holdsLocked(uint64(f.node.ino()), fw.nodes.space, fh) {
			delete(f.pinned, fh)
			any = true
		}
	}
	return any
}
