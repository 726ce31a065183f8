package backup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/meta"
)

// Config says how a backup is restored.
type Config struct {
	Into   string   // an empty directory, of a mount
	Stores []string // content stores of nodes that do not run
	Files  []string // directories with copies of the files, with the same paths
	// Policy gives a directory, below Into, a policy.
	Policy func(path string, p meta.Policy) error
	// Missed hears of all that is not restored, and of why.
	Missed func(Missed) error
	// Tell hears how many inodes of the backup were looked at.
	Tell func(done, of uint64)
}

// Missed is something that was not restored.
type Missed struct {
	Path string `json:"path"`
	What string `json:"what"` // a word of the constants
	Why  string `json:"why"`
}

// What may be missed. A version is an earlier or a removed one: files are restored as they were last.
const (
	MissedBytes     = "bytes"
	MissedAttribute = "attribute"
	MissedPolicy    = "policy"
	MissedVersion   = "version"
)

// Result counts what was done.
type Result struct {
	Files       uint64 `json:"files"`
	Directories uint64 `json:"directories"`
	Others      uint64 `json:"others"` // symbolic links, devices, further names
	Bytes       int64  `json:"bytes"`
	Missed      int    `json:"missed"` // bytes, attributes and policies
	Versions    int    `json:"versions"`
}

// ErrNotEmpty is returned for a directory that has something in it.
var ErrNotEmpty = errors.New("the directory is not empty: a backup is restored into an empty one")

// restore is one restore under way.
type restore struct {
	Config
	ctx     context.Context
	db      *meta.DB
	sources *sources
	linked  map[meta.Ino]string // first names of files with several
	mu      sync.Mutex          // guards what follows, and calls of Missed and Tell
	done    uint64
	out     Result
}

// Restore makes what a backup has in a directory. An error of the directory's file system ends it.
func (b *Book) Restore(ctx context.Context, cfg Config) (Result, error) {
	list, err := os.ReadDir(cfg.Into)
	if err == nil && len(list) > 0 {
		err = fmt.Errorf("%s: %w", cfg.Into, ErrNotEmpty)
	}
	if err != nil {
		return Result{}, fmt.Errorf("backup: %w", err)
	}
	src, err := openSources(b.db, cfg)
	if err != nil {
		return Result{}, err
	}
	r := &restore{Config: cfg, ctx: ctx, db: b.db, sources: src, linked: map[meta.Ino]string{}}
	root, err := b.db.Inode(meta.RootIno)
	if err == nil {
		err = r.directory(root, cfg.Into, "/", meta.Policy{})
	}
	if err == nil {
		err = r.removedVersions()
	}
	return r.out, errors.Join(err, src.close())
}

func (r *restore) missed(path, what, format string, args ...any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if what == MissedVersion {
		r.out.Versions++
	} else {
		r.out.Missed++
	}
	return r.Missed(Missed{Path: path, What: what, Why: fmt.Sprintf(format, args...)})
}

// directory restores what is in a directory that is there, and then the directory's attributes: times come last.
func (r *restore) directory(i meta.Inode, at, path string, above meta.Policy) error {
	r.out.Directories++
	p, err := r.db.Policy(i.Policy)
	if err != nil {
		return fmt.Errorf("backup: policy of %s: %w", path, err)
	}
	if !samePolicy(p, above) {
		if err := r.Policy(at, p); err != nil {
			if err := r.missed(path, MissedPolicy, "%v", err); err != nil {
				return err
			}
		}
	}
	const page = 1000
	for after := ""; ; {
		list, err := r.db.ReadDir(i.Ino, after, page, meta.Lease{})
		if err != nil {
			return fmt.Errorf("backup: names of %s: %w", path, err)
		}
		if len(list) > 0 {
			after = list[len(list)-1].Name
		}
		if err := r.page(list, at, path, p); err != nil {
			return err
		}
		if len(list) < page {
			return r.attributes(i, target{path: at, fd: -1}, path)
		}
	}
}

