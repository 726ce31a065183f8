package meta

import (
	"strings"
	"syscall"
)

// Limits of names and links.
const (
	NameMax    = 255
	TargetMax  = 4095
	linkMax    = 1 << 20
	setuid     = 0o4000
	setgid     = 0o2000
	modeBits   = 0o7777
	groupExec  = 0o010
	inoBits    = 40
	inoPerNode = 1 << inoBits
)

func checkName(name string) syscall.Errno {
	switch {
	case len(name) > NameMax:
		return syscall.ENAMETOOLONG
	case name == "" || name == "." || name == "..", strings.ContainsAny(name, "/\x00"):
		return syscall.EINVAL
	}
	return ok
}

// inode loads an inode's record; nil when there is none.
func (t *tx) inode(ino Ino) *Inode {
	i := new(Inode)
	if !t.load(inodeKey(ino), i) {
		return nil
	}
	return i
}

func (t *tx) saveInode(i *Inode) { t.save(inodeKey(i.Ino), i) }

// tree is the part of apply that makes, moves and removes names and the inodes under them.
type tree struct{ *tx }

// dir loads the directory that an operation names something in.
func (t tree) dir(ino Ino, name string) (*Inode, syscall.Errno) {
	if errno := checkName(name); errno != ok {
		return nil, errno
	}
	d := t.inode(ino)
	switch {
	case d == nil:
		return nil, syscall.ENOENT
	case d.Kind != KindDir:
		return nil, syscall.ENOTDIR
	}
	return d, ok
}

// entryOf loads the entry of a name; Ino is 0 when there is none. A name reserved under a dead lease is freed and does
// not exist; foreign reports that it is reserved by another live writer.
func (t tree) entryOf(dir *Inode, name string) (d dirent, foreign bool) {
	if !t.load(direntKey(dir.Ino, name), &d) {
		return dirent{}, false
	}
	if !d.Reserved {
		return d, false
	}
	i := t.inode(d.Ino)
	if i == nil {
		t.fail(errMalformed)
		return dirent{}, false
	}
	if !t.cl.alive(i.Reserved) {
		t.dropName(dir, name, d)
		return dirent{}, false
	}
	return d, i.Reserved != t.lease()
}

// touch marks a change of a directory's entries.
func (t tree) touch(dir *Inode) {
	dir.Mtime, dir.Ctime = t.now, t.now
	t.saveInode(dir)
}

func (t tree) create(o *Create) (Result, syscall.Errno) {
	dir, errno := t.dir(o.Parent, o.Name)
	if errno != ok {
		return Result{}, errno
	}
	if d, foreign := t.entryOf(dir, o.Name); d.Ino != 0 {
		switch {
		case o.Excl || o.Kind != KindFile || d.Kind != KindFile:
			return Result{}, syscall.EEXIST
		case foreign:
			return Result{}, syscall.ENOENT
		}
		return Result{Ino: d.Ino, Existed: true, Inode: *t.inode(d.Ino)}, ok
	}
	if errno := (delegations{t.tx}).mayName(dir); errno != ok {
		return Result{}, errno
	}
	i, errno := t.newInode(dir, o.Kind, o.Mode, o.Cred)
	if errno != ok {
		return Result{}, errno
	}
	if errno := t.shape(i, o); errno != ok {
		return Result{}, errno
	}
	i.born(o.Btime)
	t.addName(dir, o.Name, i)
	delegations{t.tx}.inherit(dir, i)
	return Result{Ino: i.Ino, Inode: *i}, ok
}

// shape fills what depends on the kind of a new inode.
func (t tree) shape(i *Inode, o *Create) syscall.Errno {
	switch o.Kind {
	case KindFile:
		i.Reserved = t.lease()
		t.set(reservedKey(i.Reserved, i.Ino), present)
	case KindDir:
		i.Nlink = 1 // its own "."; addName counts the name
	case KindSymlink:
		if o.Target == "" {
			return syscall.ENOENT
		}
		if len(o.Target) > TargetMax {
			return syscall.ENAMETOOLONG
		}
		i.Target, i.Size, i.Mode = o.Target, int64(len(o.Target)), 0o777
	case KindChar, KindBlock:
		i.Rdev = o.Rdev
	case KindFIFO, KindSocket:
	default:
		return syscall.EINVAL
	}
	return ok
}

