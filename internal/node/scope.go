package node

import (
	"errors"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// scope is the file or the directory that a check is about, with what is below it; the zero scope is everything. One
// goroutine uses it.
type scope struct {
	db    *meta.DB
	paths *paths
	top   meta.Ino // 0: everything
	path  string   // of top
	known map[meta.Ino]bool
}

// scopeOf finds what is at a path.
func scopeOf(db *meta.DB, ps *paths, path string) (*scope, error) {
	sc := &scope{db: db, paths: ps, known: map[meta.Ino]bool{}}
	if strings.Trim(path, "/") == "" {
		return sc, nil
	}
	at, clean, err := ps.lookup(path)
	if err != nil {
		return nil, err
	}
	switch at.Kind {
	case meta.KindFile, meta.KindDir:
	case meta.KindSymlink:
		return nil, admin.Errorf(admin.CodeInvalid, "%s is a symbolic link: name the file or directory that it leads to",
			clean)
	default:
		return nil, admin.Errorf(admin.CodeInvalid, "%s is no regular file and no directory", clean)
	}
	sc.top, sc.path = at.Ino, clean
	return sc, nil
}

func (sc *scope) everything() bool { return sc.top == 0 }

// has reports whether a content belongs to what is in the scope. A removed file belongs to where it was.
func (sc *scope) has(c meta.Content) (bool, error) {
	if sc.everything() {
		return true, nil
	}
	if c.State == meta.ContentRemoved {
		return below(sc.paths.ofContent(c), sc.path), nil
	}
	return sc.hasInode(c.Ino)
}

// hasInode reports whether an inode is in the scope. One that is not there is in no scope but that of everything.
func (sc *scope) hasInode(ino meta.Ino) (bool, error) {
	if sc.everything() {
		return true, nil
	}
	in, err := meta.Checks{DB: sc.db}.Below(ino, sc.top, sc.known)
	if errors.Is(err, meta.ErrNotFound) {
		return false, nil
	}
	return in, err
}
