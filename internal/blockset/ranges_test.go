package blockset

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/test/codertest"
)

func encode(s Ranges) []byte {
	c := coder.Writer(nil, coder.Little)
	s.Code(&c, math.MaxUint64)
	return c.Written()
}

// decode reads a set of blocks below limit and returns the bytes behind it.
func decode(b []byte, limit uint64) (s Ranges, rest []byte, err error) {
	c := coder.Reader(b, coder.Little)
	if s.Code(&c, limit); !c.OK() {
		return nil, nil, c.Err()
	}
	return s, b[c.Mark():], s.Validate(limit)
}

// Other nodes speak these bytes.
func TestGoldenBytes(t *testing.T) {
	codertest.Golden(t, map[string][]byte{
		"ranges":      encode(Ranges{{First: 1, Count: 2}, {First: 300, Count: 1 << 20}}),
		"ranges-none": encode(nil),
	})
}

// TestRangesOfBitmap: the runs of a bitmap and of what it lacks are well formed, share no block and leave none out.
func TestRangesOfBitmap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawBitmap(t)
		present, missing := m.Present(), MissingIn(m.Blocks(), []*Bitmap{m}).Present()
		if present.Count() != m.Count() || present.Count()+missing.Count() != m.Blocks() {
			t.Fatalf("present %v missing %v of %d", present, missing, m.Blocks())
		}
		for _, s := range []Ranges{present, missing} {
			if err := s.Validate(m.Blocks()); err != nil {
				t.Fatal(err)
			}
		}
		has, lacks := present.Index(), missing.Index()
		for b := range m.Blocks() {
			_, in := has.Number(b)
			if _, out := lacks.Number(b); m.Has(b) != in || in == out {
				t.Fatalf("block %d: has %t, %t, lacks %t", b, m.Has(b), in, out)
			}
		}
		decoded, _, err := decode(encode(present), m.Blocks())
		if back := BitmapOf(m.Blocks(), decoded); err != nil || !cmp.Equal(back.Present(), present) ||
			back.Count() != m.Count() {
			t.Fatalf("decoded %v, %v", decoded, err)
		}
	})
}

// TestIndex holds the numbers of blocks, in both directions, against a list of them.
func TestIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawBitmap(t).Present()
		var list []uint64
		for _, r := range s {
			for b := r.First; b < r.End(); b++ {
				list = append(list, b)
			}
		}
		x := s.Index()
		if got := slices.Collect(x.Blocks); !slices.Equal(got, list) || x.Count() != uint64(len(list)) {
			t.Fatalf("%d blocks %v, want %v", x.Count(), got, list)
		}
		for want, b := range list {
			if got, ok := x.Number(b); !ok || got != uint64(want) || x.At(got) != b {
				t.Fatalf("block %d has number %d, %t; want %d", b, got, ok, want)
			}
		}
		for b := range uint64(320) {
			if _, ok := x.Number(b); ok != slices.Contains(list, b) {
				t.Fatalf("block %d has a number: %t", b, ok)
			}
		}
	})
}

// TestAdd: runs that overlap or touch become one.
func TestAdd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Ranges
		m := NewBitmap(1000)
		first := uint64(0)
		for range rapid.IntRange(0, 10).Draw(t, "runs") {
			first += rapid.Uint64Range(0, 20).Draw(t, "later")
			r := Range{First: first, Count: rapid.Uint64Range(1, 20).Draw(t, "count")}
			s.Add(r)
			for b := r.First; b < r.End(); b++ {
				m.Set(b)
			}
			if n := len(s); n > 0 {
				first = s[n-1].First
			}
		}
		if !slices.Equal(s, m.Present()) {
			t.Fatalf("%v, want %v", s, m.Present())
		}
	})
}

// TestSplit holds sets in smaller blocks against single blocks.
func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, n := drawBitmap(t), rapid.Uint64Range(1, 32).Draw(t, "parts")
		blocks := m.Blocks() * n
		if blocks > 0 {
			blocks -= rapid.Uint64Range(0, n-1).Draw(t, "short")
		}
		small := m.Present().Split(n, blocks)
		if err := small.Validate(blocks); err != nil {
			t.Fatal(err)
		}
		x := small.Index()
		for b := range blocks {
			if _, ok := x.Number(b); ok != m.Has(b/n) {
				t.Fatalf("part %d of block %d: %t", b%n, b/n, ok)
			}
		}
	})
}

func FuzzDecodeRanges(f *testing.F) {
	f.Add(encode(Ranges{{First: 3, Count: 4}, {First: 9, Count: 1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 20
		s, rest, err := decode(b, limit)
		if err != nil {
			return
		}
		again, _, err := decode(encode(s), limit)
		if err != nil || !cmp.Equal(again, s) || len(rest) > len(b) {
			t.Fatalf("%v decoded again is %v: %v", s, again, err)
		}
		if m := BitmapOf(limit, s); m.Count() != s.Count() {
			t.Fatalf("bitmap of %d blocks from %v", m.Count(), s)
		}
	})
}
