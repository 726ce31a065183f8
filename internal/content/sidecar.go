package content

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// The sidecar of a content: header, shape, rows (one per stream block), leaves (one per touched block of a
// delta), and the stream itself if it is inline. docs/FORMAT.md has the tables.
const (
	sidecarMagic   = "rdmcfsCT"
	sidecarVersion = 1
	headerBytes    = 192
	headerSpare    = 60 // of them, before the checksum
	rowBytes       = len(Hash{}) + 4*chunksPerBlock + 4
	leafBytes      = len(Hash{}) + 4
)

// Flags of a header.
const (
	flagComplete    = 1 << iota // root and all rows are there
	flagInline                  // the stream lies in the sidecar
	flagDelta                   // there is a base
	flagFoldInPlace             // a fold sidecar: the bytes are being written into the base's file
	flagsKnown      = flagComplete | flagInline | flagDelta | flagFoldInPlace
)

// header is the fixed head of a sidecar.
type header struct {
	flags       uint16
	id          ID
	base        ID
	size        int64
	streamBytes int64
	leafCount   int64
	shapeLen    int64
	shapeCRC    uint32
	root        Hash
	foldBase    ID // with flagFoldInPlace: whose file becomes the content's
}

func (h *header) has(any uint16) bool { return h.flags&any != 0 }

// Offsets of the sections.
func (h *header) rowsOff() int64   { return headerBytes + h.shapeLen }
func (h *header) leavesOff() int64 { return h.rowsOff() + blockCount(h.streamBytes)*int64(rowBytes) }
func (h *header) inlineOff() int64 { return h.leavesOff() + h.leafCount*int64(leafBytes) }

// fileBytes is the size of a whole sidecar.
func (h *header) fileBytes() int64 {
	if h.has(flagInline) {
		return h.inlineOff() + h.streamBytes
	}
	return h.inlineOff()
}

// flatHeader has the lengths of a content without a base and without holes.
func flatHeader(size int64) header {
	shape := coder.Writer(nil, coder.Little)
	(&Shape{Size: size}).code(&shape)
	h := header{size: size, streamBytes: size, shapeLen: int64(len(shape.Written()))}
	if size <= InlineBytesMax {
		h.flags = flagInline
	}
	return h
}

// code lists the fields of a header and its format's version.
func (h *header) code(c *coder.Coder, version *uint16) {
	mark := c.Mark()
	c.Magic(sidecarMagic)
	c.U16(version)
	c.U16(&h.flags)
	c.U32(&h.shapeCRC)
	c.Fixed(h.id[:])
	c.Fixed(h.base[:])
	c.I64(&h.size)
	c.I64(&h.streamBytes)
	c.I64(&h.leafCount)
	c.I64(&h.shapeLen)
	c.Fixed(h.root[:])
	c.Fixed(h.foldBase[:])
	c.Pad(headerSpare)
	c.Sum(mark)
}

// append encodes the header.
func (h *header) append(b []byte) []byte {
	version := uint16(sidecarVersion)
	c := coder.Writer(b, coder.Little)
	h.code(&c, &version)
	return c.Written()
}

// decodeHeader checks and reads a header. It bounds every length.
func decodeHeader(b []byte) (h header, err error) {
	var version uint16
	c := coder.Reader(b[:min(len(b), headerBytes)], coder.Little)
	if h.code(&c, &version); c.Finish() != nil {
		return header{}, fmt.Errorf("content: sidecar header: %w: %w", ErrCorrupt, c.Err())
	}
	if version != sidecarVersion {
		return header{}, fmt.Errorf("content: sidecar version %d: %w", version, ErrFormat)
	}
	return h, h.check()
}

func (h *header) check() error {
	bad := h.flags&^flagsKnown != 0 || h.id.IsZero() ||
		h.size < 0 || h.size > SizeMax ||
		h.streamBytes < 0 || h.streamBytes > h.size ||
		h.leafCount < 0 || h.leafCount > blockCount(h.size) ||
		h.shapeLen < 0 || h.shapeLen > ShapeBytesMax ||
		h.has(flagInline) && h.streamBytes > InlineBytesMax ||
		h.has(flagDelta) == h.base.IsZero() ||
		h.has(flagFoldInPlace) && (h.foldBase.IsZero() || h.has(flagDelta|flagInline))
	if bad {
		return fmt.Errorf("content: sidecar header out of bounds: %w", ErrCorrupt)
	}
	return nil
}

// row protects one block of the stream at rest.
type row struct {
	leaf Hash // of the stream block; for a plain content this is the leaf of the content's block
	crcs [chunksPerBlock]uint32
}

// code lists the fields of a row; its checksum binds the content and the place, so that a misplaced row is found.
func (r *row) code(c *coder.Coder, at *place) {
	mark := c.Mark()
	c.Fixed(r.leaf[:])
	for i := range r.crcs {
		c.U32(&r.crcs[i])
	}
	c.SumAfter(Checksum(at[:]), mark)
}

func (r *row) append(b []byte, at *place) []byte {
	c := coder.Writer(b, coder.Little)
	r.code(&c, at)
	return c.Written()
}

// decodeRow reads a row and reports whether it is whole.
func decodeRow(b []byte, at *place) (r row, ok bool) {
	c := coder.Reader(b[:min(len(b), rowBytes)], coder.Little)
	if r.code(&c, at); !c.OK() {
		return row{}, false
	}
	return r, true
}

// place is a place of a content: its id and an index, as bytes. It lies in a scratch so that the checksums of
// the data path do not allocate.
type place [len(ID{}) + 8]byte

func (a *place) set(id ID, index int64) *place {
	c := coder.Writer(a[:0], coder.Little)
	c.Fixed(id[:])
	c.I64(&index)
	return a
}

// codeLeaf lists the fields of the own leaf of block i of a delta.
func codeLeaf(c *coder.Coder, leaf *Hash, id ID, block int64) {
	mark := c.Mark()
	c.Fixed(leaf[:])
	c.SumAfter(Checksum(new(place).set(id, ^block)[:]), mark)
}

func appendLeaf(b []byte, leaf *Hash, id ID, block int64) []byte {
	c := coder.Writer(b, coder.Little)
	codeLeaf(&c, leaf, id, block)
	return c.Written()
}

func decodeLeaf(b []byte, id ID, block int64) (leaf Hash, ok bool) {
	c := coder.Reader(b[:min(len(b), leafBytes)], coder.Little)
	codeLeaf(&c, &leaf, id, block)
	return leaf, c.OK()
}

// fillRow computes the checks of one block of the stream.
func fillRow(r *row, block []byte) {
	r.leaf = Leaf(block)
	for c := range r.crcs {
		if c*ChunkBytes >= len(block) {
			r.crcs[c] = 0
			continue
		}
		r.crcs[c] = Checksum(block[c*ChunkBytes : min((c+1)*ChunkBytes, len(block))])
	}
}
