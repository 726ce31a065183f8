package fs

import (
	"errors"
	"hash/maphash"
	"io"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/replicate"
)

// Leaves are the unit in which published and staged bytes are compared: one changed byte makes a leaf move.
const (
	leafBytes      = 4 << 10
	largeLeafBytes = 64 << 10
	// leafBytesUpTo is the size up to which small leaves are worth their 8 bytes each.
	leafBytesUpTo = 1 << 30
	// keptLeavesMax is up to how many leaves a file that grew keeps its small ones.
	keptLeavesMax = 4 << 20
)

// unitOf is the size of the leaves of a file. Larger leaves would be read in parts, by blocks: then nobody knows which
// bytes of a leaf were sent.
func unitOf(size int64) int64 {
	if size <= leafBytesUpTo {
		return leafBytes
	}
	return largeLeafBytes
}

// Sums that are no hash.
const (
	sumUnknown = 0 // until it is read
	sumZeros   = 1
	sumMixed   = 2 // it was read in parts, or with other bytes than it had before: nobody knows which were sent
	sumsNoHash = 3 // the least hash
)

// leafSums is a hash of each leaf of what was published last. It lives as long as its live file. It only distinguishes
// changed bytes from unchanged ones; nothing is protected by it.
type leafSums struct {
	size   int64
	unit   int64
	leaves []atomic.Uint64
}

func makeSums(size, unit int64) *leafSums {
	return &leafSums{size: size, unit: unit, leaves: make([]atomic.Uint64, (size+unit-1)/unit)}
}

var sumSeed = maphash.MakeSeed()

func sumLeaf(p []byte) uint64 {
	if allZero(p) {
		return sumZeros
	}
	return max(maphash.Bytes(sumSeed, p), sumsNoHash)
}

var zeroLeaf [4096]byte

func allZero(p []byte) bool {
	for len(p) > len(zeroLeaf) {
		if string(p[:len(zeroLeaf)]) != string(zeroLeaf[:]) {
			return false
		}
		p = p[len(zeroLeaf):]
	}
	return string(p) == string(zeroLeaf[:len(p)])
}

// newSums begins the sums of a snapshot of size bytes. Leaves in no data extent are zeros; with old, leaves in
// no dirty extent are as they were. The rest is unknown until it is read.
func newSums(size int64, data, dirty []replicate.Extent, old *leafSums) *leafSums {
	unit := unitOf(size)
	keep := old != nil && dirty != nil && (old.unit >= unit || size/old.unit < keptLeavesMax)
	if keep {
		unit = old.unit
	}
	s := makeSums(size, unit)
	for i := range s.leaves {
		s.leaves[i].Store(sumZeros)
	}
	s.forget(data)
	if !keep {
		return s
	}
	for i := range min(len(s.leaves), len(old.leaves)) {
		s.leaves[i].Store(old.leaves[i].Load())
	}
	s.forget(dirty)
	return s
}

// forget makes the leaves that extents meet unknown.
func (s *leafSums) forget(extents []replicate.Extent) {
	for _, e := range extents {
		end := min(e.Offset+e.Length, s.size)
		for i := e.Offset / s.unit; i*s.unit < end; i++ {
			s.leaves[i].Store(sumUnknown)
		}
	}
}

// recorder hands out a snapshot's bytes and remembers what was read of each leaf. Bytes may be overwritten meanwhile,
// even where the snapshot had a hole or nothing new, and then the old bytes may be written back. So a leaf counts as
// known only if everything that is known of it is the same.
type recorder struct {
	src  io.ReaderAt
	sums *leafSums
}

func (r *recorder) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.src.ReadAt(p, off)
	unit, end := r.sums.unit, min(off+int64(n), r.sums.size)
	for i := off / unit; i*unit < end; i++ {
		start, stop := i*unit, min((i+1)*unit, r.sums.size)
		if start < off || stop > end {
			r.sums.leaves[i].Store(sumMixed) // a part of it
			continue
		}
		r.sums.note(i, sumLeaf(p[start-off:stop-off]))
	}
	return n, err
}

