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
// changed bytes from unchanged ones; nothing is protected by it. A page of leaves that are all zeros takes no memory.
type leafSums struct {
	size  int64
	unit  int64
	pages []atomic.Pointer[sumPage] // nil: zeros
}

const pageLeaves = 4096

type sumPage [pageLeaves]atomic.Uint64

// makeSums makes the sums of zeros.
func makeSums(size, unit int64) *leafSums {
	const most = pageLeaves - 1
	s := &leafSums{size: size, unit: unit}
	s.pages = make([]atomic.Pointer[sumPage], (s.count()+most)/pageLeaves)
	return s
}

func (s *leafSums) count() int64 { return (s.size + s.unit - 1) / s.unit }

// load is the sum of leaf i.
func (s *leafSums) load(i int64) uint64 {
	if p := s.pages[i/pageLeaves].Load(); p != nil {
		return p[i%pageLeaves].Load()
	}
	return sumZeros
}

// at is where the sum of leaf i is kept.
func (s *leafSums) at(i int64) *atomic.Uint64 {
	page := &s.pages[i/pageLeaves]
	p := page.Load()
	if p == nil {
		p = new(sumPage)
		for j := range p {
			p[j].Store(sumZeros)
		}
		if !page.CompareAndSwap(nil, p) {
			p = page.Load()
		}
	}
	return &p[i%pageLeaves]
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
	s.forget(data)
	if keep {
		s.takeFrom(old)
		s.forget(dirty)
	}
	return s
}

// takeFrom takes over the leaves that old has, of the same unit.
func (s *leafSums) takeFrom(old *leafSums) {
	both := min(s.count(), old.count())
	for first := int64(0); first < both; first += pageLeaves {
		if at := first / pageLeaves; s.pages[at].Load() == nil && old.pages[at].Load() == nil {
			continue
		}
		for i := first; i < min(first+pageLeaves, both); i++ {
			s.at(i).Store(old.load(i))
		}
	}
}

// forget makes the leaves that extents meet unknown.
func (s *leafSums) forget(extents []replicate.Extent) {
	for _, e := range extents {
		end := min(e.Offset+e.Length, s.size)
		for i := e.Offset / s.unit; i*s.unit < end; i++ {
			s.at(i).Store(sumUnknown)
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
			r.sums.at(i).Store(sumMixed) // a part of it
			continue
		}
		r.sums.note(i, sumLeaf(p[start-off:stop-off]))
	}
	return n, err
}

// note remembers the sum of a leaf that was read.
func (s *leafSums) note(i int64, sum uint64) {
	if s.load(i) == sum {
		return
	}
	if leaf := s.at(i); !leaf.CompareAndSwap(sumUnknown, sum) && leaf.Load() != sum {
		leaf.Store(sumMixed)
	}
}

// diffChunk is how much is read at once for a comparison; a multiple of all leaves.
const diffChunk = 256 << 10

// chunks calls do with each chunk of a file in turn, until it fails. A run of chunks that lie in a hole is one.
func chunks(size int64, data []replicate.Extent, do func(off, n int64, hole bool) error) error {
	for off := int64(0); off < size; {
		for len(data) > 0 && data[0].Offset+data[0].Length <= off {
			data = data[1:]
		}
		n, hole := min(diffChunk, size-off), false
		switch {
		case len(data) == 0:
			n, hole = size-off, true
		case data[0].Offset >= off+n:
			n, hole = min(max(data[0].Offset/diffChunk*diffChunk, off+n), size)-off, true
		}
		if err := do(off, n, hole); err != nil {
			return err
		}
		off += n
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
	for at := off; at < off+n; {
		i := at / s.unit
		if page := i / pageLeaves; i >= s.count() || s.pages[page].Load() == nil {
			at = (page + 1) * pageLeaves * s.unit // they were zeros
			continue
		}
		if !s.same(i, sumZeros, size) {
			out = replicate.AppendExtent(out, replicate.Extent{Offset: at, Length: min(s.unit, off+n-at)})
		}
		at += s.unit
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
	if i >= s.count() {
		return sum == sumZeros
	}
	was := s.load(i)
	if was != sum || was == sumUnknown {
		return false
	}
	return sum == sumZeros || min((i+1)*s.unit, size) == min((i+1)*s.unit, s.size)
}

// sparse is what knows without a look at its bytes where it is zeros.
type sparse interface {
	// NextData is where bytes begin, at off or behind it, that may be others than zeros; the size if there are none.
	NextData(off int64) int64
	// NextHole is where zeros begin that are known to be zeros, at off or behind it; the size if there are none.
	NextHole(off int64) int64
}

// sumsOf reads all of src, also what looks like a hole of its file: only a read finds that it is damage.
func sumsOf(src io.ReaderAt, size int64) (*leafSums, error) {
	s := makeSums(size, unitOf(size))
	r := &recorder{src: src, sums: s}
	buf := make([]byte, min(diffChunk, max(size, 1)))
	for off := int64(0); off < size; off += diffChunk {
		if src, ok := src.(sparse); ok {
			off = src.NextData(off) / diffChunk * diffChunk
		}
		n := min(diffChunk, size-off)
		if n <= 0 {
			break
		}
		s.forget([]replicate.Extent{{Offset: off, Length: n}})
		if _, err := readFull(r, buf[:n], off); err != nil {
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
