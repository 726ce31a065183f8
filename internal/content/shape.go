package content

import (
	"fmt"
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/internal/coder"
)

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
	Holes    blockset.Ranges // plain only: blocks that are all zero and lie in holes; runs may touch
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
	next, blocks := uint64(0), uint64(blockCount(s.Size))
	for _, h := range s.Holes {
		if h.Count == 0 || h.First < next || h.First > blocks || h.Count > blocks-h.First {
			return fmt.Errorf("content: shape: hole of %d blocks at %d: %w", h.Count, h.First, ErrShape)
		}
		next = h.End()
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
	ShapeBytesMax = 64 + ExtentsMax*2*coder.VarintBytesMax
)

// AppendBinary appends the encoding of the shape, which travels in announcements and lies in sidecars.
// The shape must be valid.
func (s Shape) AppendBinary(b []byte) ([]byte, error) {
	if err := s.Validate(); err != nil {
		return b, err
	}
	c := coder.Writer(b, coder.Little)
	s.code(&c)
	return c.Written(), nil
}

// DecodeShape reads what [Shape.AppendBinary] wrote; the whole of b must be used. What it returns is valid.
func DecodeShape(b []byte) (s Shape, err error) {
	c := coder.Reader(b, coder.Little)
	if s.code(&c); c.Finish() != nil {
		return Shape{}, fmt.Errorf("content: decode shape: %w: %w", ErrShape, c.Err())
	}
	if err := s.Validate(); err != nil {
		return Shape{}, err
	}
	return s, nil
}

func (s *Shape) code(c *coder.Coder) {
	c.Same8("version", shapeVersion)
	c.Fixed(s.Base[:])
	c.Size(&s.Size, SizeMax)
	c.Size(&s.BaseSize, SizeMax)
	s.Holes.Code(c, SizeMax)
	next := int64(0)
	for i := range coder.Slice(c, &s.Extents, ExtentsMax, 2) {
		next = s.Extents[i].code(c, next)
	}
}

// code lists the fields of an extent behind the one that ends at next, and returns where this one ends.
func (e *Extent) code(c *coder.Coder, next int64) int64 {
	gap, length := e.Off-next, uint64(e.Len)<<1
	if e.Zero {
		length |= 1
	}
	c.Size(&gap, SizeMax)
	c.V64(&length)
	if !c.Reading() {
		return e.End()
	}
	if !c.OK() || next+gap > SizeMax || length>>1 > SizeMax {
		c.Fail("extent beyond the largest size")
		return 0
	}
	*e = Extent{Off: next + gap, Len: int64(length >> 1), Zero: length&1 == 1}
	return e.End()
}
