package fs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// followPair is two nodes, of which the second follows.
func followPair(t *testing.T) (c *fstest.Cluster, a, b string) {
	t.Helper()
	c = fstest.New(t, 2)
	return c, c.Node(1).Mount(t, nil), c.Node(2).Mount(t, func(o *fs.Options) { o.Follow = true })
}

// needWholeReads skips a test before Linux 6.6, where files that are followed are read by the page cache: page by page,
// and not while another read of the page hangs.
func needWholeReads(t *testing.T) {
	t.Helper()
	var u unix.Utsname
	must(t, unix.Uname(&u))
	var major, minor int
	if n, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); n != 2 {
		t.Fatal(err)
	}
	if major < 6 || major == 6 && minor < 6 {
		t.Skip("needs Linux 6.6")
	}
}

// shows is nil if an open file has these bytes and this size.
func shows(f *os.File, want []byte) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
	if err != nil || !bytes.Equal(got, want) || st.Size() != int64(len(want)) {
		return fmt.Errorf("%d bytes, %v, fstat says %d; want %d; first difference at %d", len(got), err, st.Size(),
			len(want), firstDiff(got, want))
	}
	return nil
}

// eventuallyShows first waits for what reads give: a stat asks which version is the newest.
func eventuallyShows(t *testing.T, f *os.File, want []byte) {
	t.Helper()
	eventually(t, func() error {
		got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
		if err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("%d bytes, %v, want %d; first difference at %d", len(got), err, len(want), firstDiff(got, want))
		}
		return nil
	})
	eventually(t, func() error { return shows(f, want) })
}

// An open file shows each new version: longer, shorter, empty, in the log and in the store. An open after the commit
// shows it at once.
func TestFollowShowsEachVersion(t *testing.T) {
	_, a, b := followPair(t)
	write(t, filepath.Join(a, "f"), []byte("first"))
	f := openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
	must(t, shows(f, []byte("first")))
	for i, size := range []int{100, 9000, 50, 0, 200_000, 4096, 3 << 20, 1 << 20, 1, 8192} {
		want := pattern(uint64(i), size)
		write(t, filepath.Join(a, "f"), want)
		wantBytes(t, filepath.Join(b, "f"), want)
		st, err := os.Stat(filepath.Join(b, "f"))
		if err != nil || st.Size() != int64(size) {
			t.Errorf("stat after a commit of %d bytes: %v %v", size, st, err)
		}
		eventuallyShows(t, f, want)
	}
}

func TestFollowIsReadOnly(t *testing.T) {
	_, a, b := followPair(t)
	write(t, filepath.Join(a, "f"), []byte("bytes"))
	changesNothing(t, b)
	var rw fs.Flags
	rw.Add("rw")
	must(t, fs.Remount(b, rw))
	changesNothing(t, b)
	wantBytes(t, filepath.Join(a, "f"), []byte("bytes"))
}

