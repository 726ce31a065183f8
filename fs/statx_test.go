package fs_test

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"golang.org/x/sys/unix"
)

// statx asks for all attributes that a file system may have, of a path (fd AT_FDCWD) or of a descriptor.
func statx(t testing.TB, fd int, path string) (st unix.Statx_t) {
	t.Helper()
	const all = unix.STATX_BASIC_STATS | unix.STATX_BTIME
	if err := unix.Statx(fd, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH, all, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// born is the birth time of a path.
func born(t testing.TB, path string) time.Time {
	t.Helper()
	return bornOf(t, unix.AT_FDCWD, path)
}

func bornOf(t testing.TB, fd int, path string) time.Time {
	t.Helper()
	st := statx(t, fd, path)
	if st.Mask&unix.STATX_BTIME == 0 {
		t.Fatalf("%s has no birth time", path)
	}
	return time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
}

func wantBorn(t testing.TB, path string, want time.Time) {
	t.Helper()
	if got := born(t, path); !got.Equal(want) {
		t.Errorf("%s: born at %v, want %v", path, got, want)
	}
}

// The birth time of a file is when it was made. It never changes, and is the same on all nodes.
func TestBirthTimeStays(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		made := map[string]func(path string) error{
			"file":    func(path string) error { return os.WriteFile(path, []byte("first"), 0o644) },
			"dir":     func(path string) error { return os.Mkdir(path, 0o755) },
			"symlink": func(path string) error { return os.Symlink("nowhere", path) },
			"fifo":    func(path string) error { return unix.Mkfifo(path, 0o600) },
			"node":    func(path string) error { return unix.Mknod(path, unix.S_IFREG|0o600, 0) },
		}
		for name, put := range made {
			must(t, put(filepath.Join(a, name)))
			at := born(t, filepath.Join(a, name))
			wantBorn(t, filepath.Join(b, name), at)
			moved := filepath.Join(a, name+"-moved")
			must(t, os.Rename(filepath.Join(a, name), moved))
			old := []unix.Timespec{{Sec: 1}, {Sec: 2}}
			must(t, unix.UtimesNanoAt(unix.AT_FDCWD, moved, old, unix.AT_SYMLINK_NOFOLLOW))
			wantBorn(t, moved, at)
			wantBorn(t, filepath.Join(b, name+"-moved"), at)
		}
		f := filepath.Join(a, "file-moved")
		at := born(t, f)
		must(t, os.WriteFile(f, []byte("second"), 0o644))
		must(t, os.Link(f, filepath.Join(a, "link")))
		must(t, os.WriteFile(filepath.Join(b, "link"), []byte("third"), 0o644))
		c.Node(1).Unmount(t)
		a = c.Node(1).Mount(t, nil)
		for _, path := range []string{filepath.Join(a, "link"), filepath.Join(b, "file-moved")} {
			wantBorn(t, path, at)
		}
	})
}

// The birth time of a file that is being written is that which it has when it is published.
func TestBirthTimeOfWhatIsStaged(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		f, err := os.Create(filepath.Join(a, "f"))
		must(t, err)
		at := bornOf(t, int(f.Fd()), "")
		_, err = f.WriteString("bytes")
		must(t, err)
		if st := statx(t, int(f.Fd()), ""); st.Size != 5 {
			t.Errorf("%d bytes are staged, want 5", st.Size)
		}
		wantBorn(t, f.Name(), at)
		must(t, f.Close())
		wantBorn(t, filepath.Join(b, "f"), at)

		fd, err := unix.Open(a, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
		must(t, err)
		defer unix.Close(fd)
		at = bornOf(t, fd, "")
		must(t, unix.Linkat(fd, "", unix.AT_FDCWD, filepath.Join(a, "tmp"), unix.AT_EMPTY_PATH))
		if got := bornOf(t, fd, ""); !got.Equal(at) {
			t.Errorf("an O_TMPFILE that got a name: born at %v, want %v", got, at)
		}
		wantBorn(t, filepath.Join(b, "tmp"), at)
	})
}

// A file whose reserved name a fence has freed is the same file under another number.
func TestBirthTimeAfterAFence(t *testing.T) {
	c, a, b := pair(t, nil)
	f, err := os.Create(filepath.Join(a, "f"))
	must(t, err)
	at := bornOf(t, int(f.Fd()), "")
	c.Fence(t, 1)
	_, err = f.WriteString("bytes")
	must(t, err)
	must(t, f.Close())
	wantBorn(t, filepath.Join(b, "f"), at)
}

