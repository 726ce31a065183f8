package core

import (
	"fmt"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// Range is a run of blocks.
type Range struct {
	First, Count uint64
}

// end is the block behind the range.
func (r Range) end() uint64 { return r.First + r.Count }

// Ranges is a set of blocks: ascending, disjoint, non-empty runs that do not touch.
type Ranges []Range

// MaxRanges bounds the runs of an encoded set.
const MaxRanges = 1 << 20

// AllBlocks is the set of the first k blocks.
func AllBlocks(k uint64) Ranges {
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

// Validate returns ErrInvalid if the set is not well formed or has a block at or beyond limit.
func (s Ranges) Validate(limit uint64) error {
	var next uint64
	for i, r := range s {
		if r.Count == 0 || r.First < next || i > 0 && r.First == next {
			return fmt.Errorf("%w: ranges are not ascending at %d", ErrInvalid, i)
		}
		if r.First >= limit || r.Count > limit-r.First {
			return fmt.Errorf("%w: range %d+%d exceeds %d blocks", ErrInvalid, r.First, r.Count, limit)
		}
		next = r.end()
	}
	return nil
}

// code lists the fields of a set of blocks below limit: the number of runs, then the gap before and the length of each,
// as varints.
func (s *Ranges) code(c *coder.Coder, limit uint64) {
	var at uint64
	for i := range coder.Slice(c, (*[]Range)(s), MaxRanges, 2) {
		r := &(*s)[i]
		gap := r.First - at
		c.V64(&gap)
		c.V64(&r.Count)
		if !c.Reading() {
			at = r.end()
			continue
		}
		if gap > limit-at || r.Count > limit-at-gap {
			c.Fail("run exceeds %d blocks", limit)
		}
		if !c.OK() {
			return
		}
		r.First = at + gap
		at = r.end()
	}
}

// indexed is a set with the position of each run, to find the block at a position fast.
type indexed struct {
	runs   Ranges
	before []uint64 // blocks in the runs before each
	count  uint64
}

func index(s Ranges) indexed {
	x := indexed{runs: s, before: make([]uint64, len(s))}
	for i, r := range s {
		x.before[i] = x.count
		x.count += r.Count
	}
	return x
}

// at is the block at a position below count.
func (x *indexed) at(position uint64) uint64 {
	if len(x.runs) == 1 {
		return x.runs[0].First + position
	}
	i, found := slices.BinarySearch(x.before, position)
	if !found {
		i--
	}
	return x.runs[i].First + position - x.before[i]
}