// changesNothing holds that no change to the file f of a mount, or beside it, is let through.
func changesNothing(t *testing.T, mnt string) {
	t.Helper()
	f, other := filepath.Join(mnt, "f"), filepath.Join(mnt, "new")
	_, open := os.OpenFile(f, os.O_RDWR, 0)
	for what, err := range map[string]error{
		"write": open, "create": os.WriteFile(other, nil, 0o644), "remove": os.Remove(f), "truncate": os.Truncate(f, 0),
		"mkdir": os.Mkdir(other, 0o755), "symlink": os.Symlink("x", other), "rename": os.Rename(f, other),
		"link": os.Link(f, other), "chmod": os.Chmod(f, 0o600), "times": os.Chtimes(f, time.Time{}, time.Unix(1, 0)),
		"mknod": unix.Mkfifo(other, 0o600), "setxattr": unix.Setxattr(f, "user.x", nil, 0),
	} {
		if !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The inode is the same for all versions, and a mapping shows the newest one.
func TestFollowMapping(t *testing.T) {
	_, a, b := followPair(t)
	const size = 100_000
	write(t, filepath.Join(a, "f"), pattern(1, size))
	ino := inode(t, filepath.Join(b, "f"))
	m := newViewer(t, filepath.Join(b, "f"), size)
	for i := range 5 {
		want := pattern(uint64(2+i), size)
		write(t, filepath.Join(a, "f"), want)
		eventually(t, func() error {
			if got := m.load(t); !bytes.Equal(got, want) {
				return fmt.Errorf("round %d: the mapping differs at %d", i, firstDiff(got, want))
			}
			return nil
		})
		if got := inode(t, filepath.Join(b, "f")); got != ino {
			t.Errorf("inode %d became %d", ino, got)
		}
	}
}

// What tail -f does: read to the end, and again when there is more.
func TestFollowAppends(t *testing.T) {
	_, a, b := followPair(t)
	write(t, filepath.Join(a, "log"), nil)
	f := openFor(t, filepath.Join(b, "log"), os.O_RDONLY)
	var want, got bytes.Buffer
	for i := range 60 {
		line := fmt.Sprintf("line %d %s\n", i, strings.Repeat("x", i*37%900))
		want.WriteString(line)
		w, err := os.OpenFile(filepath.Join(a, "log"), os.O_WRONLY|os.O_APPEND, 0)
		must(t, err)
		_, err = w.WriteString(line)
		must(t, err)
		must(t, w.Close())
		eventually(t, func() error {
			if _, err := io.Copy(&got, f); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
				return fmt.Errorf("line %d: %d bytes of %d, %v", i, got.Len(), want.Len(), err)
			}
			return nil
		})
	}
}

// A file keeps its last version when its name goes, and the open of another file under that name is another one.
func TestFollowRemovedAndReplaced(t *testing.T) {
	_, a, b := followPair(t)
	path := filepath.Join(a, "f")
	for i, size := range []int{100, 9000} {
		was, is := pattern(uint64(i), size), pattern(uint64(10+i), size+5)
		write(t, path, was)
		f := openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
		must(t, shows(f, was))
		write(t, filepath.Join(a, "new"), is)
		must(t, os.Rename(filepath.Join(a, "new"), path))
		wantBytes(t, filepath.Join(b, "f"), is)
		must(t, shows(f, was))
		g := openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
		must(t, os.Remove(path))
		if err := shows(g, is); err != nil {
			t.Error(err)
		}
		st, err := g.Stat()
		must(t, err)
		if st.Sys().(*syscall.Stat_t).Nlink != 0 {
			t.Error("a removed file has a link")
		}
		again := openFor(t, fmt.Sprintf("/proc/self/fd/%d", g.Fd()), os.O_RDONLY)
		must(t, shows(again, is))
	}
}

// A file that is renamed goes on to be followed.
func TestFollowRenamed(t *testing.T) {
	_, a, b := followPair(t)
	write(t, filepath.Join(a, "f"), []byte("one"))
	f := openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
	must(t, os.Rename(filepath.Join(a, "f"), filepath.Join(a, "g")))
	write(t, filepath.Join(a, "g"), []byte("two and more"))
	eventuallyShows(t, f, []byte("two and more"))
}

// A lock keeps the version, and the first one brings it up to date.
func TestFollowLocks(t *testing.T) {
	for name, lock := range map[string]func(f *os.File, lock bool) error{
		"flock": func(f *os.File, lock bool) error {
			if lock {
				return unix.Flock(int(f.Fd()), unix.LOCK_SH)
			}
			return unix.Flock(int(f.Fd()), unix.LOCK_UN)
		},
		"record": func(f *os.File, lock bool) error {
			l := unix.Flock_t{Type: unix.F_UNLCK}
			if lock {
				l.Type = unix.F_RDLCK
			}
			return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &l)
		},
	} {
		t.Run(name, func(t *testing.T) { testFollowLocks(t, lock) })
	}
}

func testFollowLocks(t *testing.T, lock func(f *os.File, lock bool) error) {
	_, a, b := followPair(t)
	path := filepath.Join(a, "f")
	write(t, path, []byte("before"))
	f, g := openFor(t, filepath.Join(b, "f"), os.O_RDONLY), openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
	for i := range 20 {
		want := pattern(uint64(i), 100+i*777%9000)
		write(t, path, want)
		must(t, lock(f, true))
		must(t, shows(f, want))
		write(t, path, []byte("while it is locked"))
		must(t, lock(g, true))
		must(t, shows(g, want))
		must(t, lock(f, false))
		must(t, shows(f, want))
		if i%2 == 0 {
			must(t, lock(g, false))
		} else {
			must(t, g.Close())
			g = openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
		}
		eventuallyShows(t, f, []byte("while it is locked"))
	}
}