// statx answers what stat answers.
func TestStatxIsStat(t *testing.T) {
	eachMode(t, func(t *testing.T, _ *fstest.Node, mnt string) {
		f, err := os.Create(filepath.Join(mnt, "live"))
		must(t, err)
		defer f.Close()
		_, err = f.WriteString("bytes")
		must(t, err)
		must(t, os.WriteFile(filepath.Join(mnt, "f"), make([]byte, 10_000), 0o640))
		must(t, os.Mkdir(filepath.Join(mnt, "d"), 0o751))
		must(t, os.Symlink("f", filepath.Join(mnt, "s")))
		must(t, unix.Mknod(filepath.Join(mnt, "dev"), unix.S_IFCHR|0o600, int(unix.Mkdev(300, 70_000))))
		must(t, os.Chown(filepath.Join(mnt, "f"), 12, 34))
		early := []unix.Timespec{{Sec: -5, Nsec: 7}, {Sec: -6, Nsec: 8}}
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(mnt, "f"), early, 0))
		for _, name := range []string{"", "live", "f", "d", "s", "dev"} {
			path := filepath.Join(mnt, name)
			st := statx(t, unix.AT_FDCWD, path)
			var want unix.Stat_t
			must(t, unix.Lstat(path, &want))
			got := unix.Stat_t{
				Dev: want.Dev, Ino: st.Ino, Nlink: uint64(st.Nlink), Mode: uint32(st.Mode), Uid: st.Uid, Gid: st.Gid,
				Rdev: unix.Mkdev(st.Rdev_major, st.Rdev_minor), Size: int64(st.Size), Blksize: int64(st.Blksize),
				Blocks: int64(st.Blocks), Atim: unix.Timespec{Sec: st.Atime.Sec, Nsec: int64(st.Atime.Nsec)},
				Mtim: unix.Timespec{Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)},
				Ctim: unix.Timespec{Sec: st.Ctime.Sec, Nsec: int64(st.Ctime.Nsec)},
			}
			if got != want {
				t.Errorf("%q:\nstatx %+v\nstat  %+v", name, got, want)
			}
		}
	})
}

// asked counts the requests for attributes that the kernel sends.
type asked struct {
	fuse.RawFileSystem
	n atomic.Int64
}

func (a *asked) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	a.n.Add(1)
	return a.RawFileSystem.GetAttr(cancel, in, out)
}

func (a *asked) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	a.n.Add(1)
	return a.RawFileSystem.Statx(cancel, in, out)
}

// The kernel answers stat, and a statx for the birth time, from what it keeps.
func TestStatOfWhatTheKernelKeeps(t *testing.T) {
	var count asked
	c := fstest.New(t, 2)
	mnt := c.Node(1).Mount(t, func(o *fs.Options) {
		o.Attach = func(r fuse.RawFileSystem) (fs.Kernel, error) {
			count.RawFileSystem = r
			return fs.MountLinux(*o, &count)
		}
	})
	b := c.Node(2).Mount(t, nil)
	must(t, os.WriteFile(filepath.Join(b, "f"), []byte("bytes"), 0o644))
	f := filepath.Join(mnt, "f")
	asks := func(want int64, what string, do func()) {
		t.Helper()
		before := count.n.Load()
		do()
		if n := count.n.Load() - before; n != want {
			t.Errorf("%s: the kernel asks for attributes %d times, want %d", what, n, want)
		}
	}
	stat := func() { _, err := os.Stat(f); must(t, err) }
	stat() // looks the name up, and gets the attributes of the directory
	asks(0, "stat after the lookup", stat)
	asks(1, "the first statx", func() { born(t, f) })
	asks(0, "another statx", func() { born(t, f) })
	asks(0, "stat", stat)
	must(t, os.WriteFile(filepath.Join(b, "f"), []byte("more bytes"), 0o644))
	asks(1, "statx of a newer version", func() {
		if st := statx(t, unix.AT_FDCWD, f); st.Size != 10 {
			t.Errorf("statx shows %d bytes, want 10", st.Size)
		}
	})
	asks(0, "stat after it", stat)
	asks(0, "statx after it", func() { born(t, f) })
	must(t, os.Remove(f))
	if err := unix.Statx(unix.AT_FDCWD, f, 0, unix.STATX_BTIME, new(unix.Statx_t)); err != syscall.ENOENT {
		t.Errorf("statx of a removed file: %v", err)
	}
}
