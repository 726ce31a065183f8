package content

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/test/codertest"
)

func FuzzDecodeShape(f *testing.F) {
	for _, p := range goldenFormats(f) {
		f.Add(bytes.TrimPrefix(p, []byte("before")))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var s Shape
		if !codertest.Again(t, p, func(p []byte) (again []byte, err error) {
			if s, err = DecodeShape(p); err != nil {
				return nil, err
			}
			return s.AppendBinary(nil)
		}) {
			return
		}
		l, err := NewLayout(s)
		if err != nil {
			t.Fatal(err)
		}
		if l.StreamBytes() > s.Size || int64(l.leaves.Count()) > blockCount(s.Size) {
			t.Fatalf("layout out of bounds: %d, %d", l.StreamBytes(), int64(l.leaves.Count()))
		}
	})
}

func FuzzDecodeHeader(f *testing.F) {
	h := header{id: testID(1), size: 100, streamBytes: 100, flags: flagComplete | flagInline}
	f.Add(h.append(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		h, err := decodeHeader(p)
		if err == nil && (h.fileBytes() < headerBytes || h.fileBytes() > 1<<46) {
			t.Fatalf("file of %d bytes", h.fileBytes())
		}
		if len(p) < headerBytes { // with its checksum made right, so that the checks behind it are met
			return
		}
		fixed := bytes.Clone(p[:headerBytes])
		copy(fixed, sidecarMagic)
		fixed[8], fixed[9] = sidecarVersion, 0
		sum := Checksum(fixed[:headerBytes-4])
		fixed[188], fixed[189], fixed[190], fixed[191] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
		if h, err := decodeHeader(fixed); err == nil {
			back, err := decodeHeader(h.append(nil))
			if err != nil || back != h {
				t.Fatalf("round trip: %+v, %v", back, err)
			}
		}
	})
}

func FuzzDecodeStage(f *testing.F) {
	head := stageHead{origin: Origin{Ino: 1, Name: "x"}, base: testID(1), baseSize: 100}
	p := appendRecord(nil, recordHead, head.append(nil))
	f.Add(append(append(bytes.Clone(p), ownRecord(0, 4096)...), sizeRecord(50)...))
	f.Fuzz(func(t *testing.T, p []byte) {
		log, err := replayStage(bytes.NewReader(p))
		if err != nil {
			return
		}
		if log.whole > int64(len(p)) || log.size > SizeMax || log.cut > log.size && log.size < log.head.baseSize {
			t.Fatalf("out of bounds: %+v", log)
		}
		again, err := replayStage(bytes.NewReader(p[:log.whole]))
		if err != nil || again.size != log.size || again.reason != log.reason {
			t.Fatalf("whole part differs: %v", err)
		}
	})
}

// FuzzOpenSidecar opens a store with a garbled sidecar whose header checksum is right.
func FuzzOpenSidecar(f *testing.F) {
	dir := f.TempDir()
	damagedStore(f, dir)
	for _, path := range heldFiles(f, dir) {
		if filepath.Ext(path) == suffixMeta {
			p, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(p)
		}
	}
	path := filepath.Join(f.TempDir(), "side")
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) < headerBytes {
			return
		}
		h, err := decodeHeader(p)
		if err != nil {
			return
		}
		if err := os.WriteFile(path, p, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := loadSidecar(path, h.id, os.O_RDONLY)
		if err != nil {
			return
		}
		defer b.close()
		if b.head.has(flagInline) && b.base == nil && b.head.base.IsZero() {
			_ = b.readAt(make([]byte, min(b.head.size, 1<<20)), 0)
		}
	})
}

func FuzzParseHeldName(f *testing.F) {
	f.Add(testID(1).String() + suffixMeta)
	f.Add(testID(1).String() + "+" + testID(2).String() + suffixDelta)
	f.Fuzz(func(t *testing.T, name string) {
		h, ok := parseHeldName(name)
		if !ok {
			return
		}
		back := h.id.String()
		if !h.base.IsZero() {
			back += "+" + h.base.String()
		}
		if back += h.suffix; back != name {
			t.Fatalf("%q reads as %q", name, back)
		}
	})
}