// note remembers the sum of a leaf that was read.
func (s *leafSums) note(i int64, sum uint64) {
	leaf := &s.leaves[i]
	if !leaf.CompareAndSwap(sumUnknown, sum) && leaf.Load() != sum {
		leaf.Store(sumMixed)
	}
}

// diffChunk is how much is read at once for a comparison; a multiple of all leaves.
const diffChunk = 256 << 10

// chunks calls do with each chunk of a file in turn, until it fails, and says which ones lie in a hole.
func chunks(size int64, data []replicate.Extent, do func(off, n int64, hole bool) error) error {
	next := 0
	for off := int64(0); off < size; off += diffChunk {
		n := min(diffChunk, size-off)
		for next < len(data) && data[next].Offset+data[next].Length <= off {
			next++
		}
		hole := next == len(data) || data[next].Offset >= off+n
		if err := do(off, n, hole); err != nil {
			return err
		}
	}
	return nil
}

// diff lists, ascending and in whole leaves, where src of size bytes with data in the given extents differs from what
// was published.
func (s *leafSums) diff(src io.ReaderAt, size int64, data []replicate.Extent) (out []replicate.Extent, err error) {
	buf := make([]byte, min(diffChunk, max(size, 1)))
	err = chunks(size, data, func(off, n int64, hole bool) error {
		if hole {
			out = s.diffHole(out, off, n, size)
			return nil
		}
		p := buf[:n]
		got, err := readFull(src, p, off)
		if err != nil {
			return err
		}
		clear(p[got:])
		out = s.diffLeaves(out, p, off, size)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// diffHole compares leaves that are zeros now.
func (s *leafSums) diffHole(out []replicate.Extent, off, n, size int64) []replicate.Extent {
	for at := off; at < off+n; at += s.unit {
		if !s.same(at/s.unit, sumZeros, size) {
			out = replicate.AppendExtent(out, replicate.Extent{Offset: at, Length: min(s.unit, off+n-at)})
		}
	}
	return out
}

// diffLeaves compares the leaves of p, which lies at off of a file of size bytes.
func (s *leafSums) diffLeaves(out []replicate.Extent, p []byte, off, size int64) []replicate.Extent {
	for at := int64(0); at < int64(len(p)); at += s.unit {
		leaf := p[at:min(at+s.unit, int64(len(p)))]
		if !s.same((off+at)/s.unit, sumLeaf(leaf), size) {
			out = replicate.AppendExtent(out, replicate.Extent{Offset: off + at, Length: int64(len(leaf))})
		}
	}
	return out
}

// same reports whether leaf i was published with this sum. A leaf that was cut differently differs, unless it is zeros.
func (s *leafSums) same(i int64, sum uint64, size int64) bool {
	if i >= int64(len(s.leaves)) {
		return sum == sumZeros
	}
	was := s.leaves[i].Load()
	if was != sum || was == sumUnknown {
		return false
	}
	return sum == sumZeros || min((i+1)*s.unit, size) == min((i+1)*s.unit, s.size)
}

// sumsOf reads all of src, also what looks like a hole: only a read finds that it is damage.
func sumsOf(src io.ReaderAt, size int64) (*leafSums, error) {
	s := makeSums(size, unitOf(size))
	r := &recorder{src: src, sums: s}
	buf := make([]byte, min(diffChunk, max(size, 1)))
	for off := int64(0); off < size; off += diffChunk {
		if _, err := readFull(r, buf[:min(diffChunk, size-off)], off); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// readFull is ReadAt for which the end of the file is no error.
func readFull(src io.ReaderAt, p []byte, off int64) (int, error) {
	n, err := src.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func extentBytes(list []replicate.Extent) (total int64) {
	for _, e := range list {
		total += e.Length
	}
	return total
}
