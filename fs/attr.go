package fs

import (
	"context"
	"log/slog"
	"math"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

const blockBytes = 512 // of st_blocks

var typeBits = map[meta.Kind]uint32{
	meta.KindFile: syscall.S_IFREG, meta.KindDir: syscall.S_IFDIR, meta.KindSymlink: syscall.S_IFLNK,
	meta.KindFIFO: syscall.S_IFIFO, meta.KindSocket: syscall.S_IFSOCK,
	meta.KindChar: syscall.S_IFCHR, meta.KindBlock: syscall.S_IFBLK,
}

// attributes are what stat and getxattr show of files: from the log, from what is staged, and from what waits for a
// publish.
type attributes struct {
	names *namespace
	nodes *nodeTable
	files *openFiles
	log   *slog.Logger
	acl   bool // POSIX access lists are kept
}

// fill returns the attributes that the handles of a node see, and how long they may be cached. They are read now, when
// a commit already finds the node: nobody would notify the kernel that a record which was read earlier is old.
func (at *attributes) fill(n *node, out *fuse.Attr) time.Duration {
	if n.kind == meta.KindFile {
		return at.file(n, out)
	}
	setAttr(out, at.nodes.record(n))
	return cacheForever
}

// file is fill of a file. The record is read last: what is not staged any more when this looks is in the log
// by then.
func (at *attributes) file(n *node, out *fuse.Attr) time.Duration {
	at.nodes.mu.Lock()
	l, v := n.live, n.reading
	superseded, valid := false, cacheForever
	if n.detached {
		valid = 0 // see detachLocked
	}
	if l != nil && l.users.ended {
		l = nil
	} else if l != nil {
		l.users.holds++
		superseded = l.superseded
	}
	at.nodes.mu.Unlock()
	if l != nil {
		defer at.files.unhold(l)
		if superseded {
			valid = 0 // when it is closed the newer version shows
		}
		return min(valid, at.live(l, out))
	}
	rec := at.nodes.record(n)
	at.nodes.mu.Lock()
	defer at.nodes.mu.Unlock()
	n.setAttrLocked(out, rec)
	if n.follow != nil {
		return n.follow.attrLocked(out, rec, valid)
	}
	switch {
	case n.live != nil: // a live file that ends notes it itself
	case v == nil:
		n.noteKernelAttrsLocked(rec.Content, rec.Size)
	default:
		n.noteKernelAttrsLocked(v.id, v.size)
	}
	if v != nil && (v.id != rec.Content || v.size != rec.Size) {
		out.Size = uint64(v.size)
		out.Blocks = blocks(v.size, v.holes)
	}
	return valid
}

// setAttrLocked gives the attributes of a record. nodeTable.mu is held.
func (n *node) setAttrLocked(out *fuse.Attr, rec meta.Inode) {
	setAttr(out, rec)
	if n.removed || n.gone {
		out.Nlink = 0
	}
}

// live overlays what is staged. The kernel sees each write that changes it, but not the stores through mappings.
func (at *attributes) live(l *live, out *fuse.Attr) time.Duration {
	var patch meta.AttrPatch
	var p state
	valid := cacheForever
	ready := l.isReady()
	if ready {
		l.mu.Lock()
		patch, p = l.attrs.shown(), l.published
		if l.mayMap {
			valid = 0
		}
		l.mu.Unlock()
	}
	rec := at.nodes.record(l.node)
	at.nodes.mu.Lock()
	l.node.setAttrLocked(out, rec)
	at.nodes.mu.Unlock()
	if !ready || l.err != 0 {
		return 0 // still being prepared from rec, or that has failed
	}
	st, err := l.stage.Stat()
	if err != nil {
		at.log.Error("stat staged file", "inode", uint64(rec.Ino), "err", err)
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

// blocks returns the room that a committed file is shown to take: whole pages, without its holes.
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

func (at *attributes) answer(n *node, out *fuse.AttrOut) {
	out.SetTimeout(at.fill(n, &out.Attr))
}

// SetAttr answers FUSE_SETATTR: truncation first, then the rest.
func (f *fileSystem) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := f.nodes.pin(in.NodeId)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	defer f.nodes.unpin(n)
	ctx, stop := f.life.callContext(cancel, in.Pid)
	defer stop()
	patch, times := patchOf(in, n.kind)
	if size, ok := in.GetSize(); ok {
		if _, open := in.GetFh(); !open {
			if no := f.names.settle(ctx, n); no != 0 {
				return fuse.Status(no)
			}
		}
		if no := f.truncate(ctx, cancel, in, n, int64(size), patch); no != 0 {
			return fuse.Status(no)
		}
		patch.Mask &^= meta.AttrKillPriv
	}
	f.attrs.chmodACL(n, &patch)
	if patch.Mask != 0 {
		if no := f.attrs.change(ctx, n, patch, times, 0); no != 0 {
			return fuse.Status(no)
		}
	}
	f.attrs.answer(n, out)
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
	// that one precedes a write by passthrough
	if in.Valid&fuse.FATTR_KILL_SUIDGID != 0 || in.Valid&^uint32(noChange) == 0 ||
		(haveUID || haveGID) && kind != meta.KindDir {
		p.Mask |= meta.AttrKillPriv
	}
	if at, ok := in.GetATime(); ok {
		p.Mask |= meta.AttrAtime
		p.Atime = kept(at)
		t.atime = &p.Atime
	}
	if mt, ok := in.GetMTime(); ok {
		p.Mask |= meta.AttrMtime
		p.Mtime = kept(mt)
		t.mtime = &p.Mtime
	}
	return p, t
}

// kept is a time as it is stored: nanoseconds since 1970. A time that has no room in that, before 1677 or after 2262,
// becomes the nearest one that has.
func kept(t time.Time) int64 {
	first, last := time.Unix(0, math.MinInt64), time.Unix(0, math.MaxInt64)
	switch {
	case t.Before(first):
		return math.MinInt64
	case t.After(last):
		return math.MaxInt64
	}
	return t.UnixNano()
}

// change applies a patch: to the live file when it is going to be published anyway, else by the log.
func (at *attributes) change(
	ctx context.Context, n *node, patch meta.AttrPatch, t newTimes, xattrFlags uint32,
) syscall.Errno {
	l := at.files.readyLive(ctx, n)
	if l != nil {
		defer at.files.unhold(l)
	}
	if l != nil && at.rides(l) {
		if no := at.makeRoom(ctx, l, patch); no != 0 {
			return no
		}
		if err := at.setTimes(l, t); err != nil {
			return fail(at.log, "set times", n.ino(), err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		patch.Ctime = time.Now().UnixNano()
		l.attrs.add(patch)
		return 0
	}
	if no := at.proposePatch(ctx, n, patch, xattrFlags); no != 0 {
		return no
	}
	if l == nil || t.atime == nil && t.mtime == nil {
		return 0
	}
	return fail(at.log, "set times", n.ino(), l.timesSet(t))
}

// makeRoom brings the waiting attributes to the log if they would be too much together with patch.
func (at *attributes) makeRoom(ctx context.Context, l *live, patch meta.AttrPatch) syscall.Errno {
	if len(patch.SetXattr) > 0 {
		if no := at.xattrsFit(l, patch); no != 0 {
			return no
		}
	}
	l.mu.Lock()
	fits := l.attrs.fit(patch)
	named := l.tmp == nil
	l.mu.Unlock()
	switch {
	case fits:
		return 0
	case !named:
		return syscall.ENOSPC // the log does not know it yet
	}
	at.nodes.mu.Lock()
	r := at.files.publisher.roundLocked(l, roundAttrs)
	at.nodes.mu.Unlock()
	select {
	case <-r.done:
		return fail(at.log, "set attributes", l.node.ino(), r.err)
	case <-ctx.Done():
		return syscall.EIO
	}
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

func (at *attributes) setTimes(l *live, t newTimes) error {
	if t.atime == nil && t.mtime == nil {
		return nil
	}
	return l.retime(t.atime, t.mtime)
}

// proposePatch changes attributes by the log. Attributes of a file without a name change only here.
func (at *attributes) proposePatch(
	ctx context.Context, n *node, patch meta.AttrPatch, xattrFlags uint32,
) syscall.Errno {
	done := at.names.ownInode(n.ino())
	res, err := at.names.propose(ctx, &meta.SetAttr{Ino: n.ino(), Patch: patch, XattrFlags: xattrFlags})
	done()
	no := at.names.outcome("set attributes", n.ino(), res, err)
	if no != syscall.ENOENT {
		return no
	}
	at.nodes.mu.Lock()
	defer at.nodes.mu.Unlock()
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

// rides reports whether a change of attributes can wait for the next publish of a live file. It has to wait while an
// earlier one waits or is under way.
func (at *attributes) rides(l *live) bool {
	l.mu.Lock()
	waiting := l.reserved || l.tmp != nil || !isEmpty(l.attrs.shown())
	l.mu.Unlock()
	if waiting {
		return true
	}
	at.nodes.mu.Lock()
	frozen := l.users.writers == 0
	at.nodes.mu.Unlock()
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
