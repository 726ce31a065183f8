package fs

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestDiffFindsEveryChange publishes by way of a recorder, changes bytes, and checks which leaves are found: all that
// differ, and no others except leaves that the recorder could not know.
func TestDiffFindsEveryChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(0, 6*leafBytes).Draw(t, "size")
		old := make([]byte, size)
		for i := range old {
			if i/leafBytes%2 == 0 {
				old[i] = byte(i)
			}
		}
		sums := newSums(size, []replicate.Extent{{Length: size}}, nil, nil)
		r := &recorder{src: bytes.NewReader(old), sums: sums}
		step := rapid.SampledFrom([]int64{leafBytes, 2 * leafBytes, 8 * leafBytes}).Draw(t, "read")
		for off := int64(0); off < size; off += step {
			if _, err := r.ReadAt(make([]byte, min(step, size-off)), off); err != nil {
				t.Fatal(err)
			}
		}
		now := append([]byte(nil), old...)
		newSize := rapid.Int64Range(0, 6*leafBytes).Draw(t, "new size")
		if newSize < size {
			now = now[:newSize]
		}
		now = append(now, make([]byte, newSize-int64(len(now)))...)
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			if newSize > 0 {
				now[rapid.Int64Range(0, newSize-1).Draw(t, "at")] ^= 1
			}
		}
		got, err := sums.diff(bytes.NewReader(now), newSize, []replicate.Extent{{Length: newSize}})
		if err != nil {
			t.Fatal(err)
		}
		overlaps := func(i int64) bool {
			for _, e := range got {
				if e.Offset < (i+1)*leafBytes && e.Offset+e.Length > i*leafBytes {
					return true
				}
			}
			return false
		}
		for i := range (newSize + leafBytes - 1) / leafBytes {
			start, end := i*leafBytes, min((i+1)*leafBytes, newSize)
			was := make([]byte, end-start)
			if start < size {
				copy(was, old[start:min(end, size)])
			}
			if !bytes.Equal(was, now[start:end]) && !overlaps(i) {
				t.Fatalf("leaf %d changed and is not in %v", i, got)
			}
			if bytes.Equal(was, now[start:end]) && size == newSize && overlaps(i) {
				t.Fatalf("leaf %d did not change and is in %v", i, got)
			}
		}
	})
}

// TestReadOfOtherBytes: of a leaf that was read twice, with a change in between, either may have been sent.
func TestReadOfOtherBytes(t *testing.T) {
	all := []replicate.Extent{{Length: leafBytes}}
	old := newSums(leafBytes, all, nil, nil)
	read := func(data []byte, sums *leafSums) {
		t.Helper()
		if _, err := (&recorder{src: bytes.NewReader(data), sums: sums}).ReadAt(make([]byte, leafBytes), 0); err != nil {
			t.Fatal(err)
		}
	}
	first, second := bytes.Repeat([]byte{1}, leafBytes), bytes.Repeat([]byte{2}, leafBytes)
	read(first, old)
	for name, c := range map[string]struct {
		sums   *leafSums
		reads  [][]byte
		differ [][]byte
		same   [][]byte
	}{
		"twice the same": {newSums(leafBytes, all, nil, nil), [][]byte{first, first}, [][]byte{second}, [][]byte{first}},
		"changed":        {newSums(leafBytes, all, nil, nil), [][]byte{first, second}, [][]byte{first, second}, nil},
		"and back":       {newSums(leafBytes, all, nil, nil), [][]byte{first, second, first}, [][]byte{first, second}, nil},
		"in a hole":      {newSums(leafBytes, nil, nil, nil), [][]byte{first}, [][]byte{first, make([]byte, leafBytes)}, nil},
		"not dirty": {newSums(leafBytes, all, []replicate.Extent{}, old), [][]byte{second}, [][]byte{first, second},
			nil},
	} {
		for _, data := range c.reads {
			read(data, c.sums)
		}
		for _, now := range c.differ {
			if got, err := c.sums.diff(bytes.NewReader(now), leafBytes, all); err != nil || len(got) != 1 {
				t.Errorf("%s: bytes that may not have been sent are taken for published: %v %v", name, got, err)
			}
		}
		for _, now := range c.same {
			if got, err := c.sums.diff(bytes.NewReader(now), leafBytes, all); err != nil || len(got) != 0 {
				t.Errorf("%s: published bytes differ: %v %v", name, got, err)
			}
		}
	}
}

