package fs_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/meta"
)

// A file is opened when a commit is applied and the kernel has not been notified of it yet: the kernel remembers the
// size, and perhaps pages, of the version before.
func TestG1OpenBeforeTheKernelIsTold(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for i, sizes := range [][2]int{{754, 1801}, {3000, 100}, {100, 9000}, {9000, 100}, {70_000, 80_000}, {100, 0},
			{0, 100}} {
			name := fmt.Sprint("f", i)
			old, now := pattern(uint64(i), sizes[0]), pattern(uint64(100+i), sizes[1])
			write(t, filepath.Join(a, name), old)
			wantBytes(t, filepath.Join(b, name), old)
			c.Unseen(func() {
				f, err := os.Open(filepath.Join(b, name))
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				got := make([]byte, 100_000)
				n, err := f.ReadAt(got, 0)
				if got = got[:n]; err != io.EOF || !bytes.Equal(got, now) {
					t.Errorf("from %d to %d bytes: read %d, %v; first difference at %d", len(old), len(now), n, err,
						firstDiff(got, now))
				}
				if st, err := f.Stat(); err != nil || st.Size() != int64(len(now)) {
					t.Errorf("from %d to %d bytes: fstat %d, %v", len(old), len(now), st.Size(), err)
				}
			})
			write(t, filepath.Join(a, name), now)
			wantBytes(t, filepath.Join(b, name), now)
		}
	})
}

// What is appended then goes behind the new version.
func TestG7AppendBeforeTheKernelIsTold(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for i, sizes := range [][2]int{{100, 150}, {5000, 9000}, {9000, 5000}} {
			name := fmt.Sprint("f", i)
			now := pattern(uint64(i), sizes[1])
			write(t, filepath.Join(a, name), pattern(9, sizes[0]))
			wantBytes(t, filepath.Join(b, name), pattern(9, sizes[0]))
			opened := make(chan *os.File, 1)
			c.Unseen(func() {
				f, err := os.OpenFile(filepath.Join(b, name), os.O_APPEND|os.O_WRONLY, 0)
				if err != nil {
					t.Error(err)
				}
				opened <- f
			})
			write(t, filepath.Join(a, name), now)
			f := <-opened
			_, err := f.WriteString("more")
			must(t, err)
			must(t, f.Close())
			wantBytes(t, filepath.Join(a, name), append(now, "more"...))
		}
	})
}

// A commit comes while the kernel looks a file up for the first time: the answer may show the state from before, but
// must not stay.
func TestG3CommitDuringLookup(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for i := range 6 {
			name := fmt.Sprint("f", i)
			now := pattern(uint64(i), 2000)
			write(t, filepath.Join(a, name), pattern(9, 1000))
			c.Node(2).AfterRead(i, func() {
				if err := os.WriteFile(filepath.Join(a, name), now, 0o644); err != nil {
					t.Error(err)
				}
			})
			if _, err := os.Stat(filepath.Join(b, name)); err != nil {
				t.Error(err)
			}
			c.Node(2).AfterRead(0, func() {})
			want, err := os.ReadFile(filepath.Join(a, name))
			must(t, err)
			if st, err := os.Stat(filepath.Join(b, name)); err != nil || st.Size() != int64(len(want)) {
				t.Errorf("commit after read %d: size %d, %v; want %d", i, st.Size(), err, len(want))
			}
			wantBytes(t, filepath.Join(b, name), want)
		}
	})
}

// TestG3DirectoryIsChangedWhileItIsMade: the call that makes a directory waits until all nodes show it, and another
// node gives it another mode meanwhile. The first node shows that afterwards.
func TestG3DirectoryIsChangedWhileItIsMade(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		mkdir := func() error { return os.Mkdir(filepath.Join(a, "dir"), 0o755) }
		whileWaiting(t, c.Node(1), isOp[*meta.Create], mkdir, func() { must(t, os.Chmod(filepath.Join(b, "dir"), 0o700)) })
		for _, mnt := range []string{a, b} {
			wantMode(t, filepath.Join(mnt, "dir"), os.ModeDir|0o700)
		}
	})
}