// filesAtOnce is how many files are restored at the same time: each waits until all nodes have it.
const filesAtOnce = 16

// page restores what has these names: files with one name beside each other, then the rest in order.
func (r *restore) page(list []meta.Dirent, at, path string, above meta.Policy) error {
	var rest, single []meta.Dirent
	var files []meta.Inode // of single
	for _, d := range list {
		if !isName(d.Name) {
			return fmt.Errorf("backup: %s: %q can't be a name: the backup is not one of a sound state", path, d.Name)
		}
		i, err := r.db.Inode(d.Ino)
		if err != nil {
			return fmt.Errorf("backup: %s: %w", filepath.Join(path, d.Name), err)
		}
		if i.Kind == meta.KindFile && i.Nlink == 1 {
			single, files = append(single, d), append(files, i)
		} else {
			rest = append(rest, d)
		}
	}
	err := atOnce(len(files), func(n int) error {
		name := single[n].Name
		return r.inode(files[n], filepath.Join(at, name), filepath.Join(path, name))
	})
	if err != nil {
		return err
	}
	for _, d := range rest {
		if err := r.name(d, filepath.Join(at, d.Name), filepath.Join(path, d.Name), above); err != nil {
			return err
		}
	}
	return nil
}

// isName reports whether a text can be a name in a directory: a file that was made to look like a backup must not lead
// out of it.
func isName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00")
}

