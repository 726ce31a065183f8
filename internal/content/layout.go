package content

import (
	"fmt"
	"io"
	"sort"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
)

// Layout is the arithmetic of a valid [Shape]: where each byte of the content is in the stream. It is
// immutable and safe for concurrent use.
type Layout struct {
	shape  Shape
	pieces []Extent // sorted; data and zeros; what lies between them is the base's
	starts []int64  // starts[i] is the stream offset of pieces[i]
	stream int64
	leaves blockset.Index // delta: blocks that have a leaf of their own
}

// NewLayout checks the shape and works out its layout. The shape's slices must not be changed afterwards.
func NewLayout(s Shape) (*Layout, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	l := &Layout{shape: s}
	if s.IsDelta() {
		l.pieces = deltaPieces(s)
	} else {
		l.pieces = plainPieces(s)
	}
	l.starts = make([]int64, len(l.pieces))
	for i, p := range l.pieces {
		l.starts[i] = l.stream
		if !p.Zero {
			l.stream += p.Len
		}
	}
	if s.IsDelta() {
		l.leaves = touchedBlocks(s, l.pieces).Index()
	}
	return l, nil
}

// plainPieces turns the holes of a plain shape into data and zero pieces that cover all of it.
func plainPieces(s Shape) []Extent {
	pieces := make([]Extent, 0, 2*len(s.Holes)+1)
	next := int64(0)
	for _, h := range s.Holes {
		off, end := int64(h.First)*BlockBytes, min(int64(h.End())*BlockBytes, s.Size)
		if off > next {
			pieces = append(pieces, Extent{Off: next, Len: off - next})
		}
		pieces = append(pieces, Extent{Off: off, Len: end - off, Zero: true})
		next = end
	}
	if next < s.Size {
		pieces = append(pieces, Extent{Off: next, Len: s.Size - next})
	}
	return pieces
}

// deltaPieces adds zeros for what lies behind the base and in no extent.
func deltaPieces(s Shape) []Extent {
	pieces := make([]Extent, 0, len(s.Extents)+1)
	next := min(s.BaseSize, s.Size)
	for _, e := range s.Extents {
		if e.Off > next {
			pieces = append(pieces, Extent{Off: next, Len: e.Off - next, Zero: true})
		}
		pieces = append(pieces, e)
		next = max(next, e.End())
	}
	if next < s.Size {
		pieces = append(pieces, Extent{Off: next, Len: s.Size - next, Zero: true})
	}
	return pieces
}

// touchedBlocks are the blocks of a delta whose leaf is neither the base's nor that of zeros.
func touchedBlocks(s Shape, pieces []Extent) blockset.Ranges {
	var set blockset.Ranges
	add := func(first, last int64) {
		set.Add(blockset.Range{First: uint64(first), Count: uint64(last - first + 1)})
	}
	cut := min(s.Size, s.BaseSize)
	cutBlock := int64(-1) // a block that is shorter or longer than in the base
	if s.Size != s.BaseSize && cut%BlockBytes != 0 {
		cutBlock = cut / BlockBytes
	}
	addCut := func(before int64) {
		if cutBlock >= 0 && cutBlock <= before {
			add(cutBlock, cutBlock)
			cutBlock = -1
		}
	}
	for _, p := range pieces {
		first, last := p.Off/BlockBytes, (p.End()-1)/BlockBytes
		addCut(first)
		if !p.Zero {
			add(first, last)
			continue
		}
		if !covers(p, first, s.Size) {
			add(first, first)
		}
		if cutBlock > first && cutBlock < last {
			cutBlock = -1 // all of it is zero
		}
		if last != first && !covers(p, last, s.Size) {
			add(last, last)
		}
	}
	addCut(blockCount(s.Size))
	return set
}

// covers reports whether p holds all of block i of a content of size bytes.
func covers(p Extent, i, size int64) bool {
	return p.Off <= i*BlockBytes && p.End() >= i*BlockBytes+blockLen(size, i)
}

// Shape is the shape the layout was made from; its slices must not be changed.
func (l *Layout) Shape() Shape { return l.shape }