// newInode numbers and owns a new inode made in dir; it has no name yet and is not stored.
func (t tree) newInode(dir *Inode, kind Kind, mode uint32, cred Cred) (*Inode, syscall.Errno) {
	p := t.progressOf(t.entry.Node)
	p.LastIno++
	if p.LastIno >= inoPerNode {
		return nil, syscall.ENOSPC
	}
	return t.newInodeAs(Ino(t.entry.Node)<<inoBits|Ino(p.LastIno), dir, kind, mode, cred), ok
}

// newInodeAs is newInode for a number that is the proposer's to give.
func (t tree) newInodeAs(ino Ino, dir *Inode, kind Kind, mode uint32, cred Cred) *Inode {
	i := ownedBy(dir, kind, mode, cred)
	i.Ino, i.Atime, i.Mtime, i.Ctime, i.Btime = ino, t.now, t.now, t.now, t.now
	if kind == KindFile && i.Policy == 0 {
		i.Policy = t.cl.fallback // the placement sticks to the file
	}
	t.head.Files++
	return &i
}

// born gives a new inode the time at which its proposer made it, if that is known.
func (i *Inode) born(at int64) {
	if at != 0 {
		i.Btime = at
	}
}

// ownedBy says what an inode that is made in a directory gets from it and from its maker.
func ownedBy(dir *Inode, kind Kind, mode uint32, cred Cred) Inode {
	i := Inode{Kind: kind, Mode: mode & modeBits, UID: cred.UID, GID: cred.GID, Policy: dir.Policy}
	if dir.Mode&setgid != 0 {
		i.GID = dir.GID
		if kind == KindDir {
			i.Mode |= setgid
		}
	}
	return i
}

// addName gives an inode a name that is free, and stores both.
func (t tree) addName(dir *Inode, name string, i *Inode) {
	if i.Nlink == 0 || i.Kind == KindDir {
		i.Parent, i.Name = dir.Ino, name
	} else {
		t.set(nameKey(i.Ino, dir.Ino, name), present)
	}
	i.Nlink++
	if i.Kind == KindDir {
		dir.Nlink++
	}
	t.save(direntKey(dir.Ino, name), &dirent{i.Ino, i.Kind, i.Reserved != Lease{}})
	t.saveInode(i)
	t.touch(dir)
	t.emit(Event{Kind: EventName, Ino: dir.Ino, Name: name})
}

// dropName removes a name and, with the last one, the inode.
func (t tree) dropName(dir *Inode, name string, d dirent) (removed Ino) {
	t.del(direntKey(dir.Ino, name))
	t.emit(Event{Kind: EventName, Ino: dir.Ino, Name: name})
	i := t.inode(d.Ino)
	if i == nil {
		t.fail(errMalformed)
		return 0
	}
	if i.Kind == KindDir {
		dir.Nlink--
	}
	t.touch(dir)
	if i.Kind == KindDir || i.Nlink == 1 {
		t.removeInode(i, removals{t.tx}.take(dir, name, i))
		return i.Ino
	}
	t.forgetName(i, dir.Ino, name)
	i.Nlink--
	i.Ctime = t.now
	t.saveInode(i)
	t.emit(Event{Kind: EventInode, Ino: i.Ino})
	return 0
}

// forgetName removes one of several names from the inode's own records.
func (t tree) forgetName(i *Inode, dir Ino, name string) {
	if i.Parent != dir || i.Name != name {
		t.del(nameKey(i.Ino, dir, name))
		return
	}
	t.scan(key64(tableName, uint64(i.Ino)), func(key, _ []byte) bool {
		i.Parent, i.Name = splitName(key)
		t.del(key)
		return false
	})
}

// splitName reads parent and name from a key of tableName.
func splitName(key []byte) (Ino, string) {
	var parent uint64
	for _, b := range key[9:17] {
		parent = parent<<8 | uint64(b)
	}
	return Ino(parent), string(key[17:])
}