// An flock that waits to change its mode is lost meanwhile: the file goes on, and has the newest version when the lock
// is there again.
func TestFollowLockThatWaits(t *testing.T) {
	n := fstest.New(t, 1).Node(1)
	a, b := n.Mount(t, nil), n.MountMore(t, func(o *fs.Options) { o.Follow = true })
	write(t, filepath.Join(a, "f"), []byte("before"))
	f := openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
	other := openFor(t, filepath.Join(a, "f"), os.O_RDONLY)
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_SH))
	must(t, unix.Flock(int(other.Fd()), unix.LOCK_SH))
	locked := make(chan error, 1)
	go func() { locked <- unix.Flock(int(f.Fd()), unix.LOCK_EX) }()
	write(t, filepath.Join(a, "f"), []byte("it waits"))
	eventuallyShows(t, f, []byte("it waits"))
	must(t, unix.Flock(int(other.Fd()), unix.LOCK_UN))
	must(t, <-locked)
	must(t, shows(f, []byte("it waits")))
	write(t, filepath.Join(a, "f"), []byte("it is locked"))
	must(t, shows(f, []byte("it waits")))
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_UN))
	eventuallyShows(t, f, []byte("it is locked"))
}

// The times of a version come with its bytes: a program that reads the file again when they change misses nothing.
func TestFollowTimes(t *testing.T) {
	_, a, b := followPair(t)
	path := filepath.Join(a, "f")
	write(t, path, []byte("before"))
	set := time.Unix(1_600_000_000, 0)
	f := openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
	must(t, os.Chtimes(path, set, set))
	eventually(t, func() error {
		if st, err := f.Stat(); err != nil || !st.ModTime().Equal(set) {
			return fmt.Errorf("%v, %v", st, err)
		}
		return nil
	})
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_SH))
	before, err := f.Stat()
	must(t, err)
	write(t, path, []byte("behind"))
	now, err := f.Stat()
	must(t, err)
	was, is := before.Sys().(*syscall.Stat_t), now.Sys().(*syscall.Stat_t)
	if is.Mtim != was.Mtim || is.Ctim != was.Ctim {
		t.Errorf("a file that stays at its version has mtime %v and ctime %v; they were %v and %v", is.Mtim, is.Ctim,
			was.Mtim, was.Ctim)
	}
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_UN))
	eventuallyShows(t, f, []byte("behind"))
	eventually(t, func() error {
		there, err := os.Stat(path)
		must(t, err)
		now, err := f.Stat()
		must(t, err)
		if !now.ModTime().Equal(there.ModTime()) {
			return fmt.Errorf("mtime %v, want %v", now.ModTime(), there.ModTime())
		}
		return nil
	})
}

// followKernel is a kernel whose drops of pages a test can watch and hold up.
type followKernel struct {
	noKernel
	drop func()
}

func (k followKernel) InodeNotify(_ uint64, offset, _ int64) fuse.Status {
	if offset >= 0 && k.drop != nil {
		k.drop()
	}
	return fuse.OK
}

// followRequests mounts a node that follows on a kernel that is none.
func followRequests(t *testing.T, c *fstest.Cluster, cl fs.Cluster, drop func()) (*fs.Mount, fuse.RawFileSystem) {
	t.Helper()
	var requests fuse.RawFileSystem
	m, err := fs.NewMount(t.Context(), fs.Options{
		Dir: t.TempDir(), Cluster: cl, Staging: fs.NewStaging(c.Node(2).Store(), c.Node(2).Self), Follow: true,
		Attach: func(r fuse.RawFileSystem) (fs.Kernel, error) {
			requests = r
			return followKernel{noKernel{make(chan struct{})}, drop}, nil
		},
	})
	must(t, err)
	t.Cleanup(func() { must(t, m.Unmount(context.Background())) })
	c.Attach(2, m)
	return m, requests
}

// client asks a file system as a kernel does.
type client struct {
	t  *testing.T
	fs fuse.RawFileSystem
}

