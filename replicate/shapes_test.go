package replicate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// drawExtents draws ascending, disjoint ranges below size.
func drawExtents(t *rapid.T, label string, size int64) []Extent {
	var out []Extent
	at := int64(0)
	for range rapid.IntRange(0, 30).Draw(t, label) {
		at += rapid.Int64Range(0, size/10).Draw(t, "gap")
		n := rapid.Int64Range(1, size/10+1).Draw(t, "length")
		if at >= size {
			break
		}
		n = min(n, size-at)
		out = append(out, Extent{at, n})
		at += n
	}
	return out
}

func inside(xs []Extent, at int64) bool {
	for _, x := range xs {
		if at >= x.Offset && at < x.Offset+x.Length {
			return true
		}
	}
	return false
}

func TestDeltaCoversEveryDirtyByteAndMarksNoDataAsZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(1, 300_000).Draw(t, "size")
		dirty, data := drawExtents(t, "dirty", size), drawExtents(t, "data", size)
		shape := content.Shape{Size: size, Base: content.ID{1}, BaseSize: size, Extents: dirtyExtents(dirty, data, size)}
		if err := shape.Validate(); err != nil {
			t.Fatal(err)
		}
		at := func(off int64) (in, zero bool) {
			for _, x := range shape.Extents {
				if off >= x.Off && off < x.End() {
					return true, x.Zero
				}
			}
			return false, false
		}
		for off := int64(0); off < size; off += 97 {
			in, zero := at(off)
			if inside(dirty, off) && !in {
				t.Fatalf("dirty byte %d is in no extent", off)
			}
			if inside(data, off) && zero {
				t.Fatalf("data at %d is marked as zero", off)
			}
		}
		for _, x := range shape.Extents {
			page := x.Off / content.PageBytes * content.PageBytes
			near := false
			for off := page; off < min(page+content.PageBytes, size); off++ {
				near = near || inside(dirty, off)
			}
			if !near {
				t.Fatalf("extent at %d begins in a clean page", x.Off)
			}
		}
	})
}

func TestPlainShapeHasHolesOnlyWhereNoDataIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(1, 40<<20).Draw(t, "size")
		data := drawExtents(t, "data", size)
		shape := plainShape(size, data)
		if err := shape.Validate(); err != nil {
			t.Fatal(err)
		}
		holes := make(map[int64]bool)
		for _, h := range shape.Holes {
			for b := h.First; b < h.First+h.Count; b++ {
				holes[int64(b)] = true
			}
		}
		for b := range (size + content.BlockBytes - 1) / content.BlockBytes {
			full := false
			for _, x := range data {
				full = full || x.Offset < (b+1)*content.BlockBytes && x.Offset+x.Length > b*content.BlockBytes
			}
			if full == holes[b] {
				t.Fatalf("block %d: data %v, hole %v", b, full, holes[b])
			}
		}
	})
}

func TestTooManyRangesAreJoinedAtTheSmallestGaps(t *testing.T) {
	xs := []Extent{{0, 1}, {10, 1}, {12, 1}, {100, 1}, {104, 1}}
	if diff := cmp.Diff([]Extent{{0, 1}, {10, 3}, {100, 5}}, bounded(xs, 3)); diff != "" {
		t.Error(diff)
	}
	holes := blockset.Ranges{{First: 0, Count: 1}, {First: 3, Count: 5}, {First: 10, Count: 1}, {First: 20, Count: 2},
		{First: 30, Count: 1}}
	if diff := cmp.Diff(blockset.Ranges{{First: 0, Count: 1}, {First: 3, Count: 5}, {First: 20, Count: 2}},
		largestHoles(holes, 3)); diff != "" {
		t.Error(diff)
	}
}

func TestGroupBlocksAndHavesAgreeWithContentBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(1, 9<<20).Draw(t, "size")
		groupBlock := int64(content.ChunkBytes) << rapid.IntRange(0, 4).Draw(t, "shift")
		l, err := content.NewLayout(content.Shape{Size: size})
		if err != nil {
			t.Fatal(err)
		}
		have := blockset.NewBitmap(uint64(l.Blocks()))
		for i := range int(l.Blocks()) {
			if rapid.Bool().Draw(t, "have") {
				have.Set(uint64(i))
			}
		}
		missing := blockset.MissingIn(have.Blocks(), []*blockset.Bitmap{have})
		here := groupHave(l, have, groupBlock)
		sent := rdmc.BitmapOf(here.Blocks(), groupBlocks(l, missing, groupBlock))
		bytes := int64(0)
		for b := range uint64((size + groupBlock - 1) / groupBlock) {
			if here.Has(b) == sent.Has(b) {
				t.Fatalf("block %d of the group: here %v, sent %v", b, here.Has(b), sent.Has(b))
			}
			if sent.Has(b) {
				bytes += min(groupBlock, size-int64(b)*groupBlock)
			}
		}
		want := int64(0)
		for i := range l.Blocks() {
			if missing.Has(uint64(i)) {
				want += l.BlockLen(i)
			}
		}
		if bytes != want {
			t.Fatalf("%d bytes are sent, %d are missing", bytes, want)
		}
	})
}
