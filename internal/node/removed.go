package node

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// removedID is how the ids of removed files begin that are kept. The rest is the log index of the removal, in hex.
const removedID = "removed-"

// removedFiles answers the command line about removed files that are kept.
type removedFiles struct {
	db       *meta.DB
	paths    *paths
	proposer *proposer
}

func (r removedFiles) kept() meta.Removals { return meta.Removals{DB: r.db} }

// list is what was removed at a path and below it, the last first.
func (r removedFiles) list(under string) ([]admin.Version, error) {
	files, err := r.kept().Under(path.Clean("/"+under), versionsMost)
	if err != nil {
		return nil, err
	}
	out := make([]admin.Version, 0, len(files))
	for _, f := range files {
		out = append(out, r.version(f))
	}
	return out, nil
}

func (r removedFiles) version(f meta.RemovedFile) admin.Version {
	out := admin.Version{
		Path: f.Path, Version: f.Inode.Version, Content: fmt.Sprintf("%s%x", removedID, f.Index), SizeBytes: f.Inode.Size,
		Modified: time.Unix(0, f.Inode.Mtime), Index: f.Index, Writer: uint32(f.Inode.Content.Node),
		State: contentWords[meta.ContentRemoved], Removed: time.Unix(0, f.Removed), Remover: uint32(f.Node),
		Expires: time.Unix(0, f.Expires),
	}
	if rec, err := r.db.Node(f.Node); err == nil {
		out.RemoverName = rec.Name
	}
	return out
}

// find finds the removed file that a request names, if it names one. A path stands for the file that was removed last
// there.
func (r removedFiles) find(req admin.RestoreRequest) (f meta.RemovedFile, named bool, err error) {
	hex, is := strings.CutPrefix(req.Content, removedID)
	switch {
	case is:
		index, err := strconv.ParseUint(hex, 16, 64)
		if err != nil {
			return f, true, admin.Errorf(admin.CodeInvalid, "%q is no id of a removed file", req.Content)
		}
		f, err = r.kept().At(index)
		if errors.Is(err, meta.ErrNotFound) {
			err = notKept(req.Content)
		}
		return f, true, err
	case req.Content != "":
		return r.byContent(req)
	case !req.Removed:
		return f, false, nil
	}
	f, err = r.byPath(path.Clean("/"+req.Path), req.Version)
	return f, true, err
}

// byContent finds the removed file of a content, if it is one of a removed file.
func (r removedFiles) byContent(req admin.RestoreRequest) (f meta.RemovedFile, named bool, err error) {
	id, perr := meta.ParseContentID(req.Content)
	if perr == nil {
		if c, err := r.db.Content(id); err == nil && c.State == meta.ContentRemoved {
			files, err := r.kept().Under("/", meta.RemovedMax)
			for _, f := range files {
				if f.Inode.Content == id {
					return f, true, nil
				}
			}
			return f, true, errors.Join(err, notKept(req.Content))
		}
	}
	if req.Removed {
		return f, true, notKept(req.Content)
	}
	return f, false, nil
}

func (r removedFiles) byPath(name string, version uint64) (meta.RemovedFile, error) {
	files, err := r.kept().Under(name, meta.RemovedMax)
	if err != nil {
		return meta.RemovedFile{}, err
	}
	for _, f := range files {
		if f.Path == name && (version == 0 || version == f.Inode.Version) {
			return f, nil
		}
	}
	return meta.RemovedFile{}, notKept(name)
}

func notKept(name string) error {
	return admin.Errorf(admin.CodeNotFound, "%s: no such removed file is kept: see 'rdmcfs versions --removed'", name)
}

// restore brings a removed file back, or gives it up.
func (r removedFiles) restore(
	ctx context.Context, f meta.RemovedFile, req admin.RestoreRequest,
) (admin.Version, error) {
	op, as := &meta.Undelete{Removed: f.Index, Drop: req.Drop}, path.Clean("/"+orDefault(req.As, f.Path))
	if !req.Drop {
		dir, name, err := r.paths.parent(as)
		if admin.CodeOf(err) == admin.CodeNotFound {
			err = r.refused(syscall.ENOENT, as)
		}
		if err != nil {
			return admin.Version{}, err
		}
		op.Parent, op.Name = dir.Ino, name
	}
	res, err := r.proposer.request(ctx, op)
	if err == nil && res.Errno != 0 {
		err = r.refused(res.Errno, as)
	}
	if err != nil {
		return admin.Version{}, adminError("restore", err)
	}
	out := r.version(f)
	if req.Drop {
		out.State = "dropped"
		return out, nil
	}
	return admin.Version{Path: as, Version: res.Version, Content: res.Inode.Content.String(), SizeBytes: res.Inode.Size,
		Modified: out.Modified, Index: res.Index, Writer: out.Writer, State: contentWords[meta.ContentCurrent]}, nil
}

// refused says why the log did not bring a file back under a path.
func (r removedFiles) refused(errno syscall.Errno, as string) error {
	switch errno {
	case syscall.ENODATA:
		return admin.Errorf(admin.CodeNotFound, "the file is not kept any more")
	case syscall.ENOENT:
		return admin.Errorf(admin.CodeNotFound, "%s: its directory is gone: make it, or give another path with --as", as)
	case syscall.EEXIST:
		return r.paths.refused(errno, as)
	case syscall.EIO:
		return fmt.Errorf("the state has no record of the file's bytes any more: only --drop is left: %w", errno)
	}
	return errno
}

// removedWarning says that soon removed files may go before their time.
func removedWarning(st admin.Status) string {
	if st.RemovedKept*5 < st.RemovedMost*4 {
		return ""
	}
	return fmt.Sprintf("%d removed files are kept, of at most %d: if there are more, those that expire first go before "+
		"their time; keep them for a shorter time (policy --keep-removed), or drop some", st.RemovedKept, st.RemovedMost)
}

// removedLook remembers the bytes of all removed files: a look at them is good for drainLookShare times as long as it
// took.
type removedLook struct {
	mu    sync.Mutex
	bytes uint64
	next  time.Time
}

func (l *removedLook) of(db *meta.DB) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if began := time.Now(); !began.Before(l.next) {
		bytes, err := meta.Removals{DB: db}.Bytes()
		if err != nil {
			return float64(l.bytes)
		}
		now := time.Now()
		l.bytes, l.next = bytes, now.Add(drainLookShare*now.Sub(began))
	}
	return float64(l.bytes)
}
