package fs_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"golang.org/x/sys/unix"
)

// modes are the two ways in which bytes move.
var modes = map[string]func(*fs.Options){
	"passthrough": func(o *fs.Options) { o.Debug = os.Getenv("FS_DEBUG") != "" },
	"mediated":    func(o *fs.Options) { o.NoPassthrough = true; o.Debug = os.Getenv("FS_DEBUG") != "" },
}

// eachMode runs a test on a mount of one node in both modes.
func eachMode(t *testing.T, f func(t *testing.T, n *fstest.Node, mnt string)) {
	for name, change := range modes {
		t.Run(name, func(t *testing.T) {
			n := fstest.New(t, 1).Node(1)
			f(t, n, n.Mount(t, change))
		})
	}
}

const (
	// processLocks is a test that is skipped: it wants one process to conflict with itself, but locks are the kernel's
	// own, per process.
	processLocks = "FcntlFlockLocksFile"
	// symlinkRace is a test of its own: it takes as long as all others.
	symlinkRace = "OpenSymlinkRace"
)

func TestPosix(t *testing.T) {
	for name, test := range posixtest.All {
		if name == symlinkRace {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if name == processLocks {
				t.Skip("POSIX locks of one process do not conflict")
			}
			eachMode(t, func(t *testing.T, _ *fstest.Node, mnt string) { test(t, mnt) })
		})
	}
}

// TestReplacedFileCanBeOpened is similar, and runs with the race detector.
func TestPosixOpenSymlinkRace(t *testing.T) {
	if testing.Short() {
		t.Skip("a thousand opens and renames")
	}
	race, ok := posixtest.All[symlinkRace]
	if !ok {
		t.Fatalf("posixtest has no %s", symlinkRace)
	}
	eachMode(t, func(t *testing.T, _ *fstest.Node, mnt string) { race(t, mnt) })
}

func pattern(seed uint64, size int) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	b := make([]byte, size)
	r.Read(b)
	return b
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func wantBytes(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: %d bytes, want %d; first difference at %d", path, len(got), len(want), firstDiff(got, want))
	}
}

func firstDiff(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func TestWriteAndReadBack(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		for i, size := range []int{0, 1, 4096, 4097, 100_000, 5 << 20} {
			path := filepath.Join(mnt, fmt.Sprint("f", size))
			before := n.Publishes.Load()
			write(t, path, pattern(uint64(i), size))
			wantBytes(t, path, pattern(uint64(i), size))
			if got := n.Publishes.Load() - before; got != 1 {
				t.Errorf("%d publishes of a file of %d bytes, want 1", got, size)
			}
		}
		if n.Proposals.Load() != 12 {
			t.Errorf("%d proposals for 6 files, want 12", n.Proposals.Load())
		}
	})
}

func TestWithoutNameCache(t *testing.T) {
	_, a, b := pair(t, func(o *fs.Options) { o.NoNameCache = true })
	for i := range 50 {
		want := pattern(uint64(i), 100+i)
		write(t, filepath.Join(a, "f"), want)
		wantBytes(t, filepath.Join(b, "f"), want)
		must(t, os.Rename(filepath.Join(b, "f"), filepath.Join(b, "g")))
		if _, err := os.Stat(filepath.Join(a, "f")); !os.IsNotExist(err) {
			t.Fatalf("old name: %v", err)
		}
		wantBytes(t, filepath.Join(a, "g"), want)
		must(t, os.Remove(filepath.Join(a, "g")))
	}
}

func TestMountPointErrors(t *testing.T) {
	n := fstest.New(t, 1).Node(1)
	full := t.TempDir()
	write(t, filepath.Join(full, "x"), nil)
	mounted := n.Mount(t, nil)
	inside := t.TempDir()
	for _, c := range []struct {
		dir  string
		keep []string
		want error
	}{
		{filepath.Join(full, "none"), nil, fs.ErrMountPointMissing},
		{filepath.Join(full, "x"), nil, fs.ErrMountPointNotDir},
		{full, nil, fs.ErrMountPointNotEmpty},
		{mounted, nil, fs.ErrMountPointInUse},
		{inside, []string{filepath.Join(inside, "data")}, fs.ErrDataOnMount},
	} {
		_, err := fs.NewMount(t.Context(), fs.Options{Dir: c.dir, Keep: c.keep, Cluster: n})
		if !errors.Is(err, c.want) {
			t.Errorf("mount %s: %v, want %v", c.dir, err, c.want)
		}
	}
}

func TestUnmountBusy(t *testing.T) {
	n := fstest.New(t, 1).Node(1)
	mnt := n.Mount(t, nil)
	f, err := os.Create(filepath.Join(mnt, "open"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = n.Mounted().Unmount(t.Context())
	var busy *fs.BusyError
	if !errors.As(err, &busy) || !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("unmount of a mount in use: %v", err)
	}
	if len(busy.Users) == 0 || busy.Users[0].PID != os.Getpid() {
		t.Errorf("users: %+v, want this process", busy.Users)
	}
	if _, err := f.Write([]byte("still there")); err != nil {
		t.Errorf("write after a refused unmount: %v", err)
	}
}

// TestStatFs: df of the mount says what df of the disk says, except for the available space, part of which is held
// back.
func TestStatFs(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		dir := t.TempDir() // on the disk of the stores
		eventually(t, func() error {
			var disk, here unix.Statfs_t
			must(t, unix.Statfs(dir, &disk))
			must(t, unix.Statfs(mnt, &here))
			bytes := func(blocks uint64, st *unix.Statfs_t) int64 { return int64(blocks) * st.Frsize }
			const others = 64 << 20 // what they may write in between
			total := bytes(disk.Blocks, &disk) - bytes(here.Blocks, &here)
			used := bytes(disk.Blocks-disk.Bfree, &disk) - bytes(here.Blocks-here.Bfree, &here)
			available := bytes(disk.Bavail, &disk) - bytes(here.Bavail, &here)
			if total < 0 || total >= here.Frsize || max(used, -used) > others || max(available, -available) > others {
				return fmt.Errorf("%d bytes total, %d used, %d available differ", total, used, available)
			}
			if here.Bsize != here.Frsize || here.Namelen != 255 {
				return fmt.Errorf("%+v", here)
			}
			return nil
		})
	})
}
