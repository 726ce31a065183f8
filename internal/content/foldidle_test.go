package content

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// chain stores a plain content and deltas over it, and returns the bytes of the last.
func chain(t *testing.T, s *Store, deltas int) []byte {
	t.Helper()
	data := randomBytes(1, 3*BlockBytes)
	put(t, s, testID(1), Shape{Size: int64(len(data))}, data)
	for i := range deltas {
		off := int64(i*5) * PageBytes
		copy(data[off:], randomBytes(uint64(i+2), PageBytes))
		put(t, s, testID(byte(i+2)), Shape{
			Size: int64(len(data)), Base: testID(byte(i + 1)), BaseSize: int64(len(data)),
			Extents: []Extent{{Off: off, Len: PageBytes}},
		}, data)
	}
	return data
}

// What nobody has open becomes plain once its bases are deleted, and not before.
func TestFoldIdle(t *testing.T) {
	for _, deltas := range []int{1, 2, 9} {
		t.Run(fmt.Sprint(deltas), func(t *testing.T) {
			s := openStore(t, t.TempDir(), Options{})
			data := chain(t, s, deltas)
			last := testID(byte(deltas + 1))
			fold := func(want int) {
				t.Helper()
				if n, err := s.FoldIdle(t.Context()); err != nil || n != want {
					t.Fatalf("folded %d, %v; want %d", n, err, want)
				}
				wantContent(t, s, last, data)
			}
			fold(0)
			for i := range deltas {
				if err := s.Delete(testID(byte(i + 1))); err != nil {
					t.Fatal(err)
				}
			}
			r, err := s.Open(last)
			if err != nil {
				t.Fatal(err)
			}
			fold(0)
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			fold(1)
			if info, err := s.Stat(last); err != nil || info.Depth != 0 {
				t.Fatalf("depth %d, %v", info.Depth, err)
			}
			fold(0)
			if files, _ := filepath.Glob(filepath.Join(s.files.dir, "held", "*", "*")); len(files) != 2 {
				t.Fatalf("files left: %v", files)
			}
		})
	}
}

// An overlay keeps what it is over as it is.
func TestFoldIdleLeavesOverlays(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	data := chain(t, s, 1)
	o, err := s.NewOverlay(testID(1), Origin{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(testID(1)); err != nil {
		t.Fatal(err)
	}
	if n, err := s.FoldIdle(t.Context()); err != nil || n != 0 {
		t.Fatalf("folded %d, %v", n, err)
	}
	if err := o.Drop(); err != nil {
		t.Fatal(err)
	}
	if n, err := s.FoldIdle(t.Context()); err != nil || n != 1 {
		t.Fatalf("folded %d, %v", n, err)
	}
	wantContent(t, s, testID(2), data)
	if _, err := os.Stat(s.files.streamPath(testID(1), ID{})); !os.IsNotExist(err) {
		t.Fatalf("the base is left: %v", err)
	}
}
