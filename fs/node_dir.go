package fs

import (
	"context"
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
	"golang.org/x/sys/unix"
)

const (
	nameBytesMax   = 255
	targetBytesMax = 4095
)

// entry answers a lookup: it counts one reference of the kernel.
func (f *fileSystem) entry(rec meta.Inode, out *fuse.EntryOut) *node {
	n := f.nodes.looked(rec)
	f.fillEntry(n, out) // from now on a commit finds the node, and only now its record is read for good
	return n
}

// entryAhead answers a lookup with the node that was opened for it, also if others have superseded it since: the open
// that comes finds its handle there. openAhead has counted the reference of the kernel.
func (f *fileSystem) entryAhead(n *node, out *fuse.EntryOut) {
	f.fillEntry(n, out)
	if f.nodes.isDetached(n) {
		out.SetEntryTimeout(0)
	}
}

func (f *fileSystem) fillEntry(n *node, out *fuse.EntryOut) {
	out.NodeId = n.id
	out.Generation = uint64(n.generation)
	out.SetEntryTimeout(f.cache.entryTimeout)
	out.SetAttrTimeout(f.attrs.fill(n, &out.Attr))
}

// directory finds the inode number of a directory the kernel names.
func (f *fileSystem) directory(id uint64) (meta.Ino, syscall.Errno) {
	n := f.nodes.get(id)
	switch {
	case n == nil:
		return 0, syscall.ESTALE
	case n.kind != meta.KindDir:
		return 0, syscall.ENOTDIR
	}
	return n.ino(), 0
}

func checkName(name string) syscall.Errno {
	switch {
	case name == "":
		return syscall.EINVAL
	case len(name) > nameBytesMax:
		return syscall.ENAMETOOLONG
	}
	return 0
}

// Lookup answers FUSE_LOOKUP. That a name does not exist is cached too.
func (f *fileSystem) Lookup(
	cancel <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut,
) fuse.Status {
	if name == "." {
		return fuse.Status(f.lookupHandle(header.NodeId, out))
	}
	dir, no := f.directory(header.NodeId)
	if no == 0 {
		no = checkName(name)
	}
	if no != 0 {
		return fuse.Status(no)
	}
	rec, err := f.reserved.lookup(dir, name)
	if errors.Is(err, meta.ErrNotFound) {
		if name == ".." {
			return fuse.Status(syscall.ESTALE)
		}
		if f.cache.entryTimeout == 0 {
			return fuse.ENOENT
		}
		*out = fuse.EntryOut{}
		out.SetEntryTimeout(f.cache.entryTimeout)
		return fuse.OK
	}
	if err != nil {
		return fuse.Status(fail(f.log, "lookup", dir, err))
	}
	if n := f.nodes.known(rec.Ino); n != nil {
		f.files.awaitSettled(f.life.ctx, n)
	}
	ctx, stop := f.life.callContext(cancel, header.Pid)
	defer stop()
	again := func() (meta.Inode, error) { return f.reserved.lookup(dir, name) }
	if n := f.retries.openAhead(ctx, header.Pid, rec, again); n != nil {
		f.entryAhead(n, out)
	} else {
		f.entry(rec, out)
	}
	return fuse.OK
}

// Forget answers FUSE_FORGET.
func (f *fileSystem) Forget(id, count uint64) { f.nodes.forget(id, count) }

// creation proposes a new name. Directories with setgid give their group on, and the bit to directories; all give on
// their default access list, which a file gets with its first publish, as attr says.
func (f *fileSystem) creation(cancel <-chan struct{}, header *fuse.InHeader, op *meta.Create, umask uint32) (
	rec meta.Inode, attr meta.AttrPatch, no syscall.Errno) {
	dir, no := f.directory(header.NodeId)
	if no == 0 {
		no = checkName(op.Name)
	}
	if no != 0 {
		return rec, attr, no
	}
	parent, err := f.names.state().Inode(dir)
	if err != nil {
		return rec, attr, fail(f.log, "create", dir, err)
	}
	op.Parent = dir
	op.Mode &= 07777
	op.Cred = meta.Cred{UID: header.Uid, GID: header.Gid}
	if parent.Mode&syscall.S_ISGID != 0 {
		op.Cred.GID = parent.GID
		if op.Kind == meta.KindDir {
			op.Mode |= syscall.S_ISGID
		}
	}
	attr, op.Mode = f.attrs.inheritACL(dir, op.Kind, op.Mode, umask)
	mode := op.Mode
	if op.Kind != meta.KindFile && !isEmpty(attr) {
		op.Mode &^= 0o070 // until it has its list
	}
	ctx, stop := f.life.callContext(cancel, header.Pid)
	defer stop()
	defer f.names.ownName(dir, op.Name)()
	put := f.names.propose
	if op.Kind == meta.KindFile {
		put = f.reserved.reserve
	}
	res, err := put(ctx, op)
	if no := f.names.outcome("create "+op.Name, dir, res, err); no != 0 {
		return rec, attr, no
	}
	if res.Existed {
		return res.Inode, attr, syscall.ESTALE // the kernel looks it up and checks the permissions
	}
	if rec = res.Inode; op.Kind == meta.KindFile {
		return rec, attr, 0 // it shows when it has a version
	}
	rec, no = f.attrs.giveACL(ctx, rec, attr, mode)
	f.names.showNames(ctx)
	return rec, attr, no
}

