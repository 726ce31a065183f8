package fs_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"golang.org/x/sys/unix"
)

func TestTruncateByPathPublishes(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		data := pattern(1, 10_000)
		write(t, filepath.Join(a, "f"), data)
		for _, size := range []int64{5000, 0, 3000} {
			must(t, os.Truncate(filepath.Join(a, "f"), size))
			for i := range data {
				if int64(i) >= size {
					data[i] = 0
				}
			}
			wantBytes(t, filepath.Join(b, "f"), data[:size])
			wantBytes(t, filepath.Join(a, "f"), data[:size])
		}
		open, err := os.Open(filepath.Join(a, "f")) // a reader makes truncate(2) go by another node
		must(t, err)
		defer open.Close()
		must(t, os.Truncate(filepath.Join(a, "f"), 1))
		wantBytes(t, filepath.Join(a, "f"), data[:1])
	})
}

func TestAttributesRideInThePublish(t *testing.T) {
	skipWithout(t, "cp")
	src := filepath.Join(t.TempDir(), "src")
	write(t, src, pattern(1, 9000))
	when := time.Date(2001, 2, 3, 4, 5, 6, 7000, time.UTC)
	must(t, os.Chmod(src, 0o751|os.ModeSetuid))
	must(t, unix.Setxattr(src, "user.tag", []byte("value"), 0))
	must(t, os.Chtimes(src, when, when))
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		if out, err := exec.Command("cp", "-a", src, filepath.Join(a, "f")).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v %s", err, out)
		}
		if got := c.Node(1).Proposals.Load(); got > 2 {
			t.Errorf("%d proposals for one cp -a, want 2", got)
		}
		if err := unix.Setxattr(filepath.Join(a, "f"), "user.", []byte("value"), 0); err != unix.EINVAL {
			t.Errorf("an attribute without a name: %v", err)
		}
		for _, mnt := range []string{a, b} {
			st, err := os.Stat(filepath.Join(mnt, "f"))
			must(t, err)
			if !st.ModTime().Equal(when) || st.Mode() != 0o751|os.ModeSetuid {
				t.Errorf("%s: %v %v", mnt, st.ModTime(), st.Mode())
			}
			got := make([]byte, 100)
			n, err := unix.Getxattr(filepath.Join(mnt, "f"), "user.tag", got)
			if err != nil || string(got[:n]) != "value" {
				t.Errorf("%s: xattr %q %v", mnt, got[:max(n, 0)], err)
			}
		}
	})
}

func TestTimesAreTheSameOnAllNodes(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		f, err := os.Create(filepath.Join(a, "f"))
		must(t, err)
		_, err = f.WriteString("x")
		must(t, err)
		before, err := f.Stat()
		must(t, err)
		must(t, f.Close())
		for _, mnt := range []string{a, b} {
			st, err := os.Stat(filepath.Join(mnt, "f"))
			must(t, err)
			if !st.ModTime().Equal(before.ModTime()) {
				t.Errorf("%s: mtime %v, before close %v", mnt, st.ModTime(), before.ModTime())
			}
		}
	})
}

// A file that is written with the bytes that it has gets a new time, on all nodes: make and backups go by it.
func TestRewrittenFileHasANewTime(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for _, x := range []struct {
			name, bytes string
			flags       int
			change      func(f *os.File) error
		}{
			{"opened", "", os.O_TRUNC, func(*os.File) error { return nil }},
			{"empty", "", 0, func(f *os.File) error { return f.Truncate(0) }},
			{"cut", "bytes", 0, func(f *os.File) error { return f.Truncate(5) }},
			{"written", "bytes", 0, func(f *os.File) error { _, err := f.WriteString("bytes"); return err }},
		} {
			path := filepath.Join(a, x.name)
			write(t, path, []byte(x.bytes))
			must(t, os.Chtimes(path, time.Unix(1e9, 5), time.Unix(1e9, 5)))
			f, err := os.OpenFile(path, os.O_WRONLY|x.flags, 0)
			must(t, err)
			must(t, x.change(f))
			before, err := f.Stat()
			must(t, err)
			must(t, f.Close())
			for _, mnt := range []string{a, b} {
				st, err := os.Stat(filepath.Join(mnt, x.name))
				must(t, err)
				if now := st.ModTime(); now.Unix() == 1e9 || !now.Equal(before.ModTime()) {
					t.Errorf("%s: mtime %v, before close %v", filepath.Join(mnt, x.name), now, before.ModTime())
				}
			}
		}
	})
}

