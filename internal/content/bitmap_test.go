package content

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestBitmap holds sets of blocks against maps, and the order of bits, which nodes send to each other.
func TestBitmap(t *testing.T) {
	b := NewBitmap(20)
	b.Set(0)
	b.Set(9)
	b.Set(19)
	if !slices.Equal(b, Bitmap{1, 2, 8}) || b.Has(-1) || b.Has(24) {
		t.Errorf("%x", b)
	}
	if c := b.Clip(19); !slices.Equal(c, Bitmap{1, 2, 0}) || !slices.Equal(b.Clip(33), Bitmap{1, 2, 8, 0, 0}) {
		t.Errorf("%x", c)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 100).Draw(t, "blocks")
		var sets []Bitmap
		lacks := make(map[int64]bool)
		for range rapid.IntRange(0, 3).Draw(t, "sets") {
			s, held := NewBitmap(n), 0
			for i := range n {
				if rapid.Bool().Draw(t, "has") {
					s.Set(i)
					held++
				} else {
					lacks[i] = true
				}
			}
			if s.Count() != held {
				t.Fatalf("%d blocks, want %d", s.Count(), held)
			}
			sets = append(sets, s)
		}
		missing := MissingIn(n, sets)
		for i := range n {
			if missing.Has(i) != lacks[i] {
				t.Fatalf("block %d missing: %t", i, missing.Has(i))
			}
		}
		if missing.Count() != len(lacks) {
			t.Fatalf("%d missing, want %d", missing.Count(), len(lacks))
		}
	})
}
