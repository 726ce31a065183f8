package fs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// cacheForever is how long the kernel may keep what Apply invalidates.
const cacheForever = time.Hour

const blockBytes = 512 // of st_blocks

var typeBits = map[meta.Kind]uint32{
	meta.KindFile: syscall.S_IFREG, meta.KindDir: syscall.S_IFDIR, meta.KindSymlink: syscall.S_IFLNK,
	meta.KindFIFO: syscall.S_IFIFO, meta.KindSocket: syscall.S_IFSOCK,
	meta.KindChar: syscall.S_IFCHR, meta.KindBlock: syscall.S_IFBLK,
}

// record is the inode of a node as the log has it, or as it was last seen when it is gone.
func (f *fileSystem) record(n *node) meta.Inode {
	rec, err := f.names().Inode(n.ino())
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	switch {
	case err == nil && rec.Kind == n.kind:
		n.last = rec
	case err == nil || errors.Is(err, meta.ErrNotFound):
		n.last.Nlink = 0
	}
	return n.last
}

// fillAttr gives the attributes that the handles of a node see, and how long they may be cached. Of anything but a
// file they are rec's.
func (f *fileSystem) fillAttr(n *node, rec meta.Inode, out *fuse.Attr) time.Duration {
	if n.kind == meta.KindFile {
		return f.fileAttr(n, out)
	}
	setAttr(out, rec)
	return cacheForever
}

// fileAttr is fillAttr of a file. The record is read last: what is not staged any more when this looks is in the log
// by then.
func (f *fileSystem) fileAttr(n *node, out *fuse.Attr) time.Duration {
	f.nodes.mu.Lock()
	l, v := n.live, n.reading
	superseded, valid := false, cacheForever
	if n.detached {
		valid = 0 // see detachLocked
	}
	if l != nil && l.ended {
		l = nil
	} else if l != nil {
		l.holds++
		superseded = l.superseded
	}
	f.nodes.mu.Unlock()
	if l != nil {
		defer f.unhold(l)
		if superseded {
			valid = 0 // when it is closed the newer version shows
		}
		return min(valid, f.liveAttr(l, out))
	}
	rec := f.record(n)
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	n.setAttrLocked(out, rec)
	switch {
	case n.live != nil: // one that ends tells it itself
	case v == nil:
		n.tellLocked(rec.Content, rec.Size)
	default:
		n.tellLocked(v.id, v.size)
	}
	if v != nil && (v.id != rec.Content || v.size != rec.Size) {
		out.Size = uint64(v.size)
		out.Blocks = blocks(v.size, v.holes)
	}
	return valid
}

// setAttrLocked gives the attributes of a record. table.mu is held.
func (n *node) setAttrLocked(out *fuse.Attr, rec meta.Inode) {
	setAttr(out, rec)
	if n.removed || n.gone {
		out.Nlink = 0
	}
}

// liveAttr overlays what is staged. The kernel sees each write that changes it, but not the stores through mappings.
func (f *fileSystem) liveAttr(l *live, out *fuse.Attr) time.Duration {
	var patch meta.AttrPatch
	var p state
	valid := cacheForever
	ready := l.isReady()
	if ready {
		l.mu.Lock()
		patch, p = l.shownAttrLocked(), l.published
		if l.mayMap {
			valid = 0
		}
		l.mu.Unlock()
	}
	rec := f.record(l.node)
	f.nodes.mu.Lock()
	l.node.setAttrLocked(out, rec)
	f.nodes.mu.Unlock()
	if !ready || l.err != 0 {
		return 0 // still being prepared from rec, or that has failed
	}
	st, err := l.stage.Stat()
	if err != nil {
		f.log.Error("stat staged file", "inode", uint64(rec.Ino), "err", err)
		return 0
	}
	out.Size = uint64(st.Size)
	out.Blocks = uint64(st.Allocated+blockBytes-1) / blockBytes
	if !p.valid || p.size != st.Size || p.ctime != st.Ctime {
		setTime(&out.Atime, &out.Atimensec, st.Atime)
		setTime(&out.Mtime, &out.Mtimensec, st.Mtime)
		setTime(&out.Ctime, &out.Ctimensec, max(st.Ctime, rec.Ctime, patch.Ctime))
	}
	applyPatch(out, patch)
	return valid
}

