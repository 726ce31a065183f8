package fs

import (
	"context"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// tmpfile marks the live file of an O_TMPFILE: it is not in the log until linkat gives it a name.
type tmpfile struct {
	linking chan struct{} // closed when the linkat that is under way has ended; nil if none is
}

// tmpName is the name that a publish gives to an O_TMPFILE.
type tmpName struct {
	parent meta.Ino
	name   string
}

// tmpInoBase is where inode numbers of files without a name begin; the log gives none that high.
const tmpInoBase = uint64(1) << 63

// Unnamed reports whether an inode number in the description of staged bytes is that of a file without a name. When
// the daemon that gave it has ended nothing leads to those bytes any more.
func Unnamed(ino uint64) bool { return ino >= tmpInoBase }

func (l *live) isTmp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tmp != nil && l.tmp.linking == nil
}

// awaitLinked waits while a file is being given its first name.
func (l *live) awaitLinked(ctx context.Context) error {
	for {
		l.mu.Lock()
		var linking chan struct{}
		if l.tmp != nil {
			linking = l.tmp.linking
		}
		l.mu.Unlock()
		if linking == nil {
			return nil
		}
		select {
		case <-linking:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tmpOf is the live file of an O_TMPFILE that has no name yet, or nil.
func (f *fileSystem) tmpOf(n *node) *live {
	f.nodes.mu.Lock()
	l := n.live
	f.nodes.mu.Unlock()
	if l == nil || !l.isTmp() {
		return nil
	}
	return l
}

// Tmpfile answers FUSE_TMPFILE.
func (f *fileSystem) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	dir, no := f.directory(in.NodeId)
	if no != 0 {
		return fuse.Status(no)
	}
	parent, err := f.names().Inode(dir)
	if err != nil {
		return fuse.Status(f.fail("create", dir, err))
	}
	now := time.Now().UnixNano()
	attr, mode := f.inheritACL(dir, meta.KindFile, in.Mode&07777, in.Umask)
	rec := meta.Inode{
		Ino: meta.Ino(tmpInoBase + f.tmpInos.Add(1)), Kind: meta.KindFile, Mode: mode,
		UID: in.Uid, GID: in.Gid, Atime: now, Mtime: now, Ctime: now,
	}
	if parent.Mode&syscall.S_ISGID != 0 {
		rec.GID = parent.GID
	}
	h, no := f.stageNew(rec, "")
	if no != 0 {
		return fuse.Status(no)
	}
	l := h.live
	l.mu.Lock()
	l.tmp = &tmpfile{}
	l.mayMap = mayMap(in.Flags)
	l.attr = attr
	l.attr.Mask, l.attr.Mode, l.attr.UID, l.attr.GID = meta.AttrMode|meta.AttrUID|meta.AttrGID, rec.Mode, rec.UID, rec.GID
	l.mu.Unlock()
	f.fillEntry(h.node, rec, &out.EntryOut)
	f.opened(h, in.Pid, &out.OpenOut)
	return fuse.OK
}

// linkTmp publishes an O_TMPFILE under its first name.
func (f *fileSystem) linkTmp(ctx context.Context, l *live, dir meta.Ino, name string, out *fuse.EntryOut) syscall.Errno {
	linked := make(chan struct{})
	l.mu.Lock()
	busy := l.tmp == nil || l.tmp.linking != nil
	if !busy {
		l.tmp.linking = linked
	}
	l.mu.Unlock()
	if busy {
		return syscall.EBUSY
	}
	err := retaken(func() error {
		c, err := f.changes(l)
		if err != nil {
			c.end(meta.ContentID{}, false)
			return err
		}
		return f.push(ctx, l, c, tmpName{parent: dir, name: name})
	})
	if err == nil {
		f.nodes.rename(l.node, l.linkedAs())
		f.describeLinked(l)
	}
	l.mu.Lock()
	if err == nil {
		l.tmp = nil
	} else {
		l.tmp.linking, l.kept = nil, ""
	}
	l.mu.Unlock()
	close(linked)
	if err != nil {
		return f.fail("link "+name, dir, err)
	}
	f.entry(l.linkedAs(), out)
	return 0
}

// linker is a staged file that can be told what it belongs to since it got a name.
type linker interface{ Linked(info StageInfo) error }

// describeLinked has what is written from now on listed under the name that an O_TMPFILE got.
func (f *fileSystem) describeLinked(l *live) {
	s, ok := l.stage.(linker)
	if !ok {
		return
	}
	rec := l.linkedAs()
	if err := s.Linked(StageInfo{Ino: rec.Ino, Parent: rec.Parent, Path: f.path(rec)}); err != nil {
		f.log.Warn("describe a linked file", "inode", uint64(rec.Ino), "err", err)
	}
}

// linkedAs is what an O_TMPFILE became.
func (l *live) linkedAs() meta.Inode {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.linked
}

// rename gives a node the inode number that the log gave its file, now or again.
func (t *table) rename(n *node, rec meta.Inode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current[n.ino()] == n {
		delete(t.current, n.ino())
	}
	if other := t.current[rec.Ino]; other != nil && other != n {
		t.detachLocked(other) // a lookup was faster
	}
	n.inoNow.Store(uint64(rec.Ino))
	n.last = rec
	n.gone = false
	t.current[rec.Ino] = n
}
