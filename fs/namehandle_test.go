package fs_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"golang.org/x/sys/unix"
)

// handleOf is the handle of a path, as a program keeps it.
func handleOf(t testing.TB, path string) unix.FileHandle {
	t.Helper()
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
	must(t, err)
	return h
}

// openHandle opens a handle at a mount. The caller closes the file.
func openHandle(t testing.TB, mnt string, h unix.FileHandle, flags int) (*os.File, error) {
	t.Helper()
	at, err := os.Open(mnt)
	must(t, err)
	defer at.Close()
	fd, err := unix.OpenByHandleAt(int(at.Fd()), h, flags|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "handle"), nil
}

// readHandle reads a regular file by its handle.
func readHandle(t testing.TB, mnt string, h unix.FileHandle) (string, error) {
	t.Helper()
	f, err := openHandle(t, mnt, h, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	got := make([]byte, 100)
	n, _ := f.Read(got)
	return string(got[:n]), nil
}

// wantHandle checks what a handle of a regular file leads to.
func wantHandle(t testing.TB, mnt string, h unix.FileHandle, want string) {
	t.Helper()
	if got, err := readHandle(t, mnt, h); err != nil || got != want {
		t.Errorf("a handle leads to %q (%v), want %q", got, err, want)
	}
}

// handleComesTo waits until a handle leads to these bytes: as soon as the daemon knows that the files are closed which
// keep an older version.
func handleComesTo(t testing.TB, mnt string, h unix.FileHandle, want string) {
	t.Helper()
	eventually(t, func() error {
		if got, err := readHandle(t, mnt, h); err != nil || got != want {
			return fmt.Errorf("a handle leads to %q (%v), want %q", got, err, want)
		}
		return nil
	})
}

func wantStale(t testing.TB, mnt string, h unix.FileHandle) {
	t.Helper()
	if f, err := openHandle(t, mnt, h, unix.O_RDONLY); !errors.Is(err, unix.ESTALE) {
		t.Errorf("a handle of what is gone: %v, want ESTALE", err)
		if err == nil {
			must(t, f.Close())
		}
	}
}

// dropCaches makes the kernel forget what nobody uses.
func dropCaches(t testing.TB) {
	t.Helper()
	must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0))
}

// eachKernelCache runs a test on a local disk, and on a mount whose kernel remembers, or forgets, what it has seen.
func eachKernelCache(t *testing.T, f func(t *testing.T, mnt string, forget func())) {
	t.Run("local", func(t *testing.T) { f(t, t.TempDir(), func() {}) })
	for name, forget := range map[string]func(){"remembered": func() {}, "forgotten": func() { dropCaches(t) }} {
		t.Run(name, func(t *testing.T) {
			c := fstest.New(t, 1)
			f(t, c.Node(1).Mount(t, nil), forget)
		})
	}
}

