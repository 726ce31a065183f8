package fs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"golang.org/x/sys/unix"
)

// stored is a content as its other holders have it.
type stored struct{ *bytes.Reader }

func (stored) Fd() int      { return -1 }
func (stored) Close() error { return nil }

func openStore(t *testing.T, dir string) *content.Store {
	t.Helper()
	store, err := content.Open(dir, content.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	return store
}

// TestCopyUpOfDamagedBytes: a file whose bytes are damaged here is opened for writing with the bytes of another holder.
func TestCopyUpOfDamagedBytes(t *testing.T) {
	dir := t.TempDir()
	store := openStore(t, dir)
	want := pattern(1, 3<<20)
	id := meta.ContentID{Node: 1, Incarnation: 1, Seq: 1}
	_, err := store.Put(t.Context(), content.ID(id.Bytes()), content.Shape{Size: int64(len(want))}, bytes.NewReader(want))
	must(t, err)
	must(t, store.Commit(content.ID(id.Bytes())))
	files, err := filepath.Glob(filepath.Join(dir, "held/*/*.data"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("rotten"), 1<<20)
	must(t, err)
	must(t, f.Close())

	staging := fs.NewStaging(store, func() meta.Lease { return meta.Lease{Node: 1, Incarnation: 1} })
	staged, err := staging.CopyUp(t.Context(), fs.StageInfo{Ino: 2, Path: "/f", Base: id}, stored{bytes.NewReader(want)})
	must(t, err)
	got := make([]byte, len(want))
	if _, err := staged.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("staged bytes differ at %d, %v", firstDiff(got, want), err)
	}
	must(t, staged.Drop())
}

// TestStagedNames: what has no name yet is listed without one, and is not taken for the root.
func TestStagedNames(t *testing.T) {
	store := openStore(t, t.TempDir())
	staging := fs.NewStaging(store, func() meta.Lease { return meta.Lease{Node: 1, Incarnation: 1} })
	for path, want := range map[string]string{"/": "", "/f": "f", "/d/e": "e"} {
		staged, err := staging.Create(fs.StageInfo{Ino: 2, Path: path})
		must(t, err)
		list, err := store.Stagings()
		if err != nil || len(list) != 1 || list[0].Origin.Name != want {
			t.Errorf("%s: %+v, %v", path, list, err)
		}
		must(t, staged.Drop())
	}
}

// TestOverlayOverDamagedBytes: what is damaged of a large file here is read from another holder also while the file
// is open for writing, and counts as no change.
func TestOverlayOverDamagedBytes(t *testing.T) {
	for name, use := range map[string]func(want []byte, s fs.Staged) error{
		"read": func([]byte, fs.Staged) error { return nil },
		"write in a page": func(want []byte, s fs.Staged) error {
			_, err := s.WriteAt(want[rottenAt+5000:][:100], rottenAt+5000)
			return err
		},
		"write over pages": func(want []byte, s fs.Staged) error {
			_, err := s.WriteAt(want[rottenAt-1000:][:10_000], rottenAt-1000)
			return err
		},
		"cut": func(want []byte, s fs.Staged) error {
			clear(want[rottenAt+10:])
			return errors.Join(s.Truncate(rottenAt+10), s.Truncate(int64(len(want))))
		},
		"punch": func(want []byte, s fs.Staged) error {
			clear(want[rottenAt+10:][:9000])
			return s.Allocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, rottenAt+10, 9000)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			store := openStore(t, dir)
			want := pattern(1, 20<<20)
			id := storeRotten(t, store, dir, want)
			staging := fs.NewStaging(store, func() meta.Lease { return meta.Lease{Node: 1, Incarnation: 1} })
			staged, err := staging.CopyUp(t.Context(), fs.StageInfo{Ino: 2, Path: "/f", Base: id},
				stored{bytes.NewReader(bytes.Clone(want))})
			must(t, err)
			defer func() { must(t, staged.Drop()) }()
			if err := use(want, staged); err != nil {
				t.Error(err)
			}
			snap, err := staged.Snapshot()
			must(t, err)
			for _, src := range []io.ReaderAt{staged, snap.Source} {
				got := make([]byte, len(want))
				if _, err := src.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
					t.Errorf("staged bytes differ at %d, %v", firstDiff(got, want), err)
				}
			}
			dirty := int64(0)
			for _, e := range snap.Dirty {
				dirty += e.Length
			}
			if name != "cut" && dirty > 16<<10 {
				t.Errorf("%d bytes changed", dirty)
			}
			snap.Done(meta.ContentID{}, false)
		})
	}
}

const rottenAt = 7<<20 + 30_000

// storeRotten stores a content and damages it.
func storeRotten(t *testing.T, store *content.Store, dir string, p []byte) meta.ContentID {
	t.Helper()
	id := meta.ContentID{Node: 1, Incarnation: 1, Seq: 1}
	_, err := store.Put(t.Context(), content.ID(id.Bytes()), content.Shape{Size: int64(len(p))}, bytes.NewReader(p))
	must(t, err)
	must(t, store.Commit(content.ID(id.Bytes())))
	files, err := filepath.Glob(filepath.Join(dir, "held/*/*.data"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("rotten"), rottenAt)
	must(t, err)
	must(t, f.Close())
	return id
}

// TestRotOfACloneIsNotPublished: staged bytes that share the disk's blocks with the version they were made from share
// its damage. That is no change by anybody: close fails and the bytes are kept.
func TestRotOfACloneIsNotPublished(t *testing.T) {
	for mode, change := range modes {
		t.Run(mode, func(t *testing.T) {
			cloned := make(chan []string, 1) // files that share their blocks
			n := fstest.NewWith(t, 1, content.Options{Clone: func(dst, src *os.File) error {
				cloned <- []string{dst.Name(), src.Name()}
				_, err := io.Copy(dst, io.NewSectionReader(src, 0, 1<<40))
				return err
			}}).Node(1)
			mnt := n.Mount(t, change)
			want := pattern(1, 3<<20)
			write(t, filepath.Join(mnt, "f"), want)
			idle(t, n)
			f, err := os.OpenFile(filepath.Join(mnt, "f"), os.O_RDWR, 0)
			must(t, err)
			_, err = f.WriteAt([]byte("changed"), 100)
			must(t, err)
			var files []string
			select {
			case files = <-cloned:
			default:
				t.Fatal("not cloned")
			}
			for _, name := range files {
				g, err := os.OpenFile(name, os.O_WRONLY, 0)
				must(t, err)
				_, err = g.WriteAt([]byte("rotten"), 2<<20)
				must(t, err)
				must(t, g.Close())
			}
			n.Elsewhere(bytes.NewReader(want))
			if err := f.Close(); !errors.Is(err, syscall.EIO) {
				t.Errorf("close: %v", err)
			}
			if got := n.Publishes.Load(); got != 1 {
				t.Errorf("%d publishes, want 1", got)
			}
			eventually(t, func() error {
				list, err := n.Store().Stagings()
				if err != nil || len(list) != 1 || !strings.Contains(list[0].Reason, "damaged") {
					return fmt.Errorf("kept: %+v, %v", list, err)
				}
				return nil
			})
		})
	}
}
