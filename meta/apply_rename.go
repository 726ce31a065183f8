package meta

import "syscall"

// Flags of renameat2.
const (
	RenameNoReplace = 1
	RenameExchange  = 2
	RenameWhiteout  = 4
)

// move is a rename under way.
type move struct {
	*Rename
	from, to   *Inode // directories; one record when they are the same
	src, dst   dirent
	hidden     bool // dst is reserved by another writer
	srcI, dstI *Inode
}

func (t tree) rename(o *Rename) (Result, syscall.Errno) {
	m, errno := t.resolve(o)
	if errno != ok {
		return Result{}, errno
	}
	if o.Flags == RenameExchange {
		return t.exchange(m)
	}
	if m.dst.Ino == m.src.Ino { // the same name, or two links of one inode: nothing to do
		return Result{Ino: m.src.Ino, Inode: *m.srcI}, ok
	}
	if errno := t.mayReplace(m); errno != ok {
		return Result{}, errno
	}
	var whiteout *Inode
	if o.Flags&RenameWhiteout != 0 {
		if whiteout, errno = t.newInode(m.from, KindChar, 0, o.Cred); errno != ok {
			return Result{}, errno
		}
	}
	var removed Ino
	if m.dst.Ino != 0 {
		removed = t.dropName(m.to, o.NewName, m.dst)
	}
	t.carry(m.from, o.OldName, m.to, o.NewName, m.srcI)
	if whiteout != nil {
		t.addName(m.from, o.OldName, whiteout)
	}
	return Result{Ino: m.src.Ino, Inode: *m.srcI, Removed: removed}, ok
}

// resolve loads both ends and checks what holds for all kinds of rename.
func (t tree) resolve(o *Rename) (m move, errno syscall.Errno) {
	m.Rename = o
	if o.Flags&^(RenameNoReplace|RenameWhiteout) != 0 && o.Flags != RenameExchange {
		return m, syscall.EINVAL
	}
	if m.from, errno = t.dir(o.OldParent, o.OldName); errno != ok {
		return m, errno
	}
	m.to = m.from
	if o.NewParent == o.OldParent {
		errno = checkName(o.NewName)
	} else {
		m.to, errno = t.dir(o.NewParent, o.NewName)
	}
	if errno != ok {
		return m, errno
	}
	var foreign bool
	if m.src, foreign = t.entryOf(m.from, o.OldName); m.src.Ino == 0 || foreign {
		return m, syscall.ENOENT
	}
	m.dst, m.hidden = t.entryOf(m.to, o.NewName)
	if m.srcI = t.inode(m.src.Ino); m.srcI == nil {
		t.fail(errMalformed)
		return m, syscall.EIO
	}
	if m.src.Kind == KindDir && t.within(m.to, m.src.Ino) {
		return m, syscall.EINVAL
	}
	return m, ok
}

// within reports whether dir is top or lies below it.
func (t tree) within(dir *Inode, top Ino) bool {
	for at := dir; at != nil; at = t.inode(at.Parent) {
		if at.Ino == top {
			return true
		}
		if at.Ino == RootIno {
			return false
		}
	}
	return false
}

func (t tree) mayReplace(m move) syscall.Errno {
	switch {
	case m.dst.Ino == 0:
		return delegations{t.tx}.mayName(m.to)
	case m.Flags&RenameNoReplace != 0:
		return syscall.EEXIST
	case m.src.Reserved:
		return syscall.EBUSY // publish first: an unseen file must not take away a seen one
	case m.src.Kind == KindDir && m.dst.Kind != KindDir:
		return syscall.ENOTDIR
	case m.src.Kind != KindDir && m.dst.Kind == KindDir:
		return syscall.EISDIR
	case m.dst.Kind == KindDir:
		return t.mayRemoveDir(m.dst.Ino)
	}
	return ok
}

// carry moves one name to a free one.
func (t tree) carry(from *Inode, oldName string, to *Inode, newName string, i *Inode) {
	t.del(direntKey(from.Ino, oldName))
	t.rehome(i, from.Ino, oldName, to.Ino, newName)
	t.save(direntKey(to.Ino, newName), &dirent{i.Ino, i.Kind, i.Reserved != Lease{}})
	if i.Kind == KindDir {
		from.Nlink--
		to.Nlink++
	}
	t.touch(from)
	if to != from {
		t.touch(to)
	}
	t.emit(Event{Kind: EventName, Ino: from.Ino, Name: oldName})
	t.emit(Event{Kind: EventName, Ino: to.Ino, Name: newName})
}

// rehome changes one name in the inode's own records and stamps it.
func (t tree) rehome(i *Inode, oldDir Ino, oldName string, newDir Ino, newName string) {
	if i.Parent == oldDir && i.Name == oldName {
		i.Parent, i.Name = newDir, newName
	} else {
		t.del(nameKey(i.Ino, oldDir, oldName))
		t.set(nameKey(i.Ino, newDir, newName), present)
	}
	i.Ctime = t.now
	t.saveInode(i)
	t.emit(Event{Kind: EventInode, Ino: i.Ino})
}

func (t tree) exchange(m move) (Result, syscall.Errno) {
	switch {
	case m.dst.Ino == 0 || m.hidden:
		return Result{}, syscall.ENOENT
	case m.src.Reserved || m.dst.Reserved:
		return Result{}, syscall.EBUSY // publish first
	case m.dst.Kind == KindDir && t.within(m.from, m.dst.Ino):
		return Result{}, syscall.EINVAL
	case m.src.Ino == m.dst.Ino:
		return Result{Ino: m.src.Ino, Inode: *m.srcI}, ok
	}
	if m.dstI = t.inode(m.dst.Ino); m.dstI == nil {
		t.fail(errMalformed)
		return Result{}, syscall.EIO
	}
	t.save(direntKey(m.from.Ino, m.OldName), &m.dst)
	t.save(direntKey(m.to.Ino, m.NewName), &m.src)
	t.rehome(m.srcI, m.from.Ino, m.OldName, m.to.Ino, m.NewName)
	t.rehome(m.dstI, m.to.Ino, m.NewName, m.from.Ino, m.OldName)
	if m.src.Kind == KindDir {
		m.from.Nlink--
		m.to.Nlink++
	}
	if m.dst.Kind == KindDir {
		m.to.Nlink--
		m.from.Nlink++
	}
	t.touch(m.from)
	if m.to != m.from {
		t.touch(m.to)
	}
	t.emit(Event{Kind: EventName, Ino: m.from.Ino, Name: m.OldName})
	t.emit(Event{Kind: EventName, Ino: m.to.Ino, Name: m.NewName})
	return Result{Ino: m.src.Ino, Inode: *m.srcI}, ok
}