func TestSumsOfADelta(t *testing.T) {
	old := newSums(4*leafBytes, []replicate.Extent{{Length: 4 * leafBytes}}, nil, nil)
	for i := range old.count() {
		old.at(i).Store(uint64(10 + i))
	}
	all := []replicate.Extent{{Length: 4 * leafBytes}}
	s := newSums(4*leafBytes, all, []replicate.Extent{{Offset: 2 * leafBytes, Length: 1}}, old)
	for i, want := range []uint64{10, 11, sumUnknown, 13} {
		if got := s.load(int64(i)); got != want {
			t.Errorf("leaf %d: %d, want %d", i, got, want)
		}
	}
}

func TestSeekExtents(t *testing.T) {
	data := []replicate.Extent{{Offset: 10, Length: 10}, {Offset: 20, Length: 5}, {Offset: 40, Length: 10}}
	for _, c := range []struct {
		off    int64
		whence uint32
		want   int64
		errno  syscall.Errno
	}{
		{0, unix.SEEK_DATA, 10, 0}, {0, unix.SEEK_HOLE, 0, 0}, {12, unix.SEEK_DATA, 12, 0},
		{12, unix.SEEK_HOLE, 25, 0}, {25, unix.SEEK_DATA, 40, 0}, {45, unix.SEEK_HOLE, 50, 0},
		{50, unix.SEEK_DATA, 0, syscall.ENXIO}, {49, unix.SEEK_DATA, 49, 0}, {-1, unix.SEEK_HOLE, 0, syscall.ENXIO},
	} {
		got, no := seekExtents(data, 50, c.off, c.whence)
		if got != c.want || no != c.errno {
			t.Errorf("seek %d whence %d: %d %v, want %d %v", c.off, c.whence, got, no, c.want, c.errno)
		}
	}
}

func TestAlignExtents(t *testing.T) {
	const unit = largeLeafBytes
	got := replicate.AlignExtents([]replicate.Extent{{Offset: 1, Length: 1}, {Offset: unit, Length: 1},
		{Offset: 5 * unit, Length: 9}}, unit, 5*unit+9)
	want := []replicate.Extent{{Offset: 0, Length: 2 * unit}, {Offset: 5 * unit, Length: 9}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %v, want %v", got, want)
	}
}

// inHoles fails where a sparse file has no data.
type inHoles struct {
	data  []replicate.Extent
	bytes byte
	read  int64
}

func (r *inHoles) ReadAt(p []byte, off int64) (int, error) {
	for _, e := range r.data {
		if off < e.Offset+e.Length && off+int64(len(p)) > e.Offset {
			r.read += int64(len(p))
			for i := range p {
				p[i] = 0
				if at := off + int64(i); at >= e.Offset && at < e.Offset+e.Length {
					p[i] = r.bytes
				}
			}
			return len(p), nil
		}
	}
	return 0, fmt.Errorf("%d bytes of a hole are read at %d", len(p), off)
}

// What lies in a hole is compared without reading it.
func TestHolesAreNotRead(t *testing.T) {
	const size = 100 << 30
	data := []replicate.Extent{{Offset: 5 << 30, Length: 4096}, {Offset: size - 10, Length: 10}}
	src := &inHoles{data: data, bytes: 1}
	sums := newSums(size, data, nil, nil)
	for _, e := range data {
		off := e.Offset / sums.unit * sums.unit
		if _, err := (&recorder{src: src, sums: sums}).ReadAt(make([]byte, sums.unit), off); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := sums.diff(src, size, data); err != nil || len(got) != 0 {
		t.Errorf("unchanged: %v %v", got, err)
	}
	if src.read > 8*diffChunk {
		t.Errorf("%d bytes read", src.read)
	}
	changed := &inHoles{data: data[:1], bytes: 2}
	got, err := sums.diff(changed, size, data[:1])
	if err != nil || len(got) != 2 || got[0].Offset > 5<<30 || got[1].Offset+got[1].Length != size {
		t.Errorf("a changed leaf, and one that is a hole now: %v %v", got, err)
	}
}

// sparseBytes knows where it has data.
type sparseBytes struct{ *inHoles }

func (s sparseBytes) NextData(off int64) int64 {
	for _, e := range s.data {
		if end := e.Offset + e.Length; off < end {
			return max(off, e.Offset)
		}
	}
	return off + 15<<40
}

func (s sparseBytes) NextHole(off int64) int64 { panic("nobody asks for a hole") }

// The sums of a file of 15 TiB with two bytes take no memory to speak of, and no time.
func TestSumsOfASparseFile(t *testing.T) {
	const size = 15<<40 + 5
	data := []replicate.Extent{{Offset: 7<<40 + 3, Length: 1}, {Offset: size - 1, Length: 1}}
	src := sparseBytes{&inHoles{data: data, bytes: 1}}
	sums, err := sumsOf(src, size)
	if err != nil {
		t.Fatal(err)
	}
	pages := 0
	for i := range sums.pages {
		if sums.pages[i].Load() != nil {
			pages++
		}
	}
	if pages != len(data) || src.read > 2*diffChunk {
		t.Errorf("%d pages of sums, %d bytes read", pages, src.read)
	}
	if got, err := sums.diff(src, size, data); err != nil || len(got) != 0 {
		t.Errorf("unchanged: %v %v", got, err)
	}
	grown := newSums(size+1<<40, data, []replicate.Extent{}, sums)
	if got, err := grown.diff(src, size+1<<40, data); err != nil || len(got) > 1 {
		t.Errorf("grown: %v %v", got, err)
	}
	cut := sparseBytes{&inHoles{data: data[:1], bytes: 1}}
	got, err := sums.diff(cut, size, data[:1])
	if want := (replicate.Extent{Offset: size - 5, Length: 5}); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("a byte became a hole: %v %v, want %v", got, err, want)
	}
}