func TestUnchangedFlushIsFree(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		path := filepath.Join(mnt, "f")
		write(t, path, pattern(1, 300_000))
		for _, flags := range []int{os.O_WRONLY, os.O_RDWR} {
			f, err := os.OpenFile(path, flags, 0)
			must(t, err)
			for range 3 {
				must(t, f.Sync())
			}
			must(t, f.Close())
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("changed"), 100)
		must(t, err)
		for range 3 {
			must(t, f.Sync())
		}
		must(t, f.Close())
		if got := n.Publishes.Load(); got != 2 {
			t.Errorf("%d publishes, want 2", got)
		}
	})
}

func TestSparseFilesKeepTheirHoles(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		f, err := os.Create(filepath.Join(a, "f"))
		must(t, err)
		_, err = f.WriteAt([]byte("far"), 50<<20)
		must(t, err)
		must(t, f.Truncate(100<<20))
		at, err := f.Seek(0, unix.SEEK_DATA)
		if err != nil || at == 0 || at > 50<<20 {
			t.Errorf("data at %d, %v", at, err)
		}
		must(t, f.Close())
		p := c.Node(1).Pushes()[0]
		total := int64(0)
		for _, e := range p.Data {
			total += e.Length
		}
		if total > 1<<20 {
			t.Errorf("%d bytes pushed of a sparse file", total)
		}
		g, err := os.Open(filepath.Join(b, "f"))
		must(t, err)
		defer g.Close()
		if at, err := g.Seek(0, unix.SEEK_DATA); err != nil || at < 49<<20 || at > 50<<20 {
			t.Errorf("other node: data at %d, %v", at, err)
		}
		var st unix.Stat_t
		must(t, unix.Fstat(int(g.Fd()), &st))
		got := make([]byte, 3)
		if _, err := g.ReadAt(got, 50<<20); err != nil || string(got) != "far" || st.Size != 100<<20 {
			t.Errorf("other node: %q %v, size %d", got, err, st.Size)
		}
	})
}

func TestFallocate(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		f, err := os.Create(filepath.Join(mnt, "f"))
		must(t, err)
		want := pattern(1, 64<<10)
		_, err = f.Write(want)
		must(t, err)
		must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096, 8192))
		clear(want[4096:12288])
		must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_ZERO_RANGE, 60<<10, 8<<10))
		clear(want[60<<10:])
		want = append(want, make([]byte, 4<<10)...)
		must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20))
		must(t, f.Close())
		wantBytes(t, filepath.Join(mnt, "f"), want)
	})
}

func TestCopyFileRange(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		for _, size := range []int{3000, 3 << 20} {
			want := pattern(1, size)
			write(t, filepath.Join(mnt, "src"), want)
			src, err := os.Open(filepath.Join(mnt, "src"))
			must(t, err)
			dst, err := os.Create(filepath.Join(mnt, "dst"))
			must(t, err)
			for left := size; left > 0; {
				n, err := unix.CopyFileRange(int(src.Fd()), nil, int(dst.Fd()), nil, left, 0)
				if err != nil || n == 0 {
					t.Fatalf("copy_file_range: %d %v", n, err)
				}
				left -= n
			}
			must(t, dst.Close())
			must(t, src.Close())
			wantBytes(t, filepath.Join(mnt, "dst"), want)
		}
	})
}