// A handle is good as long as its file exists.
func TestHandleOutlivesTheCache(t *testing.T) {
	eachKernelCache(t, func(t *testing.T, mnt string, forget func()) {
		deep := filepath.Join(mnt, "d", "e", "f")
		must(t, os.MkdirAll(deep, 0o755))
		file := filepath.Join(deep, "file")
		write(t, file, []byte("bytes"))
		must(t, os.Symlink("file", filepath.Join(deep, "symlink")))
		h, dir, symlink := handleOf(t, file), handleOf(t, deep), handleOf(t, filepath.Join(deep, "symlink"))
		must(t, os.Link(file, filepath.Join(mnt, "link")))
		link := handleOf(t, filepath.Join(mnt, "link"))
		must(t, os.Remove(file))
		must(t, os.Rename(filepath.Join(mnt, "link"), filepath.Join(mnt, "moved")))
		forget()
		wantHandle(t, mnt, h, "bytes")
		wantHandle(t, mnt, link, "bytes")
		forget()
		d, err := openHandle(t, mnt, dir, unix.O_RDONLY|unix.O_DIRECTORY)
		must(t, err)
		defer d.Close()
		if names, err := d.Readdirnames(-1); err != nil || len(names) != 1 || names[0] != "symlink" {
			t.Errorf("the names of a directory by its handle: %v, %v", names, err)
		}
		if path, err := os.Readlink(fmt.Sprint("/proc/self/fd/", d.Fd())); err != nil || path != deep {
			t.Errorf("a directory by its handle is %s, %v, want %s", path, err, deep)
		}
		forget()
		s, err := openHandle(t, mnt, symlink, unix.O_PATH|unix.O_NOFOLLOW)
		must(t, err)
		defer s.Close()
		target := make([]byte, 10)
		if n, err := unix.Readlinkat(int(s.Fd()), "", target); err != nil || string(target[:n]) != "file" {
			t.Errorf("a symlink by its handle: %q, %v", target[:n], err)
		}
		forget()
		w, err := openHandle(t, mnt, h, unix.O_WRONLY|unix.O_APPEND)
		must(t, err)
		_, err = w.WriteString(" and more")
		must(t, errors.Join(err, w.Close()))
		wantBytes(t, filepath.Join(mnt, "moved"), []byte("bytes and more"))
		forget()
		wantHandle(t, mnt, handleOf(t, filepath.Join(mnt, "moved")), "bytes and more")
		wantHandle(t, mnt, h, "bytes and more")
	})
}

// A handle of a file that is gone is ESTALE, also when another one has its name.
func TestHandleOfARemovedFile(t *testing.T) {
	eachKernelCache(t, func(t *testing.T, mnt string, forget func()) {
		handles := map[string]unix.FileHandle{}
		for _, name := range []string{"removed", "made", "replaced", "dir"} {
			path := filepath.Join(mnt, name)
			if name == "dir" {
				must(t, os.Mkdir(path, 0o755))
			} else {
				write(t, path, []byte(name))
			}
			handles[name] = handleOf(t, path)
		}
		must(t, os.Remove(filepath.Join(mnt, "removed")))
		must(t, os.Remove(filepath.Join(mnt, "made")))
		write(t, filepath.Join(mnt, "made"), []byte("another"))
		write(t, filepath.Join(mnt, "new"), []byte("another"))
		must(t, os.Rename(filepath.Join(mnt, "new"), filepath.Join(mnt, "replaced")))
		must(t, os.Remove(filepath.Join(mnt, "dir")))
		forget()
		for _, h := range handles {
			wantStale(t, mnt, h)
		}
	})
}

