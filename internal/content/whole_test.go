package content

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// A content without its bytes, or with too few or too many of them, is found not to be whole at every start, and so is
// a delta over it. A content that was not touched is whole.
func TestHollowContentIsNotWhole(t *testing.T) {
	for _, harm := range []struct {
		name, file string
		do         func(path string) error
		hollow     []byte // ids
	}{
		{"nothing", "", nil, nil},
		{"data gone", testID(1).String() + ".data", os.Remove, []byte{1, 4, 5}},
		{"data cut", testID(1).String() + ".data", func(p string) error { return os.Truncate(p, 4096) }, []byte{1, 4, 5}},
		{"data grown", testID(2).String() + ".data", func(p string) error { return os.Truncate(p, 9<<20) }, []byte{2}},
		{"sidecar empty", testID(3).String() + ".meta", func(p string) error { return os.Truncate(p, 0) }, []byte{3}},
		{"small sidecar cut", testID(3).String() + ".meta", cutByOne, []byte{3}},
		{"plain sidecar cut", testID(1).String() + ".meta", cutByOne, []byte{1, 4, 5}},
		{"sparse sidecar cut", testID(2).String() + ".meta", cutByOne, []byte{2}},
		{"small delta's sidecar cut", testID(4).String() + "+" + testID(1).String() + ".meta", cutByOne, []byte{4}},
		{"delta's sidecar cut", testID(5).String() + "+" + testID(1).String() + ".meta", cutByOne, []byte{5}},
		{"delta gone", testID(5).String() + "+" + testID(1).String() + ".delta", os.Remove, []byte{5}},
	} {
		dir := t.TempDir()
		want := damagedStore(t, dir)
		for _, path := range heldFiles(t, dir) {
			if harm.do != nil && strings.HasSuffix(path, "/"+harm.file) {
				if err := harm.do(path); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 2 { // it stays so over a restart
			s, err := Open(dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for id, b := range want {
				whole := !strings.ContainsRune(string(harm.hollow), rune(id[15]))
				if got := s.Whole(id, int64(len(b))); got != whole {
					t.Errorf("%s: content %d whole: %v", harm.name, id[15], got)
				}
				if got := s.Whole(id, int64(len(b))); got != whole {
					t.Errorf("%s: content %d whole at the second look: %v", harm.name, id[15], got)
				}
				if info, _ := s.Stat(id); info.Damaged == whole {
					t.Errorf("%s: content %d damaged: %v", harm.name, id[15], info.Damaged)
				}
			}
			if s.Whole(testID(9), 1) {
				t.Errorf("%s: a content that never was is whole", harm.name)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A content whose file goes while the store is open is not whole at the next look. What was looked at before is not
// looked at again otherwise.
func TestLookSeesWhatHasChanged(t *testing.T) {
	dir := t.TempDir()
	want := damagedStore(t, dir)
	s := openStore(t, dir, Options{})
	size := int64(len(want[testID(2)]))
	if !s.Whole(testID(2), size) || !s.Look(testID(2), size) {
		t.Fatal("what was not touched is not whole")
	}
	for _, path := range heldFiles(t, dir) {
		if strings.HasSuffix(path, testID(2).String()+".data") {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !s.Whole(testID(2), size) {
		t.Error("it was looked at again")
	}
	if s.Look(testID(2), size) {
		t.Error("a content without its file is whole")
	}
	if info, _ := s.Stat(testID(2)); !info.Damaged {
		t.Error("it is not damaged then")
	}
}

// cutByOne takes the last byte of a file away.
func cutByOne(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, st.Size()-1)
}

// BenchmarkWhole is the look at the files of 10,000 contents of 100,000 bytes at a start.
func BenchmarkWhole(b *testing.B) {
	const contents, bytes = 10_000, 100_000
	dir := b.TempDir()
	s, err := Open(dir, Options{})
	if err != nil {
		b.Fatal(err)
	}
	id := func(i int) ID { return ID{0: 7, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)} }
	side := flatHeader(bytes)
	for i := range contents { // names and lengths are all that is looked at
		if err := os.MkdirAll(s.files.shardDir(id(i)), 0o700); err != nil {
			b.Fatal(err)
		}
		for path, n := range map[string]int64{s.files.sidecarPath(id(i), ID{}, Committed): side.fileBytes(),
			s.files.streamPath(id(i), ID{}): bytes} {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				b.Fatal(err)
			}
			if err := os.Truncate(path, n); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s, err := Open(dir, Options{})
		if err != nil {
			b.Fatal(err)
		}
		var looks sync.WaitGroup
		for first := range 16 { // at once, as at a start
			looks.Go(func() {
				for i := first; i < contents; i += 16 {
					if !s.Whole(id(i), bytes) {
						b.Error(i)
					}
				}
			})
		}
		looks.Wait()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
