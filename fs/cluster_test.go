package fs_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// pair mounts two nodes.
func pair(t *testing.T, change func(*fs.Options)) (c *fstest.Cluster, a, b string) {
	t.Helper()
	c = fstest.New(t, 2)
	return c, c.Node(1).Mount(t, change), c.Node(2).Mount(t, change)
}

func eachPair(t *testing.T, f func(t *testing.T, c *fstest.Cluster, a, b string)) {
	for name, change := range modes {
		t.Run(name, func(t *testing.T) {
			c, a, b := pair(t, change)
			f(t, c, a, b)
		})
	}
}

func TestG3RemoteCommitIsVisibleAtOnce(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for i := range 200 {
			name := fmt.Sprint("f", i%7)
			if i < 7 {
				if _, err := os.Stat(filepath.Join(b, name)); !os.IsNotExist(err) {
					t.Fatalf("stat before it exists: %v", err)
				}
			}
			want := pattern(uint64(i), 100+i*i%9000)
			write(t, filepath.Join(a, name), want)
			st, err := os.Stat(filepath.Join(b, name))
			if err != nil || st.Size() != int64(len(want)) {
				t.Fatalf("round %d: stat on the other node: %v %v, want %d bytes", i, st, err, len(want))
			}
			wantBytes(t, filepath.Join(b, name), want)
			a, b = b, a
		}
	})
}

func TestG1OpenHandlesKeepTheirVersion(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		var open []*os.File
		for i := range 20 {
			write(t, filepath.Join(a, "f"), pattern(uint64(i), 3000+i*1000))
			f, err := os.Open(filepath.Join(b, "f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			open = append(open, f)
		}
		for i, f := range open {
			got, err := io.ReadAll(f)
			if err != nil || !bytes.Equal(got, pattern(uint64(i), 3000+i*1000)) {
				t.Errorf("version %d: %d bytes, %v", i, len(got), err)
			}
			st, err := f.Stat()
			if err != nil || st.Size() != int64(3000+i*1000) {
				t.Errorf("version %d: fstat %v %v", i, st, err)
			}
		}
	})
}