// TestCopyFileRangeFails: where the staged file can't take the bytes, the program gets the error of its disk.
func TestCopyFileRangeFails(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		const size = 3 << 20
		write(t, filepath.Join(mnt, "src"), pattern(1, size))
		src, err := os.Open(filepath.Join(mnt, "src"))
		must(t, err)
		defer src.Close()
		dst, err := os.Create(filepath.Join(mnt, "dst"))
		must(t, err)
		defer dst.Close()
		far := int64(1) << 62 // few file systems have files as long as that
		done, err := unix.CopyFileRange(int(src.Fd()), nil, int(dst.Fd()), &far, size, 0)
		if err == nil && (done <= 0 || done > size) || err != nil && err != unix.EFBIG {
			t.Errorf("copied %d of %d bytes: %v", done, size, err)
		}
		must(t, dst.Truncate(0))
	})
}

func TestTmpfile(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		fd, err := unix.Open(a, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
		must(t, err)
		f := os.NewFile(uintptr(fd), "tmpfile")
		defer f.Close()
		_, err = f.WriteString("hidden")
		must(t, err)
		must(t, f.Sync())
		if c.Node(1).Publishes.Load() != 0 {
			t.Error("published without a name")
		}
		must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, filepath.Join(a, "named"),
			unix.AT_SYMLINK_FOLLOW))
		wantBytes(t, filepath.Join(b, "named"), []byte("hidden"))
		if st, err := os.Stat(filepath.Join(b, "named")); err != nil || st.Mode().Perm() != 0o640 {
			t.Errorf("mode %v %v", st.Mode(), err)
		}
		_, err = f.WriteString(" and more")
		must(t, err)
		must(t, f.Close())
		wantBytes(t, filepath.Join(b, "named"), []byte("hidden and more"))
		wantBytes(t, filepath.Join(a, "named"), []byte("hidden and more"))
		if x, y := inode(t, filepath.Join(a, "named")), inode(t, filepath.Join(b, "named")); x != y {
			t.Errorf("inode %d here, %d there", x, y)
		}
	})
}

func TestMmapStoreAfterCloseReachesEveryNode(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		maps := newMapper(t)
		sizes := []int{8192, 300_000, 300_000}
		if on, _ := c.Node(1).Mounted().Passthrough(); !on {
			sizes = sizes[:2] // the kernel writes a mapping that lives on back only after half a minute
		}
		for i, size := range sizes {
			path := filepath.Join(a, fmt.Sprint("f", i))
			want := pattern(1, size)
			write(t, path, want)
			wantBytes(t, filepath.Join(b, filepath.Base(path)), want)
			for round := range 3 {
				store := fmt.Appendf(nil, "stored after close %d", round)
				if was := maps.do(t, path, 5000+round, store, i < 2); !bytes.Equal(was, want[5000+round:][:len(store)]) {
					t.Errorf("the mapping shows %q", was)
				}
				copy(want[5000+round:], store)
				eventually(t, func() error {
					got, err := os.ReadFile(filepath.Join(b, filepath.Base(path)))
					if err != nil || !bytes.Equal(got, want) {
						return fmt.Errorf("file %d round %d: other node: %d bytes, differ at %d, %v", i, round, len(got),
							firstDiff(got, want), err)
					}
					return nil
				})
			}
		}
	})
}

func TestLargeExistingFileIsAnOverlay(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		const size = 96 << 20
		path := filepath.Join(a, "big")
		want := pattern(1, size)
		write(t, path, want)
		idle(t, c.Node(1))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		for i := range 20 {
			off := int64(i) * 4_321_987
			_, err = f.WriteAt([]byte("dirty block"), off)
			must(t, err)
			copy(want[off:], "dirty block")
		}
		must(t, f.Sync())
		pushes := c.Node(1).Pushes()
		dirty := int64(0)
		for _, e := range pushes[len(pushes)-1].Dirty {
			dirty += e.Length
		}
		if dirty == 0 || dirty > 40*4096 {
			t.Errorf("%d dirty bytes pushed for 20 small writes", dirty)
		}
		must(t, f.Close())
		if got := len(c.Node(1).Pushes()); got != 2 {
			t.Errorf("%d publishes, want 2", got)
		}
		wantBytes(t, filepath.Join(b, "big"), want)
		wantBytes(t, path, want)
		must(t, os.Truncate(path, size/2+7))
		wantBytes(t, filepath.Join(b, "big"), want[:size/2+7])
	})
}