// Whatever the extents are, a file is cut into chunks without gaps, and chunks with data are no holes.
func TestChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		edge := rapid.Custom(func(t *rapid.T) int64 { return rapid.Int64Range(0, 12).Draw(t, "halves") * diffChunk / 2 })
		size := edge.Draw(t, "size") + rapid.Int64Range(0, 3).Draw(t, "more")
		var data []replicate.Extent
		for off := edge.Draw(t, "first"); off < 8*diffChunk && len(data) < 4; {
			e := replicate.Extent{Offset: off, Length: 1 + edge.Draw(t, "length")}
			data = append(data, e)
			off = e.Offset + e.Length + 1 + edge.Draw(t, "hole")
		}
		next := int64(0)
		err := chunks(size, data, func(off, n int64, hole bool) error {
			if off != next || n <= 0 || off+n > size || !hole && n > diffChunk {
				t.Fatalf("a chunk of %d at %d after %d, of %d", n, off, next, size)
			}
			for _, e := range data {
				if hole && e.Offset < off+n && e.Offset+e.Length > off {
					t.Fatalf("%v lies in the hole of %d at %d", e, n, off)
				}
			}
			next = off + n
			return nil
		})
		if err != nil || next != size {
			t.Fatalf("it ends at %d of %d: %v", next, size, err)
		}
	})
}

// A publish reads blocks, of 64 KiB here: each of them has whole leaves, however large the file is. Else nobody would
// know what was sent, and each fsync of a large file would send all of it.
func TestLeavesOfLargeFilesAreReadWhole(t *testing.T) {
	for _, size := range []int64{2 << 30, 100 << 30} {
		data := []replicate.Extent{{Offset: size / 2, Length: 1 << 20}}
		src := &inHoles{data: data, bytes: 1}
		sums := newSums(size, data, nil, nil)
		r := &recorder{src: src, sums: sums}
		for off := data[0].Offset; off < data[0].Offset+data[0].Length; off += largeLeafBytes {
			if _, err := r.ReadAt(make([]byte, largeLeafBytes), off); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := sums.diff(src, size, data); err != nil || len(got) != 0 {
			t.Errorf("%d bytes, unchanged: %v %v", size, got, err)
		}
		next := newSums(size, data, []replicate.Extent{}, sums)
		if got, err := next.diff(src, size, data); err != nil || len(got) != 0 {
			t.Errorf("%d bytes, after a publish of nothing: %v %v", size, got, err)
		}
	}
}

// A small file that becomes very large does not keep its small leaves: they would fill the memory.
func TestLeavesOfAFileThatGrewAreBounded(t *testing.T) {
	small := newSums(100<<10, []replicate.Extent{{Length: 100 << 10}}, nil, nil)
	for size, want := range map[int64]int64{2 << 30: leafBytes, 100 << 30: largeLeafBytes} {
		if got := newSums(size, nil, []replicate.Extent{}, small).unit; got != want {
			t.Errorf("%d bytes: leaves of %d, want %d", size, got, want)
		}
	}
}
