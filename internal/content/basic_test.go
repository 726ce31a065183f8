package content

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/zeebo/blake3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testID makes an id from a number.
func testID(n byte) ID { return ID{0: 7, 15: n} }

// randomBytes makes n bytes from a seed.
func randomBytes(seed uint64, n int64) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(p)
	return p
}

// openStore opens a store that is closed with the test.
func openStore(t testing.TB, dir string, opt Options) *Store {
	t.Helper()
	s, err := Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// put stores and commits a content and returns its root.
func put(t testing.TB, s *Store, id ID, shape Shape, p []byte) Hash {
	t.Helper()
	root, err := s.Put(context.Background(), id, shape, bytes.NewReader(p))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(id); err != nil {
		t.Fatal(err)
	}
	return root
}

// wantContent reads a content whole, in odd pieces, and compares.
func wantContent(t testing.TB, s *Store, id ID, want []byte) {
	t.Helper()
	r, err := s.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()+10))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("content %s: %d bytes differ from the %d wanted", id, len(got), len(want))
	}
	if root := rootOf(want); root != r.Root() {
		t.Fatalf("content %s: root %s, want %s", id, r.Root(), root)
	}
	wantZeros(t, r, want)
	if f := r.File(); f != nil {
		raw, err := os.ReadFile(f.Name())
		if err != nil || !bytes.Equal(raw, want) {
			t.Fatalf("content %s: data file differs (%v)", id, err)
		}
	}
}

// wantZeros holds that what a content calls zeros without a look is zeros, and that it stays with its answer.
func wantZeros(t testing.TB, r *Reader, want []byte) {
	t.Helper()
	size := int64(len(want))
	for off := int64(0); off < size; off += PageBytes {
		next := r.NextData(off)
		if next < off || next > size || !bytes.Equal(want[off:next], make([]byte, next-off)) {
			t.Fatalf("content %s: zeros from %d to %d of %d", r.ID(), off, next, size)
		}
		if again := r.NextData(next); again != next {
			t.Fatalf("content %s: data at %d, or at %d", r.ID(), next, again)
		}
		off = max(off, next/PageBytes*PageBytes)
	}
	for off := int64(0); off < size; { // holes and data are one after the other
		hole := r.NextHole(off)
		data := r.NextData(hole)
		if hole < off || hole > size || hole < size && data <= hole || r.NextData(off) != off && hole != off {
			t.Fatalf("content %s: from %d on a hole at %d, then data at %d of %d", r.ID(), off, hole, data, size)
		}
		off = data
	}
}

// rootOf is the root by definition.
func rootOf(p []byte) Hash {
	var leaves []Hash
	for off := 0; off < len(p); off += BlockBytes {
		leaves = append(leaves, Leaf(p[off:min(off+BlockBytes, len(p))]))
	}
	return Root(int64(len(p)), leaves)
}

func TestPutReadReopen(t *testing.T) {
	for _, size := range []int64{0, 1, 4096, 65536, 65537, BlockBytes, BlockBytes + 1, 5*BlockBytes + 77} {
		dir := t.TempDir()
		want := randomBytes(uint64(size), size)
		s := openStore(t, dir, Options{})
		put(t, s, testID(1), Shape{Size: size}, want)
		wantContent(t, s, testID(1), want)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, dir, Options{})
		wantContent(t, s, testID(1), want)
		if report, err := s.Scrub(context.Background(), 0); err != nil || len(report.Damaged) != 0 || report.Contents != 1 {
			t.Fatalf("scrub: %+v, %v", report, err)
		}
		if err := s.Delete(testID(1)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Open(testID(1)); !errors.Is(err, ErrNotFound) {
			t.Fatalf("open after delete: %v", err)
		}
	}
}

func TestDeltaFoldMerge(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	base := randomBytes(1, 4*BlockBytes+1000)
	put(t, s, testID(1), Shape{Size: int64(len(base))}, base)

	want := bytes.Clone(base)
	copy(want[100:], randomBytes(2, 4096))
	copy(want[2*BlockBytes-50:], randomBytes(3, 100))
	clear(want[3*BlockBytes : 3*BlockBytes+8192])
	d1 := Shape{Size: int64(len(want)), Base: testID(1), BaseSize: int64(len(base)), Extents: []Extent{
		{Off: 100, Len: 4096}, {Off: 2*BlockBytes - 50, Len: 100}, {Off: 3 * BlockBytes, Len: 8192, Zero: true}}}
	put(t, s, testID(2), d1, want)
	wantContent(t, s, testID(2), want)

	want2 := append(bytes.Clone(want[:3*BlockBytes+5]), make([]byte, 2*BlockBytes)...)
	copy(want2[4*BlockBytes:], randomBytes(4, 300000))
	d2 := Shape{Size: int64(len(want2)), Base: testID(2), BaseSize: int64(len(want)), Extents: []Extent{
		{Off: 3*BlockBytes + 5, Len: BlockBytes - 5, Zero: true}, {Off: 4 * BlockBytes, Len: 300000},
		{Off: 4*BlockBytes + 300000, Len: int64(len(want2)) - 4*BlockBytes - 300000, Zero: true}}}
	put(t, s, testID(3), d2, want2)
	wantContent(t, s, testID(3), want2)
	if info, err := s.Stat(testID(3)); err != nil || info.Depth != 2 {
		t.Fatalf("stat: %+v, %v", info, err)
	}
	if err := s.Merge(t.Context(), testID(3)); err != nil {
		t.Fatal(err)
	}
	wantContent(t, s, testID(3), want2)
	if info, err := s.Stat(testID(3)); err != nil || info.Depth != 1 || info.Base != testID(1) {
		t.Fatalf("stat: %+v, %v", info, err)
	}
	if err := s.Delete(testID(1)); err != nil {
		t.Fatal(err)
	}
	wantContent(t, s, testID(2), want)
	wantContent(t, s, testID(3), want2)
	for _, id := range []ID{testID(2), testID(3)} {
		if err := s.forms.fold(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	wantContent(t, s, testID(2), want)
	wantContent(t, s, testID(3), want2)
	if _, err := os.Stat(s.files.streamPath(testID(1), ID{})); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("base is still there: %v", err)
	}
	if report, err := s.Scrub(t.Context(), 0); err != nil || len(report.Damaged) != 0 || report.Contents != 2 {
		t.Fatalf("scrub: %+v, %v", report, err)
	}
}

// rootByDefinition is the tree as docs/FORMAT.md defines it.
func rootByDefinition(size int64, leaves []Hash) (root Hash) {
	var top func([]Hash) Hash
	top = func(leaves []Hash) (h Hash) {
		switch len(leaves) {
		case 0:
			return Hash{}
		case 1:
			return leaves[0]
		}
		half := 1
		for half*2 < len(leaves) {
			half *= 2
		}
		left, right := top(leaves[:half]), top(leaves[half:])
		blake3.DeriveKey("rdmcfs content tree node v1", append(left[:], right[:]...), h[:])
		return h
	}
	t := top(leaves)
	message := append(binary.LittleEndian.AppendUint64(nil, uint64(size)), t[:]...)
	blake3.DeriveKey("rdmcfs content tree root v1", message, root[:])
	return root
}

// A Stat during a commit sees the content before or after, never neither.
func TestStatBesideCommit(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	for i := range 200 {
		id := testID(byte(i + 1))
		if _, err := s.Put(t.Context(), id, Shape{Size: 3}, strings.NewReader("abc")); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Commit(id) }()
		for committed := false; !committed; {
			info, err := s.Stat(id)
			if err != nil {
				t.Fatal(err)
			}
			committed = info.State == Committed
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}
