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
	btime  int64
}

// tmpInoBase is where inode numbers of files without a name begin; the log gives none that high.
const tmpInoBase = uint64(1) << 63

// Unnamed reports whether an inode number in the description of staged bytes belongs to a file without a name. When the
// daemon that gave it has ended, nothing leads to those bytes any more.
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

// Tmpfile answers FUSE_TMPFILE.
func (f *fileSystem) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	dir, no := f.directory(in.NodeId)
	if f.files.follow != nil {
		no = syscall.EROFS
	}
	if no != 0 {
		return fuse.Status(no)
	}
	parent, err := f.names.state().Inode(dir)
	if err != nil {
		return fuse.Status(fail(f.log, "create", dir, err))
	}
	now := time.Now().UnixNano()
	attr, mode := f.attrs.inheritACL(dir, meta.KindFile, in.Mode&07777, in.Umask)
	rec := meta.Inode{
		Ino: meta.Ino(tmpInoBase + f.siblings.tmpInos.Add(1)), Kind: meta.KindFile, Mode: mode,
		UID: in.Uid, GID: in.Gid, Atime: now, Mtime: now, Ctime: now, Btime: now,
	}
	if parent.Mode&syscall.S_ISGID != 0 {
		rec.GID = parent.GID
	}
	h, no := f.files.stageNew(rec, "")
	if no != 0 {
		return fuse.Status(no)
	}
	attr.Mask, attr.Mode, attr.UID, attr.GID = meta.AttrMode|meta.AttrUID|meta.AttrGID, rec.Mode, rec.UID, rec.GID
	l := h.live
	h.maps = mayMap(in.Flags)
	l.mu.Lock()
	l.tmp = &tmpfile{}
	l.mayMap = mayMap(in.Flags)
	l.attrs.waiting = attr
	l.mu.Unlock()
	f.fillEntry(h.node, &out.EntryOut)
	f.files.opened(h, in.Pid, &out.OpenOut)
	return fuse.OK
}

// linkTmp publishes an O_TMPFILE under its first name.
func (pub *publisher) linkTmp(ctx context.Context, l *live, dir meta.Ino, name string) (meta.Inode, syscall.Errno) {
	linked := make(chan struct{})
	l.mu.Lock()
	busy := l.tmp == nil || l.tmp.linking != nil
	if !busy {
		l.tmp.linking = linked
	}
	l.mu.Unlock()
	if busy {
		return meta.Inode{}, syscall.EBUSY
	}
	err := retaken(func() error {
		c, err := l.changes()
		if err != nil {
			c.end(meta.ContentID{}, false)
			return err
		}
		return pub.push(ctx, l, c, tmpName{parent: dir, name: name, btime: pub.nodes.btime(l.node)})
	})
	if err == nil {
		pub.nodes.rename(l.node, l.linkedAs())
		pub.reserved.describeLinked(l)
		pub.noteOver(l)
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
		return meta.Inode{}, fail(pub.log, "link "+name, dir, err)
	}
	return l.linkedAs(), 0
}

// linker is a staged file that takes a note of what it belongs to when it gets a name.
type linker interface{ Linked(info StageInfo) error }

// describeLinked makes bytes that are written from now on be listed under the name that an O_TMPFILE got.
func (rs *reservations) describeLinked(l *live) {
	s, ok := l.stage.(linker)
	if !ok {
		return
	}
	rec := l.linkedAs()
	if err := s.Linked(StageInfo{Ino: rec.Ino, Parent: rec.Parent, Path: rs.names.path(rec)}); err != nil {
		rs.log.Warn("describe a linked file", "inode", uint64(rec.Ino), "err", err)
	}
}

// linkedAs is what an O_TMPFILE became.
func (l *live) linkedAs() meta.Inode {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.linked
}