// removeInode deletes an inode that lost its last name. What belongs to it stays if it is kept.
func (t tree) removeInode(i *Inode, kept bool) {
	t.del(inodeKey(i.Ino))
	if i.Reserved != (Lease{}) {
		t.del(reservedKey(i.Reserved, i.Ino))
	}
	if !kept {
		removals{t.tx}.discard(i)
	}
	if i.Kind == KindDir {
		delegations{t.tx}.end(i.Ino)
	}
	t.head.Files--
	gone := *i
	t.emit(Event{Kind: EventRemoved, Ino: i.Ino, Inode: &gone})
}

func (t tree) link(o *Link) (Result, syscall.Errno) {
	dir, errno := t.dir(o.Parent, o.Name)
	if errno != ok {
		return Result{}, errno
	}
	i := t.inode(o.Ino)
	switch {
	case i == nil:
		return Result{}, syscall.ENOENT
	case i.Kind == KindDir:
		return Result{}, syscall.EPERM
	case i.Reserved != Lease{}:
		return Result{}, syscall.EBUSY // publish first
	case i.Nlink >= linkMax:
		return Result{}, syscall.EMLINK
	}
	if d, _ := t.entryOf(dir, o.Name); d.Ino != 0 {
		return Result{}, syscall.EEXIST
	}
	if errno := (delegations{t.tx}).mayName(dir); errno != ok {
		return Result{}, errno
	}
	i.Ctime = t.now
	t.addName(dir, o.Name, i)
	t.emit(Event{Kind: EventInode, Ino: i.Ino})
	return Result{Ino: i.Ino, Inode: *i}, ok
}

func (t tree) unlink(o *Unlink) (Result, syscall.Errno) {
	dir, errno := t.dir(o.Parent, o.Name)
	if errno != ok {
		return Result{}, errno
	}
	d, foreign := t.entryOf(dir, o.Name)
	switch {
	case d.Ino == 0 || foreign:
		return Result{}, syscall.ENOENT
	case d.Kind == KindDir:
		return Result{}, syscall.EISDIR
	case o.Ino != 0 && o.Ino != d.Ino, o.GiveBack && !d.Reserved:
		return Result{}, syscall.ESTALE
	}
	removed := t.dropName(dir, o.Name, d)
	res := Result{Ino: d.Ino, Removed: removed}
	if removed == 0 {
		res.Inode = *t.inode(d.Ino)
	}
	return res, ok
}

func (t tree) rmdir(o *Rmdir) (Result, syscall.Errno) {
	dir, errno := t.dir(o.Parent, o.Name)
	if errno != ok {
		return Result{}, errno
	}
	d, foreign := t.entryOf(dir, o.Name)
	switch {
	case d.Ino == 0 || foreign:
		return Result{}, syscall.ENOENT
	case d.Kind != KindDir:
		return Result{}, syscall.ENOTDIR
	}
	if errno := t.mayRemoveDir(d.Ino); errno != ok {
		return Result{}, errno
	}
	t.dropName(dir, o.Name, d)
	return Result{Ino: d.Ino, Removed: d.Ino}, ok
}

// mayRemoveDir reports whether a directory is empty, also of what a holder of its new names may have made.
func (t tree) mayRemoveDir(ino Ino) syscall.Errno {
	if !t.emptied(ino) {
		return syscall.ENOTEMPTY
	}
	return delegations{t.tx}.mayName(&Inode{Ino: ino})
}

// emptied reports whether a directory has no entry, after freeing reservations of dead leases in it. One that only
// holds live reservations, which its caller may not see, is not empty.
func (t tree) emptied(ino Ino) bool {
	dir := t.inode(ino)
	if dir == nil {
		return true
	}
	empty, seen := true, 0
	t.scan(key64(tableDirent, uint64(ino)), func(key, value []byte) bool {
		if seen++; seen > freePerSweep {
			empty = false
			return false
		}
		d, _ := t.entryOf(dir, string(key[9:]))
		empty = d.Ino == 0
		return empty
	})
	return empty
}
