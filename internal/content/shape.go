package content

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Run is a run of whole blocks.
type Run struct {
	First, Count int64
}

// Extent is a byte range of a content. Zero says that the range reads as zeros and has no bytes in the stream.
type Extent struct {
	Off, Len int64
	Zero     bool
}

// End is the first offset after the extent.
func (e Extent) End() int64 { return e.Off + e.Len }

// Shape says how a content is stored and sent; it is announced before a transfer. A Shape with a zero Base is
// plain: all bytes are in the stream but those of the Holes. With a Base it is a delta: the Extents (sorted,
// not overlapping, inside Size) replace the base's bytes; what lies behind BaseSize and in no extent is zero.
type Shape struct {
	Size     int64
	Holes    []Run // plain only: runs of blocks that are all zero and lie in holes
	Base     ID
	BaseSize int64    // delta only: the size of the base
	Extents  []Extent // delta only
}

// IsDelta reports whether the shape has a base.
func (s Shape) IsDelta() bool { return !s.Base.IsZero() }

// blockCount is the number of blocks of size bytes.
func blockCount(size int64) int64 { return (size + BlockBytes - 1) / BlockBytes }

// blockLen is the length of block i of size bytes.
func blockLen(size, i int64) int64 { return min(BlockBytes, size-i*BlockBytes) }

// Validate reports ErrShape with the reason if the shape breaks a rule.
func (s Shape) Validate() error {
	if s.Size < 0 || s.Size > SizeMax {
		return fmt.Errorf("content: shape of %d bytes: %w", s.Size, ErrShape)
	}
	if s.IsDelta() {
		return s.validateDelta()
	}
	return s.validatePlain()
}

func (s Shape) validatePlain() error {
	if len(s.Extents) != 0 || s.BaseSize != 0 {
		return fmt.Errorf("content: shape: extents without a base: %w", ErrShape)
	}
	if len(s.Holes) > ExtentsMax {
		return fmt.Errorf("content: shape: %d holes: %w", len(s.Holes), ErrShape)
	}
	next, blocks := int64(0), blockCount(s.Size)
	for _, h := range s.Holes {
		if h.Count <= 0 || h.First < next || h.First > blocks || h.Count > blocks-h.First {
			return fmt.Errorf("content: shape: hole of %d blocks at %d: %w", h.Count, h.First, ErrShape)
		}
		next = h.First + h.Count
	}
	return nil
}

func (s Shape) validateDelta() error {
	if len(s.Holes) != 0 {
		return fmt.Errorf("content: shape: holes in a delta: %w", ErrShape)
	}
	if s.BaseSize < 0 || s.BaseSize > SizeMax || len(s.Extents) > ExtentsMax {
		return fmt.Errorf("content: shape: base of %d bytes, %d extents: %w", s.BaseSize, len(s.Extents), ErrShape)
	}
	next := int64(0)
	for _, e := range s.Extents {
		if e.Len <= 0 || e.Off < next || e.Off > s.Size || e.Len > s.Size-e.Off {
			return fmt.Errorf("content: shape: extent of %d bytes at %d: %w", e.Len, e.Off, ErrShape)
		}
		next = e.End()
	}
	return nil
}

// Equal reports whether two shapes are the same.
func (s Shape) Equal(o Shape) bool {
	return s.Size == o.Size && s.Base == o.Base && s.BaseSize == o.BaseSize &&
		slices.Equal(s.Holes, o.Holes) && slices.Equal(s.Extents, o.Extents)
}

// Bounds of an encoded shape.
const (
	shapeVersion = 1
	// ShapeBytesMax bounds the encoding of a shape.
	ShapeBytesMax = 64 + ExtentsMax*2*binary.MaxVarintLen64
)

