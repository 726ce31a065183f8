package meta

import (
	"maps"
	"slices"
	"syscall"
)

// Limits of extended attributes, as Linux has them.
const (
	XattrNameMax  = 255
	XattrValueMax = 64 << 10
	// XattrsMax is how many an inode can have.
	XattrsMax = 1024
)

// Flags of setxattr.
const (
	XattrCreate  = 1
	XattrReplace = 2
)

// attributes is the part of apply that changes what an inode has besides names and bytes.
type attributes struct{ *tx }

func (t attributes) setAttr(o *SetAttr) (Result, syscall.Errno) {
	i := t.inode(o.Ino)
	if i == nil {
		return Result{}, syscall.ENOENT
	}
	if o.XattrFlags > XattrReplace {
		return Result{}, syscall.EINVAL
	}
	if o.Patch.Mask&(AttrKillPriv|AttrUID|AttrGID) != 0 {
		t.dropCapability(i)
	}
	if errno := t.patchXattrs(i, &o.Patch, o.XattrFlags, true); errno != ok {
		return Result{}, errno
	}
	t.patch(i, &o.Patch)
	t.saveInode(i)
	t.emit(Event{Kind: EventInode, Ino: i.Ino})
	return Result{Ino: i.Ino, Inode: *i}, ok
}

// patch applies attributes to an inode, which the caller stores.
func (t attributes) patch(i *Inode, a *AttrPatch) {
	if a.Mask&AttrKillPriv != 0 {
		i.Mode &^= setuid
		if i.Mode&groupExec != 0 {
			i.Mode &^= setgid
		}
	}
	if a.Mask&AttrMode != 0 {
		i.Mode = a.Mode & modeBits
	}
	if a.Mask&AttrUID != 0 {
		i.UID = a.UID
	}
	if a.Mask&AttrGID != 0 {
		i.GID = a.GID
	}
	if a.Mask&AttrAtime != 0 {
		i.Atime = a.Atime
	}
	if a.Mask&AttrMtime != 0 {
		i.Mtime = a.Mtime
	}
	i.Ctime = t.now
	if a.Mask&AttrCtime != 0 {
		i.Ctime = a.Ctime
	}
}

// patchXattrs sets and deletes extended attributes. Deleting a missing one is an error only when strict.
func (t attributes) patchXattrs(i *Inode, a *AttrPatch, flags uint32, strict bool) syscall.Errno {
	for _, name := range slices.Sorted(maps.Keys(a.SetXattr)) {
		if errno := t.setXattr(i, name, a.SetXattr[name], flags); errno != ok {
			return errno
		}
	}
	for _, name := range a.DelXattr {
		key := keyName(tableXattr, i.Ino, name)
		if len(name) > XattrNameMax {
			return syscall.ERANGE
		}
		if t.get(key) == nil {
			if strict {
				return syscall.ENODATA
			}
			continue
		}
		t.del(key)
		i.Xattrs--
	}
	return ok
}

// capabilityXattr holds what a program may do beyond its user's rights: given to certain bytes and a certain owner.
const capabilityXattr = "security.capability"

// dropCapability takes that away from a file whose bytes or owner change, as Linux does. The caller stores the inode.
func (t attributes) dropCapability(i *Inode) {
	if i.Kind != KindFile || i.Xattrs == 0 {
		return
	}
	if key := keyName(tableXattr, i.Ino, capabilityXattr); t.get(key) != nil {
		t.del(key)
		i.Xattrs--
	}
}

func (t attributes) setXattr(i *Inode, name string, value []byte, flags uint32) syscall.Errno {
	if name == "" || len(name) > XattrNameMax {
		return syscall.ERANGE
	}
	if len(value) > XattrValueMax {
		return syscall.E2BIG
	}
	key := keyName(tableXattr, i.Ino, name)
	exists := t.get(key) != nil
	switch {
	case exists && flags == XattrCreate:
		return syscall.EEXIST
	case !exists && flags == XattrReplace:
		return syscall.ENODATA
	case !exists && i.Xattrs >= XattrsMax:
		return syscall.ENOSPC
	}
	if !exists {
		i.Xattrs++
	}
	t.set(key, rawValue(value))
	return ok
}

func (t attributes) setPolicy(o *SetPolicy) (Result, syscall.Errno) {
	var id PolicyID
	if o.Policy != nil {
		var errno syscall.Errno
		if id, errno = t.internPolicy(*o.Policy); errno != ok {
			return Result{}, errno
		}
	}
	if o.Dir == 0 {
		if id == 0 {
			return Result{}, syscall.EINVAL
		}
		t.head.DefaultPolicy = id
		t.own().fallback = id
		t.head.View++
		return Result{}, ok
	}
	i := t.inode(o.Dir)
	switch {
	case i == nil:
		return Result{}, syscall.ENOENT
	case i.Kind != KindDir && i.Kind != KindFile:
		return Result{}, syscall.ENOTDIR
	case o.Policy == nil && i.Ino != RootIno:
		if parent := t.inode(i.Parent); parent != nil {
			id = parent.Policy
		}
	}
	if id == 0 && i.Kind == KindFile {
		id = t.cl.fallback
	}
	i.Policy, i.Ctime = id, t.now
	t.saveInode(i)
	t.emit(Event{Kind: EventInode, Ino: i.Ino})
	return Result{Ino: i.Ino, Inode: *i}, ok
}

// internPolicy finds or makes the number of a policy. Policies are never changed: see placement.go.
func (t attributes) internPolicy(p Policy) (PolicyID, syscall.Errno) {
	if p.Placement > PlaceLabels || p.Placement == PlaceCopies && (p.Copies == 0 || p.Copies > nodesMax) ||
		p.Retain > retainMax || p.KeepRemoved > KeepRemovedMax || p.MinCopies > minCopiesMax || !labelsFit(p.Labels) ||
		p.SendRate != 0 && p.SendRate < SendRateMin || p.Priority > PriorityHigh {
		return 0, syscall.EINVAL
	}
	for id := PolicyID(1); id <= t.head.LastPolicy; id++ {
		if have := t.cl.policies[id]; have != nil && samePolicy(*have, p) {
			return id, ok
		}
	}
	if t.head.LastPolicy >= policiesMax {
		return 0, syscall.ENOSPC
	}
	t.head.LastPolicy++
	p.ID = t.head.LastPolicy
	p.Labels = maps.Clone(p.Labels)
	t.own().policies[p.ID] = &p
	t.save(key32(tablePolicy, uint32(p.ID)), &p)
	t.head.HasCopies = t.head.HasCopies || p.Placement == PlaceCopies
	return p.ID, ok
}