// creating tells the other mounts that a file is being created, until the returned function is called: it is not open
// yet when its name shows.
func (f *fileSystem) creating(dir uint64, name string) (end func()) {
	n := f.nodes.get(dir)
	if n == nil {
		return func() {}
	}
	return f.siblings.creating.begin(ownKey{ino: n.ino(), name: name})
}

// Mkdir answers FUSE_MKDIR.
func (f *fileSystem) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	op := &meta.Create{Name: name, Kind: meta.KindDir, Mode: in.Mode, Excl: true}
	rec, _, no := f.creation(cancel, &in.InHeader, op, in.Umask)
	if no == 0 {
		f.entry(rec, out)
	}
	return fuse.Status(no)
}

// Symlink answers FUSE_SYMLINK.
func (f *fileSystem) Symlink(
	cancel <-chan struct{}, header *fuse.InHeader, target, name string, out *fuse.EntryOut,
) fuse.Status {
	if len(target) > targetBytesMax {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	op := &meta.Create{Name: name, Kind: meta.KindSymlink, Mode: 0o777, Target: target, Excl: true}
	rec, _, no := f.creation(cancel, header, op, 0)
	if no == 0 {
		f.entry(rec, out)
	}
	return fuse.Status(no)
}

// Readlink answers FUSE_READLINK.
func (f *fileSystem) Readlink(_ <-chan struct{}, header *fuse.InHeader) ([]byte, fuse.Status) {
	n := f.nodes.get(header.NodeId)
	switch {
	case n == nil:
		return nil, fuse.Status(syscall.ESTALE)
	case n.kind != meta.KindSymlink:
		return nil, fuse.EINVAL
	}
	return []byte(f.nodes.record(n).Target), fuse.OK
}

var kindOfType = map[uint32]meta.Kind{
	syscall.S_IFREG: meta.KindFile, syscall.S_IFIFO: meta.KindFIFO, syscall.S_IFSOCK: meta.KindSocket,
	syscall.S_IFCHR: meta.KindChar, syscall.S_IFBLK: meta.KindBlock, 0: meta.KindFile,
}

// Mknod answers FUSE_MKNOD. A regular file is published empty: no FLUSH would follow.
func (f *fileSystem) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	kind, ok := kindOfType[in.Mode&syscall.S_IFMT]
	if !ok {
		return fuse.EINVAL
	}
	defer f.creating(in.NodeId, name)()
	op := &meta.Create{Name: name, Kind: kind, Mode: in.Mode, Rdev: in.Rdev, Excl: true}
	rec, attr, no := f.creation(cancel, &in.InHeader, op, in.Umask)
	if no != 0 {
		return fuse.Status(no)
	}
	if kind == meta.KindFile {
		if no := f.files.publishEmpty(cancel, in.Pid, rec, attr); no != 0 {
			return fuse.Status(no)
		}
		rec, _ = f.names.refresh(rec)
	}
	f.entry(rec, out)
	return fuse.OK
}

// Unlink answers FUSE_UNLINK.
func (f *fileSystem) Unlink(cancel <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	dir, no := f.directory(header.NodeId)
	if no != 0 {
		return fuse.Status(no)
	}
	return fuse.Status(f.remove(cancel, header, dir, name, &meta.Unlink{Parent: dir, Name: name}))
}

// Rmdir answers FUSE_RMDIR.
func (f *fileSystem) Rmdir(cancel <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	dir, no := f.directory(header.NodeId)
	if no != 0 {
		return fuse.Status(no)
	}
	return fuse.Status(f.remove(cancel, header, dir, name, &meta.Rmdir{Parent: dir, Name: name}))
}