// An open for reading, and truncate(2), never return ESTALE, even if others open, rewrite and cut the file meanwhile.
func TestNobodyIsStale(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	eachMode(t, func(t *testing.T, _ *fstest.Node, mnt string) {
		path := filepath.Join(mnt, "f")
		write(t, path, make([]byte, 9000))
		ctx, cancel := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		defer readers.Wait()
		defer cancel()
		for range 4 {
			readers.Go(func() {
				for ctx.Err() == nil {
					if _, err := os.ReadFile(path); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for i := range rounds {
			must(t, os.Truncate(path, int64(100+i)))
			if st, err := os.Stat(path); err != nil || st.Size() != int64(100+i) {
				t.Fatalf("%v, %v", st, err)
			}
			write(t, path, make([]byte, 5000+i))
		}
	})
}

// keepBusy loads the machine until the returned function is called.
func keepBusy(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 * runtime.NumCPU() {
		wg.Go(func() {
			for ctx.Err() == nil {
				runtime.Gosched()
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

func TestNamesAcrossNodes(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		must(t, os.MkdirAll(filepath.Join(a, "d/e"), 0o755))
		write(t, filepath.Join(b, "d/e/f"), []byte("1"))
		wantBytes(t, filepath.Join(a, "d/e/f"), []byte("1"))
		must(t, os.Rename(filepath.Join(a, "d/e/f"), filepath.Join(a, "d/g")))
		if _, err := os.Stat(filepath.Join(b, "d/e/f")); !os.IsNotExist(err) {
			t.Errorf("old name on the other node: %v", err)
		}
		wantBytes(t, filepath.Join(b, "d/g"), []byte("1"))
		must(t, os.Chmod(filepath.Join(b, "d/g"), 0o600))
		if st, err := os.Stat(filepath.Join(a, "d/g")); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("mode on the other node: %v %v", st.Mode(), err)
		}
		must(t, os.Remove(filepath.Join(a, "d/g")))
		if _, err := os.Stat(filepath.Join(b, "d/g")); !os.IsNotExist(err) {
			t.Errorf("removed name on the other node: %v", err)
		}
		must(t, os.Symlink("x", filepath.Join(b, "l")))
		if to, err := os.Readlink(filepath.Join(a, "l")); err != nil || to != "x" {
			t.Errorf("symlink: %q %v", to, err)
		}
		must(t, os.Remove(filepath.Join(a, "d/e")))
		names, err := os.ReadDir(filepath.Join(b, "d"))
		if err != nil || len(names) != 0 {
			t.Errorf("directory on the other node: %v %v", names, err)
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func inode(t testing.TB, path string) uint64 {
	t.Helper()
	st, err := os.Stat(path)
	must(t, err)
	return st.Sys().(*syscall.Stat_t).Ino
}

func TestHardLinkReadBack(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		write(t, filepath.Join(a, "a"), []byte("0"))
		must(t, os.Link(filepath.Join(a, "a"), filepath.Join(a, "b")))
		ino := inode(t, filepath.Join(a, "a"))
		for i := range rounds {
			want := fmt.Append(nil, "round ", i)
			write(t, filepath.Join(a, "a"), want)
			wantBytes(t, filepath.Join(a, "b"), want)
			wantBytes(t, filepath.Join(b, "b"), want)
			for _, p := range []string{filepath.Join(a, "b"), filepath.Join(b, "a"), filepath.Join(b, "b")} {
				if got := inode(t, p); got != ino {
					t.Fatalf("inode of %s: %d, want %d", p, got, ino)
				}
			}
		}
	})
}

func TestG7ConflictKeepsTheLoser(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		write(t, filepath.Join(a, "f"), []byte("base"))
		fa, err := os.OpenFile(filepath.Join(a, "f"), os.O_RDWR, 0)
		must(t, err)
		fb, err := os.OpenFile(filepath.Join(b, "f"), os.O_RDWR, 0)
		must(t, err)
		_, err = fa.WriteAt([]byte("from a"), 0)
		must(t, err)
		_, err = fb.WriteAt([]byte("from b"), 0)
		must(t, err)
		must(t, fa.Close())
		must(t, fb.Close())
		wantBytes(t, filepath.Join(a, "f"), []byte("from b"))
		wantBytes(t, filepath.Join(b, "f"), []byte("from b"))
		kept, err := c.Node(1).Names().Kept(10)
		if err != nil || len(kept) != 1 {
			t.Fatalf("kept versions: %v %v", kept, err)
		}
		loser, err := c.Node(1).Names().InlineBytes(kept[0].ID)
		if err != nil || string(loser) != "from a" {
			t.Errorf("loser: %q %v", loser, err)
		}
	})
}

func TestReservedNameIsSeenByItsWriterOnly(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		f, err := os.Create(filepath.Join(a, "f"))
		must(t, err)
		_, err = f.WriteString("half")
		must(t, err)
		if _, err := os.Stat(filepath.Join(a, "f")); err != nil {
			t.Errorf("writer: %v", err)
		}
		if _, err := os.Stat(filepath.Join(b, "f")); !os.IsNotExist(err) {
			t.Errorf("other node sees a file that was never closed: %v", err)
		}
		if _, err := os.OpenFile(filepath.Join(b, "f"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); !os.IsExist(err) {
			t.Errorf("exclusive create of a reserved name: %v", err)
		}
		must(t, f.Close())
		wantBytes(t, filepath.Join(b, "f"), []byte("half"))
	})
}

func TestRemovedRemotelyBecomesAnOrphan(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		write(t, filepath.Join(a, "f"), []byte("base"))
		f, err := os.OpenFile(filepath.Join(a, "f"), os.O_RDWR, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("later"), 0)
		must(t, err)
		must(t, os.Remove(filepath.Join(b, "f")))
		must(t, f.Close())
		kept, err := c.Node(1).Names().Kept(10)
		if err != nil || len(kept) != 1 {
			t.Fatalf("kept: %v %v", kept, err)
		}
	})
}

func TestRemovedHerePublishesNothing(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		f, err := os.Create(filepath.Join(mnt, "f"))
		must(t, err)
		must(t, os.Remove(filepath.Join(mnt, "f")))
		_, err = f.WriteString("nobody wants it")
		must(t, err)
		must(t, f.Sync())
		if st, err := f.Stat(); err != nil || st.Sys().(*syscall.Stat_t).Nlink != 0 || st.Size() != 15 {
			t.Errorf("fstat: %+v %v", st, err)
		}
		must(t, f.Close())
		if n.Publishes.Load() != 0 {
			t.Errorf("%d publishes of an unlinked file", n.Publishes.Load())
		}
	})
}

func TestRenameOfAStagedFilePublishesFirst(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		write(t, filepath.Join(a, "target"), []byte("old"))
		f, err := os.Create(filepath.Join(a, "new"))
		must(t, err)
		_, err = f.WriteString("new bytes")
		must(t, err)
		must(t, os.Rename(filepath.Join(a, "new"), filepath.Join(a, "target")))
		wantBytes(t, filepath.Join(b, "target"), []byte("new bytes"))
		must(t, f.Close())
		if got := c.Node(1).Publishes.Load(); got != 2 {
			t.Errorf("%d publishes, want 2", got)
		}
	})
}

