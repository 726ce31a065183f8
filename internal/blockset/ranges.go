package blockset

import (
	"fmt"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// Range is a run of blocks.
type Range struct {
	First, Count uint64
}

// End is the block behind the range.
func (r Range) End() uint64 { return r.First + r.Count }

// Ranges is a set of blocks: ascending, disjoint, non-empty runs that do not touch.
type Ranges []Range

// MaxRanges bounds the runs of an encoded set.
const MaxRanges = 1 << 20

// All is the set of the first k blocks.
func All(k uint64) Ranges {
	if k == 0 {
		return nil
	}
	return Ranges{{First: 0, Count: k}}
}

// Count is the number of blocks in the set.
func (s Ranges) Count() uint64 {
	var n uint64
	for _, r := range s {
		n += r.Count
	}
	return n
}

// Add adds a run. Its first block may not be below the first block of the last run.
func (s *Ranges) Add(r Range) {
	if n := len(*s); n > 0 {
		if last := &(*s)[n-1]; r.First <= last.End() {
			last.Count = max(last.End(), r.End()) - last.First
			return
		}
	}
	*s = append(*s, r)
}

// Split is the set in smaller blocks, n of which make one of s. There are so many in all: the last one of s may be
// shorter than the others.
func (s Ranges) Split(n, blocks uint64) Ranges {
	var out Ranges
	for _, r := range s {
		if first, end := r.First*n, min(r.End()*n, blocks); first < end {
			out = append(out, Range{First: first, Count: end - first})
		}
	}
	return out
}

// Validate returns an error if the set is not well formed or has a block at or beyond limit.
func (s Ranges) Validate(limit uint64) error {
	var next uint64
	for i, r := range s {
		if r.Count == 0 || r.First < next || i > 0 && r.First == next {
			return fmt.Errorf("ranges are not ascending at %d", i)
		}
		if r.First >= limit || r.Count > limit-r.First {
			return fmt.Errorf("range %d+%d exceeds %d blocks", r.First, r.Count, limit)
		}
		next = r.End()
	}
	return nil
}

// Code lists the fields of a set of blocks below limit: the number of runs, at most MaxRanges, then the gap before and
// the length of each, as varints. What is read ascends, but may have runs that touch or are empty: see Validate.
func (s *Ranges) Code(c *coder.Coder, limit uint64) {
	var at uint64
	for i := range coder.Slice(c, (*[]Range)(s), MaxRanges, 2) {
		r := &(*s)[i]
		gap := r.First - at
		c.V64(&gap)
		c.V64(&r.Count)
		if !c.Reading() {
			at = r.End()
			continue
		}
		if gap > limit-at || r.Count > limit-at-gap {
			c.Fail("run exceeds %d blocks", limit)
		}
		if !c.OK() {
			return
		}
		r.First = at + gap
		at = r.End()
	}
}

// Index numbers the blocks of a set from 0 in ascending order. It is immutable and safe for concurrent use. The zero
// value is the index of an empty set.
type Index struct {
	runs   Ranges
	before []uint64 // blocks in the runs before each
	count  uint64
}

// Index makes the index of a set, which must not change meanwhile.
func (s Ranges) Index() Index {
	x := Index{runs: s, before: make([]uint64, len(s))}
	for i, r := range s {
		x.before[i] = x.count
		x.count += r.Count
	}
	return x
}

// Count is the number of blocks in the set.
func (x *Index) Count() uint64 { return x.count }

// At is the block with a number, which must be below Count.
func (x *Index) At(number uint64) uint64 {
	if len(x.runs) == 1 {
		return x.runs[0].First + number
	}
	i, found := slices.BinarySearch(x.before, number)
	if !found {
		i--
	}
	return x.runs[i].First + number - x.before[i]
}

// Number is the number of a block; it is false if the block is not in the set.
func (x *Index) Number(block uint64) (uint64, bool) {
	i, found := slices.BinarySearchFunc(x.runs, block, func(r Range, block uint64) int {
		switch {
		case block < r.First:
			return 1
		case block >= r.End():
			return -1
		}
		return 0
	})
	if !found {
		return 0, false
	}
	return x.before[i] + block - x.runs[i].First, true
}

// Blocks iterates over the blocks of the set in ascending order.
func (x *Index) Blocks(yield func(uint64) bool) {
	for _, r := range x.runs {
		for block := r.First; block < r.End(); block++ {
			if !yield(block) {
				return
			}
		}
	}
}