func (c client) lookup(name string) uint64 {
	c.t.Helper()
	var entry fuse.EntryOut
	if st := c.fs.Lookup(nil, &fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}, name, &entry); st != fuse.OK {
		c.t.Fatal(st)
	}
	return entry.NodeId
}

func (c client) open(node uint64) (fh uint64) {
	c.t.Helper()
	var out fuse.OpenOut
	if st := c.fs.Open(nil, &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: node}}, &out); st != fuse.OK {
		c.t.Fatal(st)
	}
	return out.Fh
}

func (c client) read(fh uint64) string {
	c.t.Helper()
	buf := make([]byte, 1<<16)
	res, st := c.fs.Read(nil, &fuse.ReadIn{Fh: fh, Size: uint32(len(buf))}, buf)
	if st != fuse.OK {
		c.t.Fatal(st)
	}
	got, st := res.Bytes(buf)
	if st != fuse.OK {
		c.t.Fatal(st)
	}
	return string(got)
}

func (c client) size(node uint64) (size uint64, cached bool) {
	c.t.Helper()
	var out fuse.AttrOut
	if st := c.fs.GetAttr(nil, &fuse.GetAttrIn{InHeader: fuse.InHeader{NodeId: node}}, &out); st != fuse.OK {
		c.t.Fatal(st)
	}
	return out.Size, out.AttrValid > 0
}

func (c client) release(fh uint64) { c.fs.Release(nil, &fuse.ReleaseIn{Fh: fh}) }

// Pages stay in the kernel from one open of an unchanged file to the next; those of another version are dropped.
func TestFollowKeepsPagesOfUnchangedFiles(t *testing.T) {
	c := fstest.New(t, 2)
	path := filepath.Join(c.Node(1).Mount(t, nil), "f")
	write(t, path, []byte("bytes"))
	var drops atomic.Int64
	_, requests := followRequests(t, c, c.Node(2), func() { drops.Add(1) })
	k := client{t, requests}
	node := k.lookup("f")
	read := func(want string, most int64) {
		t.Helper()
		drops.Store(0)
		fh := k.open(node)
		if got := k.read(fh); got != want || drops.Load() > most {
			t.Errorf("%q, want %q; pages were dropped %d times, want %d at most", got, want, drops.Load(), most)
		}
		k.release(fh)
	}
	read("bytes", 1)
	for range 3 {
		read("bytes", 0)
	}
	write(t, path, []byte("newer"))
	read("newer", 1)
	if drops.Load() == 0 {
		t.Error("pages of the version before were not dropped")
	}
	read("newer", 0)
}

// While pages of the version before may be there, no size shows that would show what lies behind their end; reads give
// the new version already, and the change is not cached.
func TestFollowSizesWhileItChanges(t *testing.T) {
	for _, sizes := range [][2]int{{100, 300}, {300, 100}} {
		c := fstest.New(t, 2)
		path := filepath.Join(c.Node(1).Mount(t, nil), "f")
		was, is := pattern(1, sizes[0]), pattern(2, sizes[1])
		write(t, path, was)
		hold := make(chan chan struct{}, 1)
		var on atomic.Bool
		_, requests := followRequests(t, c, c.Node(2), func() {
			if on.Load() {
				goOn := make(chan struct{})
				hold <- goOn
				<-goOn
			}
		})
		k := client{t, requests}
		node := k.lookup("f")
		fh := k.open(node)
		on.Store(true)
		write(t, path, is)
		goOn := make(chan struct{})
		select {
		case goOn = <-hold:
		case <-time.After(time.Minute):
			t.Fatal("no pages are dropped")
		}
		if got := k.read(fh); got != string(is) {
			t.Errorf("%v: a read while the file changes gives %d bytes", sizes, len(got))
		}
		if size, cached := k.size(node); size != uint64(min(sizes[0], sizes[1])) || cached {
			t.Errorf("%v: size %d while the file changes, cached: %v", sizes, size, cached)
		}
		on.Store(false)
		close(goOn)
		eventually(t, func() error {
			if size, cached := k.size(node); size != uint64(sizes[1]) || !cached {
				return fmt.Errorf("%v: size %d in the end, cached: %v", sizes, size, cached)
			}
			return nil
		})
		k.release(fh)
	}
}

