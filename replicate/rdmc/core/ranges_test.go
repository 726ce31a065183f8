package core

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// Union is the set of all blocks in any of the sets.
func Union(sets ...Ranges) Ranges {
	var all Ranges
	for _, s := range sets {
		all = append(all, s...)
	}
	slices.SortFunc(all, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	merged := all[:0]
	for _, r := range all {
		if n := len(merged); n > 0 && r.First <= merged[n-1].end() {
			merged[n-1].Count = max(merged[n-1].end(), r.end()) - merged[n-1].First
			continue
		}
		merged = append(merged, r)
	}
	return slices.Clip(merged)
}

// AppendBinary appends the set's encoding.
func (s Ranges) AppendBinary(b []byte) []byte {
	c := coder.Writer(b, coder.Little)
	s.code(&c, math.MaxUint64)
	return c.Written()
}

// DecodeRanges decodes a set of blocks below limit and returns the bytes behind it.
func DecodeRanges(b []byte, limit uint64) (s Ranges, rest []byte, err error) {
	c := coder.Reader(b, coder.Little)
	if s.code(&c, limit); !c.OK() {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, c.Err())
	}
	return s, b[c.Mark():], s.Validate(limit)
}

// Missing returns which of the first blocks are not in the set.
func (s Ranges) Missing(blocks uint64) Ranges {
	var out Ranges
	at := uint64(0)
	for _, r := range s {
		if r.First > at {
			out = append(out, Range{First: at, Count: r.First - at})
		}
		at = r.end()
	}
	if at < blocks {
		out = append(out, Range{First: at, Count: blocks - at})
	}
	return out
}

// Contains reports whether the block is in the set.
func (s Ranges) Contains(block uint64) bool {
	i, found := slices.BinarySearchFunc(s, block, func(r Range, b uint64) int { return cmp.Compare(r.First, b) })
	if found {
		return true
	}
	return i > 0 && block < s[i-1].end()
}

// Full reports whether all blocks are set.
func (m *Bitmap) Full() bool { return m.count == m.size }
