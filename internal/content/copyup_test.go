package content

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// shareBytes does what FICLONE does, for a file system that can't: it checks nothing.
func shareBytes(dst, src *os.File) error {
	_, err := io.Copy(dst, io.NewSectionReader(src, 0, 1<<40))
	return err
}

// TestCloneOfDamagedBytes: bytes that are damaged on the disk never become staged bytes, and damage that is found after
// the clone is reported.
func TestCloneOfDamagedBytes(t *testing.T) {
	for _, size := range []int64{3 << 20, CopyUpBytesMax + 1<<20} {
		dir := t.TempDir()
		opt := Options{Clone: shareBytes}
		s := openStore(t, dir, opt)
		want := randomBytes(1, size)
		put(t, s, testID(1), Shape{Size: size}, want)
		st, err := s.CopyUp(testID(1), Origin{Ino: 1}) // received and checked by this store: cloned
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(st.File().Name())
		if err != nil || !bytes.Equal(got, want) || st.Sound() != nil {
			t.Fatalf("%d bytes: %v, %v", size, err, st.Sound())
		}
		rotAt(t, dir, 2*BlockBytes+5)
		if damage, err := s.Check(t.Context(), testID(1)); err != nil || damage == nil {
			t.Fatalf("damage: %v, %v", damage, err)
		}
		if err := s.Mend(t.Context(), testID(1), 2, want[2*BlockBytes:][:min(BlockBytes, size-2*BlockBytes)]); err != nil {
			t.Fatal(err)
		}
		if damage, err := s.Check(t.Context(), testID(1)); err != nil || damage != nil {
			t.Fatalf("mended: %v, %v", damage, err)
		}
		if err := st.Sound(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes: a clone of what was damaged: %v", size, err)
		}
		if err := errors.Join(st.Drop(), s.Close()); err != nil {
			t.Fatal(err)
		}

		s = openStore(t, dir, opt)
		rotAt(t, dir, 2*BlockBytes+5) // and nobody has looked yet
		wanted := ErrCorrupt
		if size > CopyUpBytesMax {
			wanted = ErrTooLarge
		}
		if st, err := s.CopyUp(testID(1), Origin{Ino: 1}); !errors.Is(err, wanted) {
			got, _ := os.ReadFile(st.File().Name())
			t.Errorf("%d bytes, damaged before: staged %t, %v", size, bytes.Equal(got, want), err)
			_ = st.Drop()
		}
	}
}

// rotAt inverts a byte of the only data file.
func rotAt(t *testing.T, dir string, off int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "held/*/*.data"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	f, err := os.OpenFile(files[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{^b[0]}, off); err != nil {
		t.Fatal(err)
	}
}