func (f *fileSystem) remove(
	cancel <-chan struct{}, header *fuse.InHeader, dir meta.Ino, name string, op meta.Op,
) syscall.Errno {
	if no := checkName(name); no != 0 {
		return no
	}
	ctx, stop := f.life.callContext(cancel, header.Pid)
	defer stop()
	keys := []ownKey{{ino: dir}, {ino: dir, name: name}}
	if rec, err := f.reserved.lookup(dir, name); err == nil {
		keys = append(keys, ownKey{ino: rec.Ino})
	}
	defer f.names.own.begin(keys...)()
	res, err := f.names.propose(ctx, op)
	no := f.names.outcome("remove "+name, dir, res, err)
	if no == 0 {
		f.reserved.markRemoved(res.Removed)
		f.names.showNames(ctx)
	}
	return no
}

// Rename answers FUSE_RENAME and FUSE_RENAME2. A staged file is published first, so that no name is ever without bytes.
// If others are still writing it, and the process has no part in that, then only the name changes: the log answers
// EBUSY if the file has no version and something else would have to make room for it. Link does the same.
func (f *fileSystem) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	from, no := f.directory(in.NodeId)
	if no != 0 {
		return fuse.Status(no)
	}
	to, no := f.directory(in.Newdir)
	if no == 0 {
		no = checkName(newName)
	}
	if in.Flags&^uint32(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE|unix.RENAME_WHITEOUT) != 0 {
		no = syscall.EINVAL
	}
	if no != 0 {
		return fuse.Status(no)
	}
	ctx, stop := f.life.callContext(cancel, in.Pid)
	defer stop()
	if _, err := f.names.cluster.Settle(ctx); err != nil {
		return fuse.Status(fail(f.log, "rename "+oldName, from, err))
	}
	names := []ownKey{{ino: from, name: oldName}, {ino: to, name: newName}}
	keys := []ownKey{{ino: from}, {ino: to}, names[0], names[1]}
	for i, at := range names {
		rec, err := f.reserved.lookup(at.ino, at.name)
		if err != nil {
			continue
		}
		keys = append(keys, ownKey{ino: rec.Ino})
		if i == 0 || in.Flags&unix.RENAME_EXCHANGE != 0 {
			if no := f.publishForName(ctx, cancel, in.Pid, rec.Ino); no != 0 {
				return fuse.Status(no)
			}
		}
	}
	defer f.names.own.begin(keys...)()
	op := &meta.Rename{OldParent: from, OldName: oldName, NewParent: to, NewName: newName, Flags: in.Flags}
	if in.Flags&unix.RENAME_WHITEOUT != 0 {
		op.Cred = meta.Cred{UID: in.Uid, GID: in.Gid}
	}
	res, err := f.names.propose(ctx, op)
	no = f.names.outcome("rename "+oldName, from, res, err)
	if no == 0 {
		f.siblings.renamed(res.Inode)
		f.reserved.markRemoved(res.Removed)
		f.names.showNames(ctx)
	}
	return fuse.Status(no)
}

// publishForName publishes what is staged of a file before its name changes. ENOENT: it has no version, and nobody has
// it open. Its name is about to be given back, since its program got an error.
func (f *fileSystem) publishForName(
	ctx context.Context, cancel <-chan struct{}, pid uint32, ino meta.Ino,
) syscall.Errno {
	if no := f.files.publishStaged(ctx, cancel, pid, ino); no != 0 {
		return no
	}
	rec, err := f.names.state().Inode(ino)
	if err != nil || rec.Kind != meta.KindFile || rec.Version != 0 {
		return 0
	}
	if f.siblings.creating.has(ownKey{ino: rec.Parent, name: rec.Name}) || f.siblings.uses(ino, nil) {
		return 0
	}
	return syscall.ENOENT
}

// Link answers FUSE_LINK.
func (f *fileSystem) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	dir, no := f.directory(in.NodeId)
	if no == 0 {
		no = checkName(name)
	}
	if no != 0 {
		return fuse.Status(no)
	}
	n := f.nodes.pin(in.Oldnodeid)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	defer f.nodes.unpin(n)
	ctx, stop := f.life.callContext(cancel, in.Pid)
	defer stop()
	if l := f.files.tmpOf(n); l != nil {
		rec, no := f.publisher.linkTmp(ctx, l, dir, name)
		if no == 0 {
			f.entry(rec, out)
		}
		return fuse.Status(no)
	}
	if no := f.publishForName(ctx, cancel, in.Pid, n.ino()); no != 0 {
		return fuse.Status(no)
	}
	defer f.names.own.begin(ownKey{ino: n.ino()}, ownKey{ino: dir}, ownKey{ino: dir, name: name})()
	res, err := f.names.propose(ctx, &meta.Link{Ino: n.ino(), Parent: dir, Name: name})
	if no := f.names.outcome("link "+name, n.ino(), res, err); no != 0 {
		return fuse.Status(no)
	}
	f.entry(res.Inode, out)
	f.names.showNames(ctx)
	return fuse.OK
}