// atOnce calls a function with each number below n, filesAtOnce of them at the same time, until one fails.
func atOnce(n int, do func(n int) error) error {
	var taken atomic.Int64
	var failed atomic.Bool
	errs := make([]error, min(n, filesAtOnce))
	var work sync.WaitGroup
	for w := range errs {
		work.Go(func() {
			for i := taken.Add(1) - 1; i < int64(n) && !failed.Load(); i = taken.Add(1) - 1 {
				if errs[w] = do(int(i)); errs[w] != nil {
					failed.Store(true)
					return
				}
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// name restores what is no file, or has several names.
func (r *restore) name(d meta.Dirent, at, path string, above meta.Policy) error {
	i, err := r.db.Inode(d.Ino)
	if err != nil {
		return fmt.Errorf("backup: %s: %w", path, err)
	}
	if i.Kind == meta.KindDir {
		r.tell()
		if err := os.Mkdir(at, 0o700); err != nil {
			return fmt.Errorf("backup: %w", err)
		}
		return r.directory(i, at, path, above)
	}
	if first := r.linked[i.Ino]; first != "" {
		r.out.Others++
		return named(os.Link(first, at))
	}
	if err := r.inode(i, at, path); err != nil {
		return err
	}
	if _, err := os.Lstat(at); err == nil && i.Nlink > 1 {
		r.linked[i.Ino] = at
	}
	return nil
}

// tell counts an inode.
func (r *restore) tell() {
	r.mu.Lock()
	defer r.mu.Unlock()
	files, _ := r.db.StatFS()
	r.done++
	r.Tell(r.done, files)
}

// inode restores what is no directory, under its first name.
func (r *restore) inode(i meta.Inode, at, path string) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	r.tell()
	if i.Kind == meta.KindFile {
		return r.file(i, at, path)
	}
	if err := r.special(i, at); err != nil {
		return err
	}
	return r.attributes(i, target{path: at, fd: -1}, path)
}

func named(err error) error {
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

// special makes what is neither a directory nor a regular file.
func (r *restore) special(i meta.Inode, at string) error {
	r.out.Others++
	if i.Kind == meta.KindSymlink {
		return named(os.Symlink(i.Target, at))
	}
	types := map[meta.Kind]uint32{meta.KindFIFO: unix.S_IFIFO, meta.KindSocket: unix.S_IFSOCK,
		meta.KindChar: unix.S_IFCHR, meta.KindBlock: unix.S_IFBLK}
	if err := unix.Mknod(at, types[i.Kind]|0o600, int(i.Rdev)); err != nil {
		return fmt.Errorf("backup: make %s: %w", at, err)
	}
	return nil
}

// attributes restores owner, mode, extended attributes and times. What changes the owner drops rights: so it is first.
func (r *restore) attributes(i meta.Inode, to target, path string) error {
	failed := map[string]error{"owner": to.chown(int(i.UID), int(i.GID))}
	if i.Kind != meta.KindSymlink {
		failed["mode"] = to.chmod(i.Mode)
	}
	names, err := r.db.Xattrs(i.Ino)
	if err != nil {
		return fmt.Errorf("backup: extended attributes of %s: %w", path, err)
	}
	for _, name := range names {
		value, err := r.db.Xattr(i.Ino, name)
		if err == nil {
			err = to.setxattr(name, value)
		}
		failed[fmt.Sprintf("extended attribute %q", name)] = err
	}
	failed["times"] = to.times(i.Atime, i.Mtime)
	for _, what := range slices.Sorted(maps.Keys(failed)) {
		if failed[what] == nil {
			continue
		}
		if err := r.missed(path, MissedAttribute, "%s: %v", what, failed[what]); err != nil {
			return err
		}
	}
	return nil
}

// target is what gets attributes: an open file, so that they come with its bytes, or what is at a path.
type target struct {
	path string
	fd   int // -1: by the path
}

func (t target) chown(uid, gid int) error {
	if t.fd >= 0 {
		return unix.Fchown(t.fd, uid, gid)
	}
	return unix.Lchown(t.path, uid, gid)
}

func (t target) chmod(mode uint32) error {
	if t.fd >= 0 {
		return unix.Fchmod(t.fd, mode)
	}
	return unix.Chmod(t.path, mode)
}

func (t target) setxattr(name string, value []byte) error {
	if t.fd >= 0 {
		return unix.Fsetxattr(t.fd, name, value, 0)
	}
	return unix.Lsetxattr(t.path, name, value, 0)
}

func (t target) times(atime, mtime int64) error {
	times := []unix.Timespec{unix.NsecToTimespec(atime), unix.NsecToTimespec(mtime)}
	if t.fd >= 0 {
		return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", t.fd), times, 0)
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, t.path, times, unix.AT_SYMLINK_NOFOLLOW)
}

// samePolicy reports whether two policies say the same, whatever their numbers.
func samePolicy(a, b meta.Policy) bool {
	if a.Placement != b.Placement || a.Copies != b.Copies || a.MinCopies != b.MinCopies || a.AckLocal != b.AckLocal ||
		a.Retain != b.Retain || a.KeepRemoved != b.KeepRemoved || a.SendRate != b.SendRate || a.Priority != b.Priority {
		return false
	}
	if len(a.Labels) != len(b.Labels) {
		return false
	}
	for k, v := range a.Labels {
		if w, ok := b.Labels[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// removedMost bounds the versions without a file that are listed.
const removedMost = 1 << 16

// removedVersions lists what the backup knows of files that were gone.
func (r *restore) removedVersions() error {
	files, err := meta.Removals{DB: r.db}.Under("/", removedMost)
	if err != nil {
		return named(err)
	}
	for _, f := range files {
		if err := r.missed(f.Path, MissedVersion, "the file was removed at %s, and was kept",
			time.Unix(0, f.Removed).UTC().Format(time.RFC3339)); err != nil {
			return err
		}
	}
	kept, err := r.db.Kept(removedMost)
	if err != nil {
		return named(err)
	}
	for _, c := range kept {
		if _, err := r.db.Inode(c.Ino); !errors.Is(err, meta.ErrNotFound) {
			continue // with its file
		}
		if err := r.missed("content "+c.ID.String(), MissedVersion, "%s", c.Reason); err != nil {
			return err
		}
	}
	return nil
}
