package content

import (
	"encoding/binary"
	"fmt"
)

// The sidecar of a content: header, shape, rows (one per stream block), leaves (one per touched block of a
// delta), and the stream itself if it is inline. docs/FORMAT.md has the tables.
const (
	sidecarMagic   = "rdmcfsCT"
	sidecarVersion = 1
	headerBytes    = 192
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

// append encodes the header.
func (h *header) append(b []byte) []byte {
	start := len(b)
	b = append(b, sidecarMagic...)
	b = binary.LittleEndian.AppendUint16(b, sidecarVersion)
	b = binary.LittleEndian.AppendUint16(b, h.flags)
	b = binary.LittleEndian.AppendUint32(b, h.shapeCRC)
	b = append(b, h.id[:]...)
	b = append(b, h.base[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.size))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.streamBytes))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.leafCount))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.shapeLen))
	b = append(b, h.root[:]...)
	b = append(b, h.foldBase[:]...)
	b = append(b, make([]byte, headerBytes-4-(len(b)-start))...)
	return binary.LittleEndian.AppendUint32(b, Checksum(b[start:]))
}

// decodeHeader checks and reads a header. It bounds every length.
func decodeHeader(b []byte) (header, error) {
	var h header
	if len(b) < headerBytes {
		return h, fmt.Errorf("content: sidecar header of %d bytes: %w", len(b), ErrCorrupt)
	}
	b = b[:headerBytes]
	if string(b[:8]) != sidecarMagic || Checksum(b[:headerBytes-4]) != binary.LittleEndian.Uint32(b[headerBytes-4:]) {
		return h, fmt.Errorf("content: sidecar header: %w", ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint16(b[8:]); v != sidecarVersion {
		return h, fmt.Errorf("content: sidecar version %d: %w", v, ErrFormat)
	}
	h.flags = binary.LittleEndian.Uint16(b[10:])
	h.shapeCRC = binary.LittleEndian.Uint32(b[12:])
	copy(h.id[:], b[16:])
	copy(h.base[:], b[32:])
	h.size = int64(binary.LittleEndian.Uint64(b[48:]))
	h.streamBytes = int64(binary.LittleEndian.Uint64(b[56:]))
	h.leafCount = int64(binary.LittleEndian.Uint64(b[64:]))
	h.shapeLen = int64(binary.LittleEndian.Uint64(b[72:]))
	copy(h.root[:], b[80:])
	copy(h.foldBase[:], b[112:])
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

// append encodes the row; its checksum binds the content and the place, so that a misplaced row is found.
func (r *row) append(b []byte, at *place) []byte {
	start := len(b)
	b = append(b, r.leaf[:]...)
	for _, crc := range r.crcs {
		b = binary.LittleEndian.AppendUint32(b, crc)
	}
	return binary.LittleEndian.AppendUint32(b, at.checksum(b[start:]))
}

// decodeRow reads a row and reports whether it is whole.
func decodeRow(b []byte, at *place) (r row, ok bool) {
	if len(b) < rowBytes {
		return r, false
	}
	body := b[:rowBytes-4]
	if at.checksum(body) != binary.LittleEndian.Uint32(b[rowBytes-4:]) {
		return r, false
	}
	copy(r.leaf[:], body)
	for i := range r.crcs {
		r.crcs[i] = binary.LittleEndian.Uint32(body[len(r.leaf)+4*i:])
	}
	return r, true
}

// place is a place of a content: its id and an index, as bytes. It lies in a scratch so that the checksums of
// the data path do not allocate.
type place [len(ID{}) + 8]byte

func (a *place) set(id ID, index int64) *place {
	copy(a[:], id[:])
	binary.LittleEndian.PutUint64(a[len(id):], uint64(index))
	return a
}

// checksum is the CRC of the place and then p, so that misplaced bytes are found.
func (a *place) checksum(p []byte) uint32 { return ChecksumUpdate(Checksum(a[:]), p) }

// appendLeaf encodes the own leaf of block i of a delta.
func appendLeaf(b []byte, leaf *Hash, id ID, block int64) []byte {
	b = append(b, leaf[:]...)
	return binary.LittleEndian.AppendUint32(b, new(place).set(id, ^block).checksum(leaf[:]))
}

func decodeLeaf(b []byte, id ID, block int64) (leaf Hash, ok bool) {
	if len(b) < leafBytes {
		return leaf, false
	}
	copy(leaf[:], b)
	return leaf, new(place).set(id, ^block).checksum(leaf[:]) == binary.LittleEndian.Uint32(b[len(leaf):])
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
