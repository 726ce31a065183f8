package content

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
)

// heldFiles lists the files of all contents.
func heldFiles(t testing.TB, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "held"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// damagedStore makes a store with a plain, a sparse, a small and two delta contents.
func damagedStore(t testing.TB, dir string) map[ID][]byte {
	s := openStore(t, dir, Options{})
	want := map[ID][]byte{
		testID(1): randomBytes(1, 2*BlockBytes+5000),
		testID(2): append(make([]byte, 2*BlockBytes), randomBytes(2, 200_000)...),
		testID(3): randomBytes(3, 5000),
	}
	put(t, s, testID(1), Shape{Size: int64(len(want[testID(1)]))}, want[testID(1)])
	put(t, s, testID(2), Shape{Size: int64(len(want[testID(2)])), Holes: blockset.All(2)}, want[testID(2)])
	put(t, s, testID(3), Shape{Size: 5000}, want[testID(3)])
	for n, size := range map[byte]int64{4: 300, 5: 150_000} {
		p := bytes.Clone(want[testID(1)])
		copy(p[BlockBytes-100:], randomBytes(uint64(n), size))
		put(t, s, testID(n), Shape{Size: int64(len(p)), Base: testID(1), BaseSize: int64(len(p)),
			Extents: []Extent{{Off: BlockBytes - 100, Len: size}}}, p)
		want[testID(n)] = p
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return want
}

// TestDamageIsNeverRead flips, cuts and zeroes bytes of every file. A read gives right bytes or an error, a
// scrub finds what was changed, and nothing panics.
func TestDamageIsNeverRead(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	want := damagedStore(t, dir)
	for _, path := range heldFiles(t, dir) {
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for round := range 12 {
			p := bytes.Clone(whole)
			switch at := r.IntN(len(p)); round % 4 {
			case 0:
				p[at] ^= 1 << r.IntN(8)
			case 1:
				p = p[:at]
			case 2:
				clear(p[at/512*512 : min(len(p), at/512*512+512)])
			case 3:
				at = r.IntN(min(len(p), 400)) // header and shape
				p[at] ^= byte(1 + r.IntN(255))
			}
			if bytes.Equal(p, whole) {
				continue
			}
			if err := os.WriteFile(path, p, 0o600); err != nil {
				t.Fatal(err)
			}
			s := openStore(t, dir, Options{})
			readDamaged(t, s, want)
			report, err := s.Scrub(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Damaged) == 0 {
				t.Fatalf("%s, round %d: scrub finds nothing", filepath.Base(path), round)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// readDamaged reads everything; it may fail but not be wrong.
func readDamaged(t *testing.T, s *Store, want map[ID][]byte) {
	for id, p := range want {
		r, err := s.Open(id)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrFormat) {
				t.Errorf("open %s: %v", id, err)
			}
			continue
		}
		buf := make([]byte, 100_000)
		for off := int64(0); off < r.Size(); off += 77_777 {
			n, err := r.ReadAt(buf, off)
			if err != nil && err != io.EOF && !errors.Is(err, ErrCorrupt) {
				t.Errorf("read %s: %v", id, err)
			}
			if off+int64(n) > int64(len(p)) || !bytes.Equal(buf[:n], p[off:off+int64(n)]) {
				t.Errorf("wrong bytes of %s at %d", id, off)
			}
		}
		r.Close()
	}
}

// TestMend damages bytes and rows and mends block by block from good bytes.
func TestMend(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	dir := t.TempDir()
	want := damagedStore(t, dir)
	for round := range 30 {
		files := heldFiles(t, dir)
		path := files[r.IntN(len(files))]
		p, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		first := 0
		if !strings.Contains(path, ".delta") && !strings.Contains(path, ".data") {
			first = headerBytes + 60 // rows, leaves and inline bytes; header and shape can't be mended
		}
		at := first + r.IntN(len(p)-first)
		if strings.HasPrefix(filepath.Base(path), testID(2).String()) && strings.HasSuffix(path, ".data") {
			at = 2*BlockBytes + r.IntN(200_000)
		}
		p[at] ^= 0x55
		if err := os.WriteFile(path, p, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openStore(t, dir, Options{})
		report, err := s.Scrub(t.Context(), 0)
		if err != nil || len(report.Damaged) == 0 {
			t.Fatalf("round %d, %s at %d: %+v, %v", round, filepath.Base(path), at, report, err)
		}
		for _, d := range report.Damaged {
			mendAll(t, s, d, want[d.ID])
		}
		for id, p := range want {
			wantContent(t, s, id, p)
		}
		if report, err := s.Scrub(t.Context(), 0); err != nil || len(report.Damaged) != 0 || len(s.Damaged()) != 0 {
			t.Fatalf("round %d, %s at %d: after mending: %+v, %v", round, filepath.Base(path), at, report, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func mendAll(t *testing.T, s *Store, d Damage, p []byte) {
	t.Helper()
	if len(d.Blocks) == 0 {
		t.Fatalf("no blocks to mend: %v", d.Err)
	}
	for _, i := range d.Blocks {
		block := bytes.Clone(p[i*BlockBytes : min((i+1)*BlockBytes, int64(len(p)))])
		block[3] ^= 1
		if err := s.Mend(t.Context(), d.ID, i, block); !errors.Is(err, ErrMismatch) {
			t.Fatalf("mend with wrong bytes: %v", err)
		}
		block[3] ^= 1
		if err := s.Mend(t.Context(), d.ID, i, block); err != nil {
			t.Fatalf("mend %s block %d: %v (%v)", d.ID, i, err, d.Err)
		}
	}
}

// A data file that was cut, or that grew, is not opened: a program that reads the file itself would see the wrong
// length. This holds for plain contents and for the extents of a delta.
func TestDataFileOfAnotherLengthIsNotServed(t *testing.T) {
	dir := t.TempDir()
	want := damagedStore(t, dir)
	for _, path := range heldFiles(t, dir) {
		if !strings.HasSuffix(path, ".data") && !strings.HasSuffix(path, ".delta") {
			continue
		}
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, by := range []int64{-1, 1} {
			s := openStore(t, dir, Options{})
			must(t, os.Truncate(path, st.Size()+by)) // under an open store: nothing has looked at it since
			refused := 0
			for id := range want {
				if r, err := s.Open(id); errors.Is(err, ErrCorrupt) {
					refused++
				} else if must(t, err); r != nil {
					must(t, r.Close())
				}
			}
			if refused == 0 {
				t.Errorf("%s is served with %d bytes more", filepath.Base(path), by)
			}
			must(t, s.Close())
			must(t, os.Truncate(path, st.Size()))
		}
	}
}