// StreamBytes is the length of the stream: what has to be sent and stored.
func (l *Layout) StreamBytes() int64 { return l.stream }

// Blocks is the number of blocks of the stream.
func (l *Layout) Blocks() int64 { return blockCount(l.stream) }

// BlockLen is the length of block i of the stream; every block except the last has [BlockBytes].
func (l *Layout) BlockLen(i int64) int64 { return blockLen(l.stream, i) }

// ReadBlock reads block i of the stream from src, which has the content's bytes at their offsets, into p
// (at least [Layout.BlockLen] long). Bytes that src no longer has (a file cut meanwhile) read as zeros.
func (l *Layout) ReadBlock(src io.ReaderAt, i int64, p []byte) error {
	if i < 0 || i >= l.Blocks() {
		return fmt.Errorf("content: read stream block %d of %d: %w", i, l.Blocks(), ErrShape)
	}
	return l.ReadStream(src, p[:l.BlockLen(i)], i*BlockBytes)
}

// ReadStream reads len(p) bytes of the stream at off from src, as [Layout.ReadBlock] does.
func (l *Layout) ReadStream(src io.ReaderAt, p []byte, off int64) error {
	if off < 0 || off > l.stream || int64(len(p)) > l.stream-off {
		return fmt.Errorf("content: read %d stream bytes at %d of %d: %w", len(p), off, l.stream, ErrShape)
	}
	for len(p) > 0 {
		at, n := l.locate(off)
		n = min(n, int64(len(p)))
		if err := readZeroFilled(src, p[:n], at); err != nil {
			return fmt.Errorf("content: read stream at %d: %w", off, err)
		}
		p, off = p[n:], off+n
	}
	return nil
}

// readZeroFilled reads p at off and takes a short file for zeros.
func readZeroFilled(src io.ReaderAt, p []byte, off int64) error {
	n, err := src.ReadAt(p, off)
	if err == io.EOF || (err == nil && n == len(p)) {
		clear(p[n:])
		return nil
	}
	return err
}

// locate finds the content offset of a stream offset and how many bytes follow it there in one piece.
func (l *Layout) locate(off int64) (at, n int64) {
	i := sort.Search(len(l.starts), func(i int) bool { return l.starts[i] > off }) - 1
	skip := off - l.starts[i]
	return l.pieces[i].Off + skip, l.pieces[i].Len - skip
}

// source says where the bytes of a piece come from.
type source uint8

const (
	fromStream source = iota
	fromZero
	fromBase
)

// part is a range of the content with one source.
type part struct {
	off, len int64 // in the content
	stream   int64 // stream offset if from is fromStream
	from     source
}

// partAt gives the part at off, at most n long. off must be inside the content and n > 0.
func (l *Layout) partAt(off, n int64) part {
	i := sort.Search(len(l.pieces), func(i int) bool { return l.pieces[i].End() > off })
	if i == len(l.pieces) {
		return part{off: off, len: n, from: fromBase}
	}
	p := l.pieces[i]
	if off < p.Off {
		return part{off: off, len: min(n, p.Off-off), from: fromBase}
	}
	n = min(n, p.End()-off)
	if p.Zero {
		return part{off: off, len: n, from: fromZero}
	}
	return part{off: off, len: n, stream: l.starts[i] + off - p.Off, from: fromStream}
}

// fileOffset is where a byte of the stream lies in the data file: a plain content's file has the content's offsets.
func (l *Layout) fileOffset(stream int64) (at, n int64) {
	if l.shape.IsDelta() {
		return stream, l.stream - stream
	}
	return l.locate(stream)
}

// leafSource says where the leaf of block i of the content comes from; for a plain content, index is
// the block of the stream, for a delta it is the place in the table of own leaves.
func (l *Layout) leafSource(i int64) (index int64, from source) {
	if l.shape.IsDelta() {
		if index, ok := l.leaves.Number(uint64(i)); ok {
			return int64(index), fromStream
		}
	}
	p := l.partAt(i*BlockBytes, 1)
	switch {
	case p.from == fromStream:
		return p.stream / BlockBytes, fromStream
	case p.from == fromZero:
		return 0, fromZero
	}
	return 0, fromBase
}