func TestFailedPublishIsEIOAndKept(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		write(t, filepath.Join(mnt, "old"), []byte("old"))
		n.Before(fstest.EIO)
		for _, name := range []string{"new", "old"} {
			f, err := os.OpenFile(filepath.Join(mnt, name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
			must(t, err)
			_, err = f.WriteString("bytes of " + name)
			must(t, err)
			if err := f.Close(); err == nil {
				t.Errorf("%s: close succeeded", name)
			}
		}
		n.Before(nil)
		eventually(t, func() error {
			list, err := n.Store().Stagings()
			if err != nil || len(list) != 2 || list[0].Open || list[1].Open {
				return fmt.Errorf("unpublished: %+v %v", list, err)
			}
			if _, err := os.Stat(filepath.Join(mnt, "new")); !os.IsNotExist(err) {
				return fmt.Errorf("name without a version: %v", err)
			}
			return nil
		})
		wantBytes(t, filepath.Join(mnt, "old"), []byte("old"))
	})
}

func TestNoQuorumIsReadOnly(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		write(t, filepath.Join(mnt, "f"), []byte("there"))
		n.ReadOnly(true)
		defer n.ReadOnly(false)
		if err := os.Mkdir(filepath.Join(mnt, "d"), 0o755); err == nil || !isErrno(err, syscall.EROFS) {
			t.Errorf("mkdir: %v", err)
		}
		wantBytes(t, filepath.Join(mnt, "f"), []byte("there"))
	})
}

func TestFlushesCoalesce(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		gate := make(chan struct{})
		entered := make(chan struct{}, 100)
		n.Before(func(ctx context.Context, _ replicate.Push) error {
			entered <- struct{}{}
			<-gate
			return nil
		})
		f, err := os.Create(filepath.Join(mnt, "f"))
		must(t, err)
		_, err = f.WriteString("x")
		must(t, err)
		const callers = 20
		results := make(chan error, callers)
		closeDup := func() { // not fsync, during which the kernel lets nobody write
			dup, err := syscall.Dup(int(f.Fd()))
			if err == nil {
				err = syscall.Close(dup)
			}
			results <- err
		}
		go closeDup()
		<-entered
		_, err = f.WriteString("y")
		must(t, err)
		for range callers - 1 {
			go closeDup()
		}
		close(gate)
		for range callers {
			must(t, <-results)
		}
		must(t, f.Close())
		if got := n.Publishes.Load(); got < 2 || got > 4 {
			t.Errorf("%d publishes for %d flushes of two changes", got, callers)
		}
		wantBytes(t, filepath.Join(mnt, "f"), []byte("xy"))
	})
}

// What was changed before the last name went is what fstat shows after.
func TestRemovedFileKeepsItsLastAttributes(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		write(t, path, []byte("bytes"))
		f, err := os.Open(filepath.Join(b, "f"))
		must(t, err)
		defer f.Close()
		when := time.Unix(1e9, 5)
		must(t, os.Chtimes(path, when, when))
		must(t, os.Remove(path))
		st, err := f.Stat()
		must(t, err)
		if !st.ModTime().Equal(when) || st.Sys().(*syscall.Stat_t).Nlink != 0 || st.Size() != 5 {
			t.Errorf("fstat after the removal: %+v, want mtime %v", st.Sys(), when)
		}
	})
}

// A program that has an older version open sees the current attributes through it, and that the last name is gone.
func TestAttributesOfAnOlderVersion(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for _, here := range []string{b} {
			path := filepath.Join(a, "f")
			write(t, path, []byte("old"))
			f, err := os.Open(filepath.Join(here, "f"))
			must(t, err)
			write(t, path, []byte("newer"))
			wantBytes(t, filepath.Join(here, "f"), []byte("newer"))
			if st, err := f.Stat(); err != nil || st.Mode() != 0o644 || st.Size() != 3 {
				t.Errorf("%s: %v %d, %v", here, st.Mode(), st.Size(), err)
			}
			must(t, os.Chmod(path, 0o600))
			eventually(t, func() error { // the kernel soon learns that it has to ask
				if st, err := f.Stat(); err != nil || st.Mode() != 0o600 || st.Size() != 3 {
					return fmt.Errorf("%s: after chmod %v %d, %v", here, st.Mode(), st.Size(), err)
				}
				return nil
			})
			must(t, os.Remove(path))
			if st, err := f.Stat(); err != nil || st.Sys().(*syscall.Stat_t).Nlink != 0 {
				t.Errorf("%s: after the removal %+v, %v", here, st.Sys(), err)
			}
			must(t, f.Close())
		}
	})
}