// contents is a node some of whose contents cannot be opened, or only later; it counts those that are open.
type contents struct {
	*fstest.Node
	before atomic.Pointer[func(id meta.ContentID) error]
	read   atomic.Pointer[func(id meta.ContentID)]
	after  atomic.Pointer[func()]
	open   atomic.Int64
	logged atomic.Int64
}

func (c *contents) OpenContent(ctx context.Context, id meta.ContentID) (replicate.ContentReader, error) {
	if f := c.before.Load(); f != nil {
		if err := (*f)(id); err != nil {
			return nil, err
		}
	}
	r, err := c.Node.OpenContent(ctx, id)
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	if f := c.after.Swap(nil); f != nil {
		(*f)()
	}
	return &counted{r, c, id}, nil
}

type counted struct {
	replicate.ContentReader
	of *contents
	id meta.ContentID
}

func (r *counted) ReadAt(p []byte, off int64) (int, error) {
	if f := r.of.read.Load(); f != nil {
		(*f)(r.id)
	}
	return r.ContentReader.ReadAt(p, off)
}

func (r *counted) Close() error {
	r.of.open.Add(-1)
	return r.ContentReader.Close()
}

// followContents mounts a node that follows, with contents that a test has in its hand.
func followContents(t *testing.T) (a string, of *contents, b string) {
	t.Helper()
	c := fstest.New(t, 2)
	of = &contents{Node: c.Node(2)}
	log := slog.New(slog.NewTextHandler(of, nil))
	a = c.Node(1).Mount(t, nil)
	return a, of, c.Node(2).Mount(t, func(o *fs.Options) { o.Cluster, o.Follow, o.Log = of, true, log })
}

// Write counts what is logged.
func (c *contents) Write(p []byte) (int, error) {
	c.logged.Add(1)
	return len(p), nil
}

// A commit falls into an open, after the version to open was chosen: it shows all the same.
func TestFollowCommitDuringOpen(t *testing.T) {
	a, of, b := followContents(t)
	for i := range 20 {
		name := fmt.Sprint("f", i)
		write(t, filepath.Join(a, name), []byte("before"))
		want := pattern(uint64(i), 50+i*500)
		commit := func() {
			if err := os.WriteFile(filepath.Join(a, name), want, 0o644); err != nil {
				t.Error(err)
			}
		}
		of.after.Store(&commit)
		f := openFor(t, filepath.Join(b, name), os.O_RDONLY)
		eventuallyShows(t, f, want)
		must(t, f.Close())
	}
	eventually(t, of.allClosed)
}

func (c *contents) allClosed() error {
	if n := c.open.Load(); n != 0 {
		return fmt.Errorf("%d contents are open", n)
	}
	return nil
}

// A commit falls between the look at the record and the open.
func TestFollowCommitAfterTheRecordIsRead(t *testing.T) {
	c, a, b := followPair(t)
	for skip := range 6 {
		name := fmt.Sprint("f", skip)
		write(t, filepath.Join(a, name), []byte("before"))
		ino := inode(t, filepath.Join(b, name))
		want := pattern(uint64(skip), 700)
		c.Node(2).AfterInode(meta.Ino(ino), func() {
			c.Node(2).AfterRead(skip, func() {
				if err := os.WriteFile(filepath.Join(a, name), want, 0o644); err != nil {
					t.Error(err)
				}
			})
		})
		f := openFor(t, filepath.Join(b, name), os.O_RDONLY)
		c.Node(2).AfterRead(0, func() {})
		now, err := os.ReadFile(filepath.Join(a, name))
		must(t, err)
		eventuallyShows(t, f, now)
		must(t, f.Close())
	}
}

