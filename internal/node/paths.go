package node

import (
	"fmt"
	"path"
	"strings"
	"syscall"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// paths finds what a path of the name space names, and the path of what has one.
type paths struct {
	names meta.Reader       // with what is new on this node
	lease func() meta.Lease // this node's: it sees the names that it has reserved
}

const depthMax = 4096

// of is one path of an inode from the root of the name space.
func (ps *paths) of(ino meta.Ino) (string, error) {
	var parts []string
	for range depthMax {
		if ino == meta.RootIno {
			return "/" + strings.Join(parts, "/"), nil
		}
		rec, err := ps.names.Inode(ino)
		if err != nil {
			return "", err
		}
		parts = append([]string{rec.Name}, parts...)
		ino = rec.Parent
	}
	return "", fmt.Errorf("node: path of inode %d: more than %d directories deep", ino, depthMax)
}

// lookup finds an inode by its path from the root of the name space.
func (ps *paths) lookup(name string) (meta.Inode, string, error) {
	clean := path.Clean("/" + name)
	ino, err := ps.names.Inode(meta.RootIno)
	if err != nil {
		return ino, clean, err
	}
	for part := range strings.SplitSeq(strings.Trim(clean, "/"), "/") {
		if part == "" {
			continue
		}
		if ino, err = ps.names.Lookup(ino.Ino, part, ps.lease()); err != nil {
			return ino, clean, admin.Errorf(admin.CodeNotFound, "%s: no such file or directory", clean)
		}
	}
	return ino, clean, nil
}

// parent is the directory of a path that need not exist, and the last name.
func (ps *paths) parent(name string) (meta.Inode, string, error) {
	clean := path.Clean("/" + name)
	dir, base := path.Split(clean)
	if base == "" {
		return meta.Inode{}, "", admin.Errorf(admin.CodeInvalid, "%q names no file", name)
	}
	ino, _, err := ps.lookup(dir)
	if err == nil && ino.Kind != meta.KindDir {
		err = admin.Errorf(admin.CodeInvalid, "%s is not a directory", dir)
	}
	return ino, base, err
}

// ofStaged is where staged bytes belong: by the inode while it has a name, else the name that they were opened under,
// in the directory of then if that is still there.
func (ps *paths) ofStaged(u content.Unpublished) string {
	if p, err := ps.of(meta.Ino(u.Origin.Ino)); err == nil {
		return p
	}
	if dir, err := ps.of(meta.Ino(u.Origin.Parent)); err == nil && u.Origin.Name != "" {
		return path.Join(dir, u.Origin.Name)
	}
	return u.Origin.Name
}

// ofContent is where a content belongs, or its id where its file is gone.
func (ps *paths) ofContent(c meta.Content) string {
	if p, err := ps.of(c.Ino); err == nil {
		return p
	}
	if c.State == meta.ContentRemoved {
		return strings.TrimPrefix(c.Reason, meta.RemovedFrom)
	}
	return "content " + c.ID.String()
}

// refused says why the log did not bring a version back, under a path.
func (ps *paths) refused(errno syscall.Errno, as string) error {
	switch errno {
	case syscall.ENOENT:
		return admin.Errorf(admin.CodeNotFound, "the file is gone: name a path for the version with --as")
	case syscall.EEXIST:
		if _, _, err := ps.lookup(as); admin.CodeOf(err) == admin.CodeNotFound { // mounts here do not show it
			return admin.Errorf(admin.CodeExists, "a program on another node has created a file of that name and has not "+
				"closed it yet: wait for that, or give another path with --as")
		}
		return admin.Errorf(admin.CodeExists, "a file of that name exists: remove it, or give another path with --as")
	}
	return errno
}

// below reports whether p is dir or lies under it; "" and "/" hold everything.
func below(p, dir string) bool {
	dir = strings.TrimSuffix(path.Clean("/"+dir), "/")
	p = path.Clean("/" + p)
	return p == dir || strings.HasPrefix(p, dir+"/")
}
