package meta_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/durable"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

func openDisk(tb testing.TB, dir string) *meta.DB {
	tb.Helper()
	db, err := meta.Open(dir, meta.Options{ReserveBytes: 8 << 20})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

func TestOpenDisk(t *testing.T) {
	dir := t.TempDir()
	db := openDisk(t, dir)
	c := metatest.Over(t, db, 2)
	d := mkdir(c, meta.RootIno, "d")
	f := file(c, d, "f")
	if _, err := meta.Open(dir, meta.Options{}); !errors.Is(err, meta.ErrLocked) {
		t.Fatalf("second open: %v", err)
	}
	index, sum := db.Digest()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Inode(f); err != meta.ErrClosed {
		t.Fatal(err)
	}
	again := openDisk(t, dir)
	if i, s := again.Digest(); i != index || s != sum {
		t.Fatalf("index %d digest %x, want %d %x", i, s, index, sum)
	}
	if i, err := again.Lookup(d, "f", meta.Lease{}); err != nil || i.Ino != f {
		t.Fatal(i, err)
	}
	if b, err := again.InlineBytes(mustInode(t, again, f).Content); err != nil || string(b) != "f" {
		t.Fatal(b, err)
	}
}

func mustInode(tb testing.TB, db meta.Reader, ino meta.Ino) meta.Inode {
	tb.Helper()
	i, err := db.Inode(ino)
	if err != nil {
		tb.Fatal(err)
	}
	return i
}

// The state's directory outlives a power failure, with its name in the data directory.
func TestOpenSyncsTheDirectory(t *testing.T) {
	stop := durable.Record()
	dir := filepath.Join(t.TempDir(), "state")
	openDisk(t, dir)
	synced := stop()
	for _, want := range []string{dir, filepath.Dir(dir)} {
		if !slices.Contains(synced, want) {
			t.Errorf("%s was not synced, only %q", want, synced)
		}
	}
}