// A handle that is opened while a program writes the file leads to what it writes. One that was taken of an O_TMPFILE
// is good as long as the kernel remembers the file; those that are taken later, as long as the file exists.
func TestHandleOfWhatIsStaged(t *testing.T) {
	eachKernelCache(t, func(t *testing.T, mnt string, forget func()) {
		path := filepath.Join(mnt, "f")
		write(t, path, []byte("old"))
		h := handleOf(t, path)
		forget()
		w, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		_, err = w.WriteString("new bytes")
		must(t, err)
		forget()
		wantHandle(t, mnt, h, "new bytes")
		must(t, w.Close())
		forget()
		wantHandle(t, mnt, h, "new bytes")

		fd, err := unix.Open(mnt, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
		must(t, err)
		tmp := os.NewFile(uintptr(fd), "tmp")
		_, err = tmp.WriteString("staged")
		must(t, err)
		named := filepath.Join(mnt, "named")
		must(t, unix.Linkat(fd, "", unix.AT_FDCWD, named, unix.AT_EMPTY_PATH))
		forget()
		wantHandle(t, mnt, handleOf(t, named), "staged")
		must(t, tmp.Close())
		forget()
		wantHandle(t, mnt, handleOf(t, named), "staged")
	})
}

// A handle of what was made as an O_TMPFILE lasts, if it is taken when the kernel has forgotten that.
func TestHandleOfALinkedTemporaryFile(t *testing.T) {
	mnt := fstest.New(t, 1).Node(1).Mount(t, nil)
	fd, err := unix.Open(mnt, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
	must(t, err)
	tmp := os.NewFile(uintptr(fd), "tmp")
	_, err = tmp.WriteString("bytes")
	must(t, err)
	named := filepath.Join(mnt, "named")
	must(t, unix.Linkat(fd, "", unix.AT_FDCWD, named, unix.AT_EMPTY_PATH))
	before := handleOf(t, named)
	must(t, tmp.Close())
	var h unix.FileHandle
	eventually(t, func() error {
		dropCaches(t) // which keeps what is being released
		if h = handleOf(t, named); bytes.Equal(h.Bytes(), before.Bytes()) {
			return errors.New("the kernel has not forgotten the O_TMPFILE")
		}
		return nil
	})
	dropCaches(t)
	wantHandle(t, mnt, h, "bytes")
}

// A handle is good at other nodes, and after a restart of the daemon.
func TestHandleAtOtherNodes(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		must(t, os.Mkdir(filepath.Join(a, "d"), 0o755))
		write(t, filepath.Join(a, "d", "f"), []byte("bytes"))
		h := handleOf(t, filepath.Join(a, "d", "f"))
		wantHandle(t, b, h, "bytes")
		c.Node(1).Unmount(t)
		a = c.Node(1).Mount(t, nil)
		wantHandle(t, a, h, "bytes")
		if st, other := stat(t, a, h), inode(t, filepath.Join(a, "d", "f")); st.Ino != other {
			t.Errorf("a handle leads to inode %d, want %d", st.Ino, other)
		}
		must(t, os.Remove(filepath.Join(b, "d", "f")))
		dropCaches(t)
		wantStale(t, a, h)
		wantStale(t, b, h)
	})
}

// A name that another node has only reserved is nothing that a handle leads to.
func TestHandleOfAReservedFile(t *testing.T) {
	_, a, b := pair(t, nil)
	f, err := os.Create(filepath.Join(a, "f"))
	must(t, err)
	h := handleOf(t, f.Name())
	wantStale(t, b, h)
	must(t, f.Close())
	wantHandle(t, b, h, "")
}

// When another node has changed a file, a handle leads to the new version; while a program reads the old one, to one of
// the two.
func TestHandleOfAChangedFile(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		write(t, path, []byte("old"))
		old := handleOf(t, path)
		r, err := os.Open(path)
		must(t, err)
		write(t, filepath.Join(b, "f"), []byte("a new version"))
		wantHandle(t, a, old, "old") // as a descriptor of it
		wantHandle(t, b, old, "a new version")
		now := handleOf(t, path) // of another node, since the first one keeps its version
		r2, err := os.Open(path)
		must(t, err)
		must(t, r.Close())
		dropCaches(t)
		handleComesTo(t, a, old, "a new version") // while the other one is open
		must(t, r2.Close())
		for i, h := range []unix.FileHandle{old, now, old, now} {
			wantHandle(t, a, h, "a new version")
			writeHandle(t, a, h, "A")
			wantBytes(t, path, []byte("A new version"))
			writeHandle(t, a, h, "a")
			wantBytes(t, filepath.Join(b, "f"), []byte("a new version"))
			if i > 1 {
				dropCaches(t)
			}
		}
	})
}

// The kernel may still have a node that no name leads to since another node has changed its file. A handle of it is
// good again when the file is closed.
func TestHandleOfADetachedFile(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		write(t, path, []byte("old"))
		h := handleOf(t, path)
		r, err := os.Open(path)
		must(t, err)
		write(t, filepath.Join(b, "f"), []byte("a new version"))
		if w, err := openHandle(t, a, h, unix.O_WRONLY); err == nil {
			t.Error("a handle changes what a program reads")
			must(t, w.Close())
		}
		must(t, r.Close())
		writeHandle(t, a, h, "A")
		wantBytes(t, path, []byte("A new version"))
		wantBytes(t, filepath.Join(b, "f"), []byte("A new version"))
	})
}