// shapes draws small valid shapes.
func shapes() *rapid.Generator[Shape] {
	return rapid.Custom(func(t *rapid.T) Shape {
		s := Shape{Size: offset(6*BlockBytes).Draw(t, "size")}
		if rapid.Bool().Draw(t, "delta") {
			s.Base, s.BaseSize = testID(9), offset(6*BlockBytes).Draw(t, "base")
			for next := int64(0); next < s.Size && rapid.IntRange(0, 4).Draw(t, "more") > 0; {
				off := next + offset(s.Size-next).Draw(t, "gap")
				n := min(s.Size-off, 1+offset(2*BlockBytes).Draw(t, "len"))
				if n <= 0 {
					break
				}
				s.Extents = append(s.Extents, Extent{Off: off, Len: n, Zero: rapid.Bool().Draw(t, "zero")})
				next = off + n
			}
			return s
		}
		for next := int64(0); next < blockCount(s.Size) && rapid.Bool().Draw(t, "hole"); {
			first, count := next+rapid.Int64Range(0, 1).Draw(t, "skip"), rapid.Int64Range(1, 2).Draw(t, "count")
			if first+count > blockCount(s.Size) {
				break
			}
			s.Holes = append(s.Holes, blockset.Range{First: uint64(first), Count: uint64(count)})
			next = first + count
		}
		return s
	})
}

// TestLayoutModel holds the layout's arithmetic against a byte-by-byte definition.
func TestLayoutModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := shapes().Draw(t, "shape")
		l, err := NewLayout(s)
		if err != nil {
			t.Fatal(err)
		}
		// from[i] says where page-ish byte i comes from: sampled, the content is large.
		stream := int64(0)
		zero, data := s.plainMaps()
		for off := int64(0); off < s.Size; {
			p := l.partAt(off, s.Size-off)
			if p.len <= 0 || p.off != off {
				t.Fatalf("part at %d: %+v", off, p)
			}
			for _, at := range []int64{off, off + p.len/2, off + p.len - 1} {
				want := fromBase
				switch {
				case zero(at):
					want = fromZero
				case data(at):
					want = fromStream
				}
				if p.from != want {
					t.Fatalf("byte %d is from %d, want %d", at, p.from, want)
				}
			}
			if p.from == fromStream {
				if p.stream != stream {
					t.Fatalf("part at %d: stream %d, want %d", off, p.stream, stream)
				}
				if at, n := l.locate(stream); at != off || n < p.len {
					t.Fatalf("locate %d: %d, %d", stream, at, n)
				}
				stream += p.len
			}
			off += p.len
		}
		if stream != l.StreamBytes() {
			t.Fatalf("stream of %d, want %d", l.StreamBytes(), stream)
		}
		p, err := s.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeShape(p)
		if err != nil || cmp.Diff(back, s) != "" {
			t.Fatal(err, cmp.Diff(back, s))
		}
	})
}

// plainMaps defines the sources of bytes straight from the shape.
func (s Shape) plainMaps() (zero, data func(int64) bool) {
	if !s.IsDelta() {
		zero = func(at int64) bool {
			for _, h := range s.Holes {
				if i := uint64(at / BlockBytes); i >= h.First && i < h.End() {
					return true
				}
			}
			return false
		}
		return zero, func(at int64) bool { return !zero(at) }
	}
	in := func(at int64) (e Extent, ok bool) {
		for _, e := range s.Extents {
			if at >= e.Off && at < e.End() {
				return e, true
			}
		}
		return e, false
	}
	zero = func(at int64) bool {
		e, ok := in(at)
		return ok && e.Zero || !ok && at >= s.BaseSize
	}
	data = func(at int64) bool {
		e, ok := in(at)
		return ok && !e.Zero
	}
	return zero, data
}

// TestRootStreaming holds the streaming tree against the recursive definition.
func TestRootStreaming(t *testing.T) {
	zero := zeroLeafFull()
	for n := range 70 {
		leaves := make([]Hash, n)
		for i := range leaves {
			leaves[i] = zero
			if i%7 == 3 {
				leaves[i] = Leaf([]byte{byte(i)})
			}
		}
		size := int64(n) * BlockBytes
		want := rootByDefinition(size, leaves)
		if got := Root(size, leaves); got != want {
			t.Fatalf("%d leaves: %s, want %s", n, got, want)
		}
		tree := newTree()
		for i := 0; i < n; {
			j := i
			for j < n && leaves[j] == zero {
				j++
			}
			tree.addZeros(int64(j - i))
			if i = j; i < n {
				tree.add(leaves[i])
				i++
			}
		}
		if got := tree.root(size); got != want {
			t.Fatalf("%d leaves with runs: %s, want %s", n, got, want)
		}
	}
}