// applyPatch shows the owner and mode that ride in the next publish.
func applyPatch(out *fuse.Attr, p meta.AttrPatch) {
	if p.Mask&meta.AttrUID != 0 {
		out.Uid = p.UID
	}
	if p.Mask&meta.AttrGID != 0 {
		out.Gid = p.GID
	}
	if p.Mask&meta.AttrKillPriv != 0 {
		out.Mode = out.Mode&^07777 | killPriv(out.Mode&07777)
	}
	if p.Mask&meta.AttrMode != 0 {
		out.Mode = out.Mode&^07777 | p.Mode&07777
	}
}

// killPriv clears setuid, and setgid of what a group may execute.
func killPriv(mode uint32) uint32 {
	mode &^= syscall.S_ISUID
	if mode&syscall.S_IXGRP != 0 {
		mode &^= syscall.S_ISGID
	}
	return mode
}

func setAttr(out *fuse.Attr, rec meta.Inode) {
	*out = fuse.Attr{
		Ino: uint64(rec.Ino), Size: uint64(rec.Size), Mode: typeBits[rec.Kind] | rec.Mode&07777,
		Nlink: rec.Nlink, Owner: fuse.Owner{Uid: rec.UID, Gid: rec.GID}, Rdev: rec.Rdev, Blksize: 128 << 10,
	}
	if rec.Kind == meta.KindFile {
		out.Blocks = blocks(rec.Size, rec.Holes)
	}
	if rec.Kind == meta.KindDir {
		out.Size = 4096
	}
	setTime(&out.Atime, &out.Atimensec, rec.Atime)
	setTime(&out.Mtime, &out.Mtimensec, rec.Mtime)
	setTime(&out.Ctime, &out.Ctimensec, rec.Ctime)
}

// blocks is what a committed file is shown to take: whole pages, but for its holes.
func blocks(size, holes int64) uint64 {
	const page = 4096
	return uint64((size-holes+page-1)/page*page) / blockBytes
}

func setTime(sec *uint64, nsec *uint32, ns int64) {
	s, n := ns/1e9, ns%1e9
	if n < 0 {
		s, n = s-1, n+1e9
	}
	*sec, *nsec = uint64(s), uint32(n)
}

// GetAttr answers FUSE_GETATTR.
func (f *fileSystem) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	f.awaitSettled(f.ctx, n)
	f.answerAttr(n, out)
	return fuse.OK
}

func (f *fileSystem) answerAttr(n *node, out *fuse.AttrOut) {
	if n.kind == meta.KindFile {
		out.SetTimeout(f.fileAttr(n, &out.Attr))
	} else {
		out.SetTimeout(f.fillAttr(n, f.record(n), &out.Attr))
	}
}

// SetAttr answers FUSE_SETATTR: truncation first, then the rest.
func (f *fileSystem) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := f.nodes.pin(in.NodeId)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	defer f.nodes.unpin(n)
	ctx, stop := f.callContext(cancel, in.Pid)
	defer stop()
	patch, times := patchOf(in, n.kind)
	if size, ok := in.GetSize(); ok {
		if _, open := in.GetFh(); !open {
			if no := f.settle(ctx, n); no != 0 {
				return fuse.Status(no)
			}
		}
		if no := f.truncate(ctx, cancel, in, n, int64(size), patch); no != 0 {
			return fuse.Status(no)
		}
		patch.Mask &^= meta.AttrKillPriv
	}
	f.chmodACL(n, &patch)
	if patch.Mask != 0 {
		if no := f.change(ctx, n, patch, times, 0); no != 0 {
			return fuse.Status(no)
		}
	}
	f.answerAttr(n, out)
	return fuse.OK
}

// newTimes are the times of a SETATTR, to be set on a staged file too.
type newTimes struct{ atime, mtime *int64 }

