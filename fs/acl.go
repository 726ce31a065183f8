package fs

import (
	"context"
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// POSIX access control lists, see acl(5). The kernel evaluates them. Two things are left to us: that they and the
// permission bits say the same, and that what is made in a directory gets its default list.
const (
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
)

// The form of the attributes, little endian: u32 version, entries of u16 tag, u16 permissions, u32 id.
const (
	aclVersion     = 2
	aclHeaderBytes = 4
	aclEntryBytes  = 8

	aclUserObj  = 0x01
	aclGroupObj = 0x04
	aclMask     = 0x10
	aclOther    = 0x20

	aclMinimal = 3 // entries: owner, group and others, which the permission bits say as well
)

// acl is a list in the form of its attribute.
type acl []byte

func (a acl) valid() bool {
	return len(a) >= aclHeaderBytes+aclMinimal*aclEntryBytes && (len(a)-aclHeaderBytes)%aclEntryBytes == 0 &&
		binary.LittleEndian.Uint32(a) == aclVersion && a.perm(aclUserObj) != nil && a.perm(aclGroupObj) != nil &&
		a.perm(aclOther) != nil
}

func (a acl) entries() int { return (len(a) - aclHeaderBytes) / aclEntryBytes }

// perm returns the place of the permissions of the only entry with a tag; nil if there is none.
func (a acl) perm(tag uint16) []byte {
	for e := a[aclHeaderBytes:]; len(e) >= aclEntryBytes; e = e[aclEntryBytes:] {
		if binary.LittleEndian.Uint16(e) == tag {
			return e[2:4]
		}
	}
	return nil
}

// class is the entry that a class of the permission bits stands for.
func (a acl) class(shift int) []byte {
	switch shift {
	case 6:
		return a.perm(aclUserObj)
	case 0:
		return a.perm(aclOther)
	}
	if mask := a.perm(aclMask); mask != nil {
		return mask
	}
	return a.perm(aclGroupObj)
}

var aclClasses = [...]int{6, 3, 0} // shifts of the permission bits

// mode is a mode with the permission bits that the list says.
func (a acl) mode(mode uint32) uint32 {
	mode &^= 0o777
	for _, shift := range aclClasses {
		mode |= uint32(binary.LittleEndian.Uint16(a.class(shift))&7) << shift
	}
	return mode
}

// changed is the list with the permission bits of a mode, as chmod does it.
func (a acl) changed(mode uint32) acl {
	out := slices.Clone(a)
	for _, shift := range aclClasses {
		binary.LittleEndian.PutUint16(out.class(shift), uint16(mode>>shift&7))
	}
	return out
}

// inherited returns what a default list makes of the mode that something is made with: its access list, and its mode.
func (a acl) inherited(mode uint32) (acl, uint32) {
	mode &= a.mode(mode)
	return a.changed(mode), mode
}

// chmodACL makes the access list of a node follow a change of its mode. It does so even without the option: other nodes
// may have it.
func (at *attributes) chmodACL(n *node, patch *meta.AttrPatch) {
	if patch.Mask&meta.AttrMode == 0 {
		return
	}
	if value, no := at.xattr(n, aclAccess); no == 0 && acl(value).valid() {
		patch.SetXattr = map[string][]byte{aclAccess: acl(value).changed(patch.Mode)}
	}
}

// setACL returns the change that setting an access list makes: the mode follows, and a list that says no more than the
// mode is dropped.
func (at *attributes) setACL(n *node, in *fuse.SetXAttrIn, a acl) (meta.AttrPatch, syscall.Errno) {
	if !a.valid() {
		return meta.AttrPatch{}, syscall.EINVAL
	}
	var now fuse.Attr
	at.fill(n, &now)
	mode := a.mode(now.Mode & 07777)
	if in.SetXAttrFlags&fuse.SETXATTR_ACL_KILL_SGID != 0 {
		mode &^= syscall.S_ISGID
	}
	patch := meta.AttrPatch{Mask: meta.AttrMode, Mode: mode}
	if a.entries() > aclMinimal {
		patch.SetXattr = map[string][]byte{aclAccess: slices.Clone(a)}
	} else if _, no := at.xattr(n, aclAccess); no == 0 {
		patch.DelXattr = []string{aclAccess}
	}
	return patch, 0
}

// inheritACL gives what is made in a directory its lists, and its mode. The caller's umask counts only where there is
// no default list.
func (at *attributes) inheritACL(dir meta.Ino, kind meta.Kind, mode, umask uint32) (meta.AttrPatch, uint32) {
	if !at.acl || kind == meta.KindSymlink {
		return meta.AttrPatch{}, mode
	}
	value, err := at.names.state().Xattr(dir, aclDefault)
	def := acl(value)
	if err != nil || !def.valid() {
		return meta.AttrPatch{}, mode &^ (umask & 0o777)
	}
	patch := meta.AttrPatch{SetXattr: map[string][]byte{}}
	access, mode := def.inherited(mode)
	if access.entries() > aclMinimal {
		patch.SetXattr[aclAccess] = access
	}
	if kind == meta.KindDir {
		patch.SetXattr[aclDefault] = slices.Clone(def)
	}
	return patch, mode
}

// giveACL gives a new directory or the like the lists that it inherits. Until then its group has no rights.
func (at *attributes) giveACL(
	ctx context.Context, rec meta.Inode, patch meta.AttrPatch, mode uint32,
) (meta.Inode, syscall.Errno) {
	if isEmpty(patch) {
		return rec, 0
	}
	patch.Mask, patch.Mode = meta.AttrMode, mode
	res, err := at.names.propose(ctx, &meta.SetAttr{Ino: rec.Ino, Patch: patch})
	if no := at.names.outcome("set access list", rec.Ino, res, err); no != 0 {
		return rec, no
	}
	return res.Inode, 0
}
