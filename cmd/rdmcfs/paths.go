package main

import (
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

// insidePath turns a path as the user sees it into one from the root of the name space: "/mnt/shared/a/b" below
// the mount /mnt/shared is "a/b". The mount itself is "". Nothing is looked up in the mount, which may be stuck.
func insidePath(mounts []admin.Mount, name string) (string, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	if inside, ok := below(mounts, abs); ok {
		return inside, nil
	}
	if inside, ok := below(mounts, resolved(abs)); ok {
		return inside, nil
	}
	dirs := make([]string, len(mounts))
	for i, m := range mounts {
		dirs[i] = m.Dir
	}
	if len(dirs) == 0 {
		return "", withCode(exitcode.NotFound, "%s: this node has no mount; mount it, or name the node's --data", name)
	}
	return "", withCode(exitcode.NotFound, "%s lies below no mount of this node (%s)", name, strings.Join(dirs, ", "))
}

// resolved follows the symbolic links of a path as far as it is there: the names at its end may be those of a file that
// was removed, with its directories, or that is to be made.
func resolved(abs string) string {
	rest := ""
	for at := abs; ; at = filepath.Dir(at) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, rest)
		} else if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return abs
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
}

// below finds the innermost mount that holds abs.
func below(mounts []admin.Mount, abs string) (string, bool) {
	best, found := "", false
	for _, m := range mounts {
		if (abs == m.Dir || strings.HasPrefix(abs, strings.TrimSuffix(m.Dir, "/")+"/")) && len(m.Dir) >= len(best) {
			best, found = m.Dir, true
		}
	}
	if !found {
		return "", false
	}
	return strings.TrimPrefix(path.Clean("/"+strings.TrimPrefix(abs, best)), "/"), true
}

// inside is insidePath for the mounts of the running daemon.
func (a *app) inside(name string) (string, error) {
	st, err := a.status()
	if err != nil {
		return "", err
	}
	return insidePath(st.Mounts, name)
}

// asTyped names the file in the daemon's refusal of a request as the user named it. The daemon knows only the path from
// the root of the mounts.
func asTyped(name, inside string, err error) error {
	var refused *admin.Error
	if name == "" || !errors.As(err, &refused) {
		return err
	}
	rest, ok := strings.CutPrefix(refused.Message, "/"+inside)
	if !ok || rest != "" && rest[0] != ':' && rest[0] != ' ' {
		return err
	}
	shown := *refused
	shown.Message = name + rest
	return &shown
}