func patchOf(in *fuse.SetAttrIn, kind meta.Kind) (meta.AttrPatch, newTimes) {
	var p meta.AttrPatch
	var t newTimes
	if m, ok := in.GetMode(); ok {
		p.Mask |= meta.AttrMode
		p.Mode = m
	}
	uid, haveUID := in.GetUID()
	gid, haveGID := in.GetGID()
	if haveUID {
		p.Mask |= meta.AttrUID
		p.UID = uid
	}
	if haveGID {
		p.Mask |= meta.AttrGID
		p.GID = gid
	}
	const noChange = fuse.FATTR_FH | fuse.FATTR_LOCKOWNER
	if in.Valid&fuse.FATTR_KILL_SUIDGID != 0 || in.Valid&^uint32(noChange) == 0 || // that one precedes a write by passthrough
		(haveUID || haveGID) && kind != meta.KindDir {
		p.Mask |= meta.AttrKillPriv
	}
	if at, ok := in.GetATime(); ok {
		p.Mask |= meta.AttrAtime
		p.Atime = at.UnixNano()
		t.atime = &p.Atime
	}
	if mt, ok := in.GetMTime(); ok {
		p.Mask |= meta.AttrMtime
		p.Mtime = mt.UnixNano()
		t.mtime = &p.Mtime
	}
	return p, t
}