// A file whose new content can't be opened keeps what it has, until it can. Other files go on.
func TestFollowKeepsWhatCannotBeReplaced(t *testing.T) {
	a, of, b := followContents(t)
	write(t, filepath.Join(a, "f"), []byte("old"))
	write(t, filepath.Join(a, "g"), []byte("old"))
	f, g := openFor(t, filepath.Join(b, "f"), os.O_RDONLY), openFor(t, filepath.Join(b, "g"), os.O_RDONLY)
	var tries atomic.Int64
	var bad atomic.Pointer[meta.ContentID]
	var good atomic.Bool
	refuse := func(id meta.ContentID) error {
		bad.CompareAndSwap(nil, &id)
		if id != *bad.Load() || good.Load() {
			return nil
		}
		tries.Add(1)
		return syscall.EIO
	}
	of.before.Store(&refuse)
	write(t, filepath.Join(a, "f"), []byte("newer"))
	eventually(t, func() error {
		if n := tries.Load(); n < 3 {
			return fmt.Errorf("the new version was tried %d times", n)
		}
		return nil
	})
	must(t, shows(f, []byte("old")))
	write(t, filepath.Join(a, "g"), []byte("newer"))
	eventuallyShows(t, g, []byte("newer"))
	good.Store(true)
	eventuallyShows(t, f, []byte("newer"))
	if n := of.logged.Load(); n != 1 {
		t.Errorf("%d lines are logged, want one", n)
	}
}

// An open of a content that takes long holds up neither other files nor the handles that are there, and a handle that
// is closed meanwhile leaves no content open.
func TestFollowSlowContent(t *testing.T) {
	a, of, b := followContents(t)
	write(t, filepath.Join(a, "f"), []byte("old"))
	write(t, filepath.Join(a, "g"), []byte("old"))
	f, g := openFor(t, filepath.Join(b, "f"), os.O_RDONLY), openFor(t, filepath.Join(b, "g"), os.O_RDONLY)
	slow, entered := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	wait := func(meta.ContentID) error {
		if !first.Swap(true) {
			close(entered)
			<-slow
		}
		return nil
	}
	of.before.Store(&wait)
	write(t, filepath.Join(a, "f"), []byte("newer"))
	select {
	case <-entered:
	case <-time.After(time.Minute):
		t.Fatal("nobody opens the new version")
	}
	must(t, shows(f, []byte("old")))
	write(t, filepath.Join(a, "g"), []byte("newer"))
	eventuallyShows(t, g, []byte("newer"))
	must(t, f.Close())
	must(t, g.Close())
	close(slow)
	eventually(t, of.allClosed)
	f = openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
	must(t, shows(f, []byte("newer")))
	must(t, f.Close())
	eventually(t, of.allClosed)
}

// A read that hangs holds up nothing, and ends with the version that it began with.
func TestFollowReadThatHangs(t *testing.T) {
	needWholeReads(t)
	a, of, b := followContents(t)
	old, newer := pattern(1, 9000), pattern(2, 12_000)
	write(t, filepath.Join(a, "f"), old)
	f := openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
	entered, goOn := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	hang := func(meta.ContentID) {
		if !first.Swap(true) {
			close(entered)
			<-goOn
		}
	}
	of.read.Store(&hang)
	got := make(chan []byte, 1)
	go func() {
		p := make([]byte, 20_000)
		n, _ := unix.Pread(int(f.Fd()), p, 0) // ReadAt would read on behind what one call gave
		got <- p[:max(n, 0)]
	}()
	<-entered
	write(t, filepath.Join(a, "f"), newer)
	eventuallyShows(t, f, newer)
	wantBytes(t, filepath.Join(b, "f"), newer)
	close(goOn)
	if got := <-got; !bytes.Equal(got, old) {
		t.Errorf("the read that hung gives %d bytes, want %d; first difference at %d", len(got), len(old),
			firstDiff(got, old))
	}
	must(t, f.Close())
	eventually(t, of.allClosed)
}

// Two mounts of one node: one writes, the other one follows.
func TestFollowOnOneNode(t *testing.T) {
	n := fstest.New(t, 1).Node(1)
	a, b := n.Mount(t, nil), n.MountMore(t, func(o *fs.Options) { o.Follow = true })
	write(t, filepath.Join(a, "f"), []byte("one"))
	f := openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
	for i := range 20 {
		want := slices.Repeat([]byte{byte('a' + i)}, 1+i*700)
		write(t, filepath.Join(a, "f"), want)
		eventuallyShows(t, f, want)
	}
}

// A state that was replaced as a whole is looked at again.
func TestFollowDropCaches(t *testing.T) {
	c, a, b := followPair(t)
	write(t, filepath.Join(a, "f"), []byte("one"))
	f := openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
	c.Node(2).Mounted().DropCaches()
	must(t, shows(f, []byte("one")))
	write(t, filepath.Join(a, "f"), []byte("three"))
	eventuallyShows(t, f, []byte("three"))
}
