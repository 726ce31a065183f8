package fs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
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

// TestCopyUpOfDamagedBytes: a file whose bytes are damaged here is opened for writing with those of another holder.
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