// change applies a patch: to the live file when it is going to be published anyway, else by the log.
func (f *fileSystem) change(ctx context.Context, n *node, patch meta.AttrPatch, t newTimes, xattrFlags uint32) syscall.Errno {
	l := f.readyLive(ctx, n)
	if l != nil {
		defer f.unhold(l)
	}
	if l != nil && f.rides(l) {
		if no := f.makeRoom(ctx, l, patch); no != 0 {
			return no
		}
		if err := f.setTimes(l, t); err != nil {
			return f.fail("set times", n.ino(), err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		patch.Ctime = time.Now().UnixNano()
		l.attr = mergePatch(l.attr, patch)
		return 0
	}
	if no := f.proposePatch(ctx, n, patch, xattrFlags); no != 0 {
		return no
	}
	if l == nil || t.atime == nil && t.mtime == nil {
		return 0
	}
	return f.fail("set times", n.ino(), l.timesSet(t))
}

// attrBytesMax bounds what waits for one publish: an entry of the log has to hold it.
const attrBytesMax = 512 << 10

// makeRoom brings what waits to the log if it would be too much together with patch.
func (f *fileSystem) makeRoom(ctx context.Context, l *live, patch meta.AttrPatch) syscall.Errno {
	l.mu.Lock()
	fits := xattrBytes(l.shownAttrLocked())+xattrBytes(patch) <= attrBytesMax
	named := l.tmp == nil
	l.crowded = l.crowded || !fits
	l.mu.Unlock()
	switch {
	case fits:
		return 0
	case !named:
		return syscall.ENOSPC // the log does not know it yet
	}
	f.nodes.mu.Lock()
	r := f.roundLocked(l, true)
	f.nodes.mu.Unlock()
	select {
	case <-r.done:
		return f.fail("set attributes", l.node.ino(), r.err)
	case <-ctx.Done():
		return syscall.EIO
	}
}

func xattrBytes(p meta.AttrPatch) (n int) {
	for name, value := range p.SetXattr {
		n += len(name) + len(value)
	}
	return n
}

// timesSet gives a staged file the times that the log has now.
func (l *live) timesSet(t newTimes) error {
	if err := l.stage.SetTimes(t.atime, t.mtime); err != nil {
		return err
	}
	st, err := l.stage.Stat()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.published.mtime = st.Mtime
	return nil
}

func (f *fileSystem) setTimes(l *live, t newTimes) error {
	if t.atime == nil && t.mtime == nil {
		return nil
	}
	return l.stage.SetTimes(t.atime, t.mtime)
}

// proposePatch changes attributes by the log. Of a file without a name they change only here.
func (f *fileSystem) proposePatch(ctx context.Context, n *node, patch meta.AttrPatch, xattrFlags uint32) syscall.Errno {
	done := f.ownInode(n.ino())
	res, err := f.propose(ctx, &meta.SetAttr{Ino: n.ino(), Patch: patch, XattrFlags: xattrFlags})
	done()
	no := f.outcome("set attributes", n.ino(), res, err)
	if no != syscall.ENOENT {
		return no
	}
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	patchRecord(&n.last, patch)
	return 0
}

func patchRecord(rec *meta.Inode, p meta.AttrPatch) {
	if p.Mask&meta.AttrUID != 0 {
		rec.UID = p.UID
	}
	if p.Mask&meta.AttrGID != 0 {
		rec.GID = p.GID
	}
	if p.Mask&meta.AttrKillPriv != 0 {
		rec.Mode = killPriv(rec.Mode)
	}
	if p.Mask&meta.AttrMode != 0 {
		rec.Mode = p.Mode
	}
	if p.Mask&meta.AttrAtime != 0 {
		rec.Atime = p.Atime
	}
	if p.Mask&meta.AttrMtime != 0 {
		rec.Mtime = p.Mtime
	}
}

// readyLive is the prepared live file of a node, held, or nil.
func (f *fileSystem) readyLive(ctx context.Context, n *node) *live {
	f.nodes.mu.Lock()
	l := n.live
	if l == nil || l.ended {
		f.nodes.mu.Unlock()
		return nil
	}
	l.holds++
	f.nodes.mu.Unlock()
	if l.awaitReady(ctx) && l.err == 0 {
		return l
	}
	f.unhold(l)
	return nil
}

func (l *live) isReady() bool {
	select {
	case <-l.ready:
		return true
	default:
		return false
	}
}

// awaitReady waits until a live file is prepared; false if ctx ends before.
func (l *live) awaitReady(ctx context.Context) bool {
	if l.isReady() {
		return true // most often, and then nobody need watch ctx
	}
	select {
	case <-l.ready:
		return true
	case <-ctx.Done():
		return false
	}
}

// rides reports whether a change of attributes can wait for the next publish of a live file. It has to while an
// earlier one waits or is under way.
func (f *fileSystem) rides(l *live) bool {
	l.mu.Lock()
	waiting := l.reserved || l.tmp != nil || !isEmpty(l.shownAttrLocked())
	l.mu.Unlock()
	if waiting {
		return true
	}
	f.nodes.mu.Lock()
	frozen := l.writers == 0
	f.nodes.mu.Unlock()
	if frozen {
		return false
	}
	st, err := l.stage.Stat()
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.published
	if l.backing.on() {
		return p.size != st.Size || p.ctime != st.Ctime
	}
	return p.size != st.Size || p.dirty != l.dirty
}

// mergePatch is older changed by newer.
func mergePatch(older, newer meta.AttrPatch) meta.AttrPatch {
	out := older
	if newer.Mask&meta.AttrKillPriv != 0 && older.Mask&meta.AttrMode != 0 {
		out.Mode = killPriv(older.Mode) // clears what was set before it
	}
	out.Mask |= newer.Mask
	if newer.Mask&meta.AttrMode != 0 {
		out.Mode = newer.Mode
	}
	if newer.Mask&meta.AttrUID != 0 {
		out.UID = newer.UID
	}
	if newer.Mask&meta.AttrGID != 0 {
		out.GID = newer.GID
	}
	if newer.Mask&meta.AttrAtime != 0 {
		out.Atime = newer.Atime
	}
	if newer.Mask&meta.AttrMtime != 0 {
		out.Mtime = newer.Mtime
	}
	out.Ctime = max(older.Ctime, newer.Ctime)
	return mergeXattrs(out, newer)
}

func mergeXattrs(out, newer meta.AttrPatch) meta.AttrPatch {
	if len(newer.SetXattr) == 0 && len(newer.DelXattr) == 0 {
		return out
	}
	out.SetXattr = maps.Clone(out.SetXattr)
	if out.SetXattr == nil {
		out.SetXattr = map[string][]byte{}
	}
	out.DelXattr = slices.Clone(out.DelXattr)
	for name, value := range newer.SetXattr {
		out.SetXattr[name] = value
		out.DelXattr = slices.DeleteFunc(out.DelXattr, func(s string) bool { return s == name })
	}
	for _, name := range newer.DelXattr {
		delete(out.SetXattr, name)
		if !slices.Contains(out.DelXattr, name) {
			out.DelXattr = append(out.DelXattr, name)
		}
	}
	return out
}