// What a program writes is what all opens of this mount share: a handle makes no second staged file beside it.
func TestHandleBesideAWriter(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		write(t, path, []byte("old"))
		old := handleOf(t, path)
		r, err := os.Open(path)
		must(t, err)
		write(t, filepath.Join(b, "f"), []byte("a new version"))
		w, err := os.OpenFile(path, os.O_RDWR, 0) // by another node than that of the handle
		must(t, err)
		must(t, r.Close())
		_, err = w.WriteAt([]byte("A"), 0)
		must(t, err)
		dropCaches(t)
		if h, err := openHandle(t, a, old, unix.O_WRONLY); !errors.Is(err, unix.ESTALE) {
			t.Errorf("a handle for writing beside a writer: %v, want ESTALE", err)
			must(t, h.Close())
		}
		wantBytes(t, path, []byte("A new version"))
		must(t, w.Close())
		handleComesTo(t, a, old, "A new version")
	})
}

// A handle of an O_TMPFILE does not lead to another one, which may get the same nodeid after a restart.
func TestHandleOfAnotherTmpfile(t *testing.T) {
	n := fstest.New(t, 1).Node(1)
	mnt := n.Mount(t, nil)
	tmpfile := func() (f *os.File, h unix.FileHandle) {
		fd, err := unix.Open(mnt, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
		must(t, err)
		h, _, err = unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
		must(t, err)
		return os.NewFile(uintptr(fd), "tmp"), h
	}
	first, h := tmpfile()
	must(t, first.Close())
	n.Unmount(t)
	mnt = n.Mount(t, nil)
	second, other := tmpfile()
	defer second.Close()
	wantHandle(t, mnt, other, "")
	wantStale(t, mnt, h)
}

// writeHandle writes to a file by its handle, as soon as the daemon knows that the files are closed which were opened
// by another handle.
func writeHandle(t testing.TB, mnt string, h unix.FileHandle, bytes string) {
	t.Helper()
	var w *os.File
	eventually(t, func() (err error) {
		w, err = openHandle(t, mnt, h, unix.O_RDWR)
		return err
	})
	_, err := w.WriteAt([]byte(bytes), 0)
	must(t, errors.Join(err, w.Close()))
}

func stat(t testing.TB, mnt string, h unix.FileHandle) (st unix.Stat_t) {
	t.Helper()
	f, err := openHandle(t, mnt, h, unix.O_PATH)
	must(t, err)
	defer f.Close()
	must(t, unix.Fstat(int(f.Fd()), &st))
	return st
}

// lookups counts the nodes that the kernel has from handles.
type lookups struct {
	fuse.RawFileSystem
	n atomic.Int64
}

func (l *lookups) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if name == "." {
		l.n.Add(1)
	}
	return l.RawFileSystem.Lookup(cancel, in, name, out)
}

// The tests of handles have what they need: the kernel forgets a file, and then asks for it by its handle alone.
func TestKernelAsksForHandles(t *testing.T) {
	var count lookups
	c := fstest.New(t, 1)
	mnt := c.Node(1).Mount(t, func(o *fs.Options) {
		o.Attach = func(r fuse.RawFileSystem) (fs.Kernel, error) {
			count.RawFileSystem = r
			return fs.MountLinux(*o, &count)
		}
	})
	write(t, filepath.Join(mnt, "f"), []byte("bytes"))
	h := handleOf(t, filepath.Join(mnt, "f"))
	eventually(t, func() error {
		dropCaches(t) // which keeps what is being released
		wantHandle(t, mnt, h, "bytes")
		if count.n.Load() == 0 {
			return errors.New("the kernel has not forgotten the file")
		}
		return nil
	})
}