// idle waits until all files that were closed are released too.
func idle(t testing.TB, n *fstest.Node) {
	t.Helper()
	eventually(t, func() error {
		if list, err := n.Store().Stagings(); err != nil || len(list) != 0 {
			return fmt.Errorf("%d staged files, %v", len(list), err)
		}
		return nil
	})
}

func TestFsyncMovesOnlyWhatChanged(t *testing.T) {
	n := fstest.New(t, 1).Node(1)
	mnt := n.Mount(t, nil)
	f, err := os.OpenFile(filepath.Join(mnt, "f"), os.O_CREATE|os.O_RDWR, 0o644)
	must(t, err)
	want := pattern(1, 32<<20)
	_, err = f.Write(want)
	must(t, err)
	must(t, f.Sync())
	_, err = f.WriteAt([]byte("four"), 9<<20)
	must(t, err)
	copy(want[9<<20:], "four")
	must(t, f.Sync())
	last := n.Pushes()[1]
	if len(last.Dirty) != 1 || last.Dirty[0].Length > 4<<10 || last.Base.IsZero() {
		t.Errorf("pushed %+v over %v", last.Dirty, last.Base)
	}
	must(t, f.Close())
	if got := len(n.Pushes()); got != 2 {
		t.Errorf("%d publishes, want 2", got)
	}
	wantBytes(t, filepath.Join(mnt, "f"), want)
}

func TestSetuidIsCleared(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		path := filepath.Join(mnt, "f")
		write(t, path, []byte("x"))
		must(t, os.Chmod(path, 0o6755|os.ModeSetuid|os.ModeSetgid))
		must(t, os.Chown(path, 1000, 1000))
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o755 {
			t.Errorf("after chown: %v %v", st.Mode(), err)
		}
		must(t, os.Chmod(path, 0o777|os.ModeSetuid))
		must(t, os.Chmod(mnt, 0o777))
		cmd := exec.Command("sh", "-c", "echo more >> "+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
		must(t, os.Chmod(filepath.Dir(mnt), 0o755))
		must(t, os.Chmod(filepath.Dir(filepath.Dir(mnt)), 0o777|os.ModeSticky))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Skipf("write as another user: %v %s", err, out)
		}
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o777 {
			t.Errorf("after write: %v %v", st.Mode(), err)
		}
	})
}

func TestReadAtEndAndAppend(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		path := filepath.Join(mnt, "log")
		var want []byte
		for i := range 50 {
			f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			must(t, err)
			line := fmt.Appendf(nil, "line %d\n", i)
			_, err = f.Write(line)
			must(t, err)
			must(t, f.Close())
			want = append(want, line...)
		}
		f, err := os.Open(path)
		must(t, err)
		defer f.Close()
		got, err := io.ReadAll(f)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("log has %d bytes, want %d; %v", len(got), len(want), err)
		}
	})
}

// TestLinkedTmpfileIsListedByItsName: what is written to an O_TMPFILE that got a name belongs to that, should the
// daemon die.
func TestLinkedTmpfileIsListedByItsName(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		fd, err := unix.Open(mnt, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
		must(t, err)
		f := os.NewFile(uintptr(fd), "tmpfile")
		defer f.Close()
		_, err = f.WriteString("bytes")
		must(t, err)
		if list, err := n.Store().Stagings(); err != nil || len(list) != 1 || !fs.Unnamed(list[0].Origin.Ino) {
			t.Errorf("without a name: %+v, %v", list, err)
		}
		must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, filepath.Join(mnt, "named"),
			unix.AT_SYMLINK_FOLLOW))
		list, err := n.Store().Stagings()
		if err != nil || len(list) != 1 || list[0].Origin.Ino != inode(t, filepath.Join(mnt, "named")) ||
			list[0].Origin.Name != "named" {
			t.Errorf("linked: %+v, %v", list, err)
		}
	})
}
