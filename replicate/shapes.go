package replicate

import (
	"cmp"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/internal/content"
)

// plainShape is the whole of a file, without the blocks in which it has only holes.
func plainShape(size int64, data []Extent) content.Shape {
	shape := content.Shape{Size: size}
	blocks := (size + content.BlockBytes - 1) / content.BlockBytes
	next := int64(0) // first block not looked at
	for _, x := range data {
		if x.Length <= 0 || x.Offset >= size {
			continue
		}
		first := x.Offset / content.BlockBytes
		last := (min(x.Offset+x.Length, size) - 1) / content.BlockBytes
		if first > next {
			shape.Holes = append(shape.Holes, blockset.Range{First: uint64(next), Count: uint64(first - next)})
		}
		next = max(next, last+1)
	}
	if next < blocks {
		shape.Holes = append(shape.Holes, blockset.Range{First: uint64(next), Count: uint64(blocks - next)})
	}
	shape.Holes = largestHoles(shape.Holes, extentsMax)
	return shape
}

// largestHoles leaves out the smallest holes beyond a limit: they are sent as zeros.
func largestHoles(holes blockset.Ranges, limit int) blockset.Ranges {
	if len(holes) <= limit {
		return holes
	}
	counts := make([]uint64, len(holes))
	for i, h := range holes {
		counts[i] = h.Count
	}
	slices.Sort(counts)
	least := counts[len(counts)-limit] // larger ones are all kept, and of these as many as fit
	spare := limit
	for _, h := range holes {
		if h.Count > least {
			spare--
		}
	}
	return slices.DeleteFunc(holes, func(h blockset.Range) bool {
		if h.Count == least {
			spare--
			return spare < 0
		}
		return h.Count < least
	})
}

// deltaShape is what differs from the base, if that is known and worth it: at most half of the file.
func (s *pushSession) deltaShape() (content.Shape, bool) {
	p := s.push
	if p.Base.IsZero() || p.Dirty == nil {
		return content.Shape{}, false
	}
	base, err := s.p.cfg.Names.Content(p.Base)
	if err != nil || base.Inline {
		return content.Shape{}, false
	}
	shape := content.Shape{Size: p.Size, Base: storeID(p.Base), BaseSize: base.Size}
	shape.Extents = dirtyExtents(p.Dirty, p.Data, p.Size)
	var dirty int64
	for _, x := range shape.Extents {
		dirty += x.Len
	}
	return shape, dirty <= p.Size/2 && shape.Validate() == nil
}

// dirtyExtents returns the dirty ranges, on whole pages; ranges that lie in holes are marked zero. When there are too
// many, the ones closest together become one.
func dirtyExtents(dirty, data []Extent, size int64) []content.Extent {
	pages := bounded(AlignExtents(dirty, content.PageBytes, size), extentsMax)
	var out []content.Extent
	for _, d := range pages {
		out = splitByData(out, d, data)
	}
	if len(out) <= extentsMax {
		return out
	}
	out = out[:0]
	for _, d := range pages {
		out = append(out, content.Extent{Off: d.Offset, Len: d.Length})
	}
	return out
}

// bounded joins the ranges with the smallest gaps until at most limit are left.
func bounded(xs []Extent, limit int) []Extent {
	if len(xs) <= limit {
		return xs
	}
	gaps := make([]int64, 0, len(xs)-1)
	for i := 1; i < len(xs); i++ {
		gaps = append(gaps, xs[i].Offset-xs[i-1].Offset-xs[i-1].Length)
	}
	sorted := slices.Sorted(slices.Values(gaps))
	limitGap := sorted[len(xs)-limit-1] // this many gaps, the smallest, are filled
	out := xs[:1:1]
	for i, g := range gaps {
		last := &out[len(out)-1]
		if g <= limitGap {
			last.Length = xs[i+1].Offset + xs[i+1].Length - last.Offset
			continue
		}
		out = append(out, xs[i+1])
	}
	return out
}

// splitByData appends the pieces of d: zero where no data lies.
func splitByData(out []content.Extent, d Extent, data []Extent) []content.Extent {
	end := d.Offset + d.Length
	i, _ := slices.BinarySearchFunc(data, d.Offset, func(x Extent, off int64) int {
		return cmp.Compare(x.Offset+x.Length-1, off)
	})
	at := d.Offset
	for ; i < len(data) && data[i].Offset < end; i++ {
		if data[i].Offset > at {
			out = append(out, content.Extent{Off: at, Len: data[i].Offset - at, Zero: true})
			at = data[i].Offset
		}
		to := min(end, data[i].Offset+data[i].Length)
		if to > at {
			out = append(out, content.Extent{Off: at, Len: to - at})
			at = to
		}
	}
	if at < end {
		out = append(out, content.Extent{Off: at, Len: end - at, Zero: true})
	}
	return out
}