// AppendBinary appends the encoding of the shape, which travels in announcements and lies in sidecars.
// The shape must be valid.
func (s Shape) AppendBinary(b []byte) ([]byte, error) {
	if err := s.Validate(); err != nil {
		return b, err
	}
	b = append(b, shapeVersion)
	b = append(b, s.Base[:]...)
	b = binary.AppendUvarint(b, uint64(s.Size))
	b = binary.AppendUvarint(b, uint64(s.BaseSize))
	b = binary.AppendUvarint(b, uint64(len(s.Holes)))
	next := int64(0)
	for _, h := range s.Holes {
		b = binary.AppendUvarint(b, uint64(h.First-next))
		b = binary.AppendUvarint(b, uint64(h.Count))
		next = h.First + h.Count
	}
	b = binary.AppendUvarint(b, uint64(len(s.Extents)))
	next = 0
	for _, e := range s.Extents {
		b = binary.AppendUvarint(b, uint64(e.Off-next))
		b = binary.AppendUvarint(b, uint64(e.Len)<<1|boolBit(e.Zero))
		next = e.End()
	}
	return b, nil
}

func boolBit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// DecodeShape reads what [Shape.AppendBinary] wrote; the whole of b must be used. What it returns is valid.
func DecodeShape(b []byte) (Shape, error) {
	d := decoder{rest: b}
	if v := d.byte(); d.err == nil && v != shapeVersion {
		return Shape{}, fmt.Errorf("content: decode shape: version %d: %w", v, ErrShape)
	}
	var s Shape
	d.bytes(s.Base[:])
	s.Size = d.size()
	s.BaseSize = d.size()
	s.Holes = decodeHoles(&d)
	s.Extents = decodeExtents(&d)
	if d.err != nil {
		return Shape{}, fmt.Errorf("content: decode shape: %w", d.err)
	}
	if len(d.rest) != 0 {
		return Shape{}, fmt.Errorf("content: decode shape: %d bytes too many: %w", len(d.rest), ErrShape)
	}
	if err := s.Validate(); err != nil {
		return Shape{}, err
	}
	return s, nil
}

func decodeHoles(d *decoder) []Run {
	n := d.count()
	if n == 0 {
		return nil
	}
	holes := make([]Run, 0, n)
	next := int64(0)
	for range n {
		h := Run{First: next + d.size(), Count: d.size()}
		holes = append(holes, h)
		next = h.First + h.Count
		if next > SizeMax {
			d.fail("hole beyond the largest size")
		}
		if d.err != nil {
			return nil
		}
	}
	return holes
}

func decodeExtents(d *decoder) []Extent {
	n := d.count()
	if n == 0 {
		return nil
	}
	extents := make([]Extent, 0, n)
	next := int64(0)
	for range n {
		off, length := d.size(), d.uvarint()
		e := Extent{Off: next + off, Len: int64(length >> 1), Zero: length&1 == 1}
		extents = append(extents, e)
		if e.Len > SizeMax || e.Off > SizeMax {
			d.fail("extent beyond the largest size")
		}
		next = e.End()
		if d.err != nil {
			return nil
		}
	}
	return extents
}

// decoder reads fields from a byte string; the first error sticks.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail(why string) {
	if d.err == nil {
		d.err = fmt.Errorf("%s: %w", why, ErrShape)
	}
}

func (d *decoder) byte() byte {
	var b [1]byte
	d.bytes(b[:])
	return b[0]
}

func (d *decoder) bytes(p []byte) {
	if d.err != nil || len(d.rest) < len(p) {
		d.fail("truncated")
		return
	}
	copy(p, d.rest)
	d.rest = d.rest[len(p):]
}

func (d *decoder) uvarint() uint64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.fail("truncated")
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) size() int64 {
	v := d.uvarint()
	if v > SizeMax {
		d.fail("number out of bounds")
		return 0
	}
	return int64(v)
}

// count reads the number of entries that follow, each of which takes two bytes at least.
func (d *decoder) count() int {
	v := d.uvarint()
	if v > ExtentsMax || v > uint64(len(d.rest)/2) {
		d.fail("count out of bounds")
		return 0
	}
	return int(v)
}
