package fs

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/meta"
)

// Limits of xattr(7).
const (
	xattrNameMax  = 255
	xattrValueMax = 64 << 10
)

// xattrSpaces are the namespaces of xattr(7) that are kept as they are.
var xattrSpaces = [...]string{"user.", "security.", "trusted."}

// xattrSpace reports whether attributes of that name can be stored here.
func (at *attributes) xattrSpace(name string) bool {
	for _, prefix := range xattrSpaces {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return at.acl && (name == aclAccess || name == aclDefault)
}

// pendingXattrs is what rides in publishes of a node.
func (at *attributes) pendingXattrs(n *node) meta.AttrPatch {
	at.nodes.mu.Lock()
	l := n.live
	at.nodes.mu.Unlock()
	if l == nil {
		return meta.AttrPatch{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.attrs.shown()
}

// xattr reads one attribute.
func (at *attributes) xattr(n *node, name string) ([]byte, syscall.Errno) {
	p := at.pendingXattrs(n)
	if value, ok := p.SetXattr[name]; ok {
		return value, 0
	}
	if slices.Contains(p.DelXattr, name) {
		return nil, syscall.ENODATA
	}
	value, err := at.names.state().Xattr(n.ino(), name)
	if errors.Is(err, meta.ErrNotFound) {
		return nil, syscall.ENODATA
	}
	return value, fail(at.log, "read attribute", n.ino(), err)
}

// GetXAttr answers FUSE_GETXATTR.
func (f *fileSystem) GetXAttr(
	_ <-chan struct{}, header *fuse.InHeader, name string, dest []byte,
) (uint32, fuse.Status) {
	n := f.nodes.get(header.NodeId)
	if n == nil {
		return 0, fuse.Status(syscall.ESTALE)
	}
	if !f.attrs.xattrSpace(name) {
		return 0, fuse.Status(syscall.EOPNOTSUPP)
	}
	value, no := f.attrs.xattr(n, name)
	if no != 0 {
		return 0, fuse.Status(no)
	}
	return fillXattr(dest, value)
}

func fillXattr(dest, value []byte) (uint32, fuse.Status) {
	if len(dest) < len(value) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dest, value)), fuse.OK
}

// xattrNames are the names of all attributes of a node once p is in the log.
func (at *attributes) xattrNames(n *node, p meta.AttrPatch) (map[string]bool, syscall.Errno) {
	list, err := at.names.state().Xattrs(n.ino())
	if err != nil && !errors.Is(err, meta.ErrNotFound) {
		return nil, fail(at.log, "list attributes", n.ino(), err)
	}
	all := map[string]bool{}
	for _, name := range list {
		all[name] = true
	}
	for name := range p.SetXattr {
		all[name] = true
	}
	for _, name := range p.DelXattr {
		delete(all, name)
	}
	return all, 0
}

// xattrsFit is ENOSPC if a live file would have more attributes with a patch than the log takes: it would refuse the
// publish that they ride in.
func (at *attributes) xattrsFit(l *live, patch meta.AttrPatch) syscall.Errno {
	l.mu.Lock()
	waiting := l.attrs.shown()
	l.mu.Unlock()
	more := mergePatch(waiting, patch)
	more.DelXattr = nil // the log takes new ones first
	all, no := at.xattrNames(l.node, more)
	if no == 0 && len(all) > meta.XattrsMax {
		return syscall.ENOSPC
	}
	return no
}

// ListXAttr answers FUSE_LISTXATTR.
func (f *fileSystem) ListXAttr(_ <-chan struct{}, header *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	n := f.nodes.get(header.NodeId)
	if n == nil {
		return 0, fuse.Status(syscall.ESTALE)
	}
	p := f.attrs.pendingXattrs(n) // first: what does not wait any more is in the log
	all, no := f.attrs.xattrNames(n, p)
	if no != 0 {
		return 0, fuse.Status(no)
	}
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(name, "trusted.") && header.Uid != 0 {
			continue
		}
		out = append(append(out, name...), 0)
	}
	return fillXattr(dest, out)
}

// SetXAttr answers FUSE_SETXATTR.
func (f *fileSystem) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, data []byte) fuse.Status {
	switch {
	case !f.attrs.xattrSpace(name):
		return fuse.Status(syscall.EOPNOTSUPP)
	case slices.Contains(xattrSpaces[:], name):
		return fuse.EINVAL
	case len(name) > xattrNameMax:
		return fuse.ERANGE
	case len(data) > xattrValueMax:
		return fuse.Status(syscall.E2BIG)
	}
	patch := meta.AttrPatch{SetXattr: map[string][]byte{name: slices.Clone(data)}}
	if name == aclAccess {
		n := f.nodes.get(in.NodeId)
		if n == nil {
			return fuse.Status(syscall.ESTALE)
		}
		var no syscall.Errno
		if patch, no = f.attrs.setACL(n, in, data); no != 0 {
			return fuse.Status(no)
		}
	}
	return f.changeXattr(cancel, &in.InHeader, name, in.Flags, patch)
}

// RemoveXAttr answers FUSE_REMOVEXATTR.
func (f *fileSystem) RemoveXAttr(cancel <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	const replace = 2 // XATTR_REPLACE: it has to be there
	if !f.attrs.xattrSpace(name) {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	return f.changeXattr(cancel, header, name, replace, meta.AttrPatch{DelXattr: []string{name}})
}

// changeXattr checks the flags of setxattr(2) against what is seen here and changes an attribute.
func (f *fileSystem) changeXattr(
	cancel <-chan struct{}, header *fuse.InHeader, name string, flags uint32, patch meta.AttrPatch,
) fuse.Status {
	const create, replace = 1, 2
	n := f.nodes.pin(header.NodeId)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	defer f.nodes.unpin(n)
	ctx, stop := f.life.callContext(cancel, header.Pid)
	defer stop()
	if flags&(create|replace) != 0 {
		_, no := f.attrs.xattr(n, name)
		switch {
		case no == 0 && flags&create != 0:
			return fuse.Status(syscall.EEXIST)
		case no != 0 && flags&replace != 0:
			return fuse.Status(no)
		}
	}
	if patch.DelXattr != nil {
		flags = 0
	}
	return fuse.Status(f.attrs.change(ctx, n, patch, newTimes{}, flags))
}
