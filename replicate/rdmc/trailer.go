package rdmc

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// trailerSize is the length of what follows each block on the wire:
//
//	0  message number   8 bytes, little endian
//	8  block            8
//	16 message size     8
//	24 epoch            4
//	28 length           4  of the block
//	32 reserved         4  zero
//	36 CRC-32C          4  of the block and the 36 bytes before
//
// It is made once, by the root, and relayed unchanged, so that it covers the block from end to end.
const trailerSize = 40

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// trailer is what a block says of itself.
type trailer struct {
	seq    uint64
	block  uint64
	size   uint64 // of the message
	epoch  uint32
	length uint32
}

// seal writes the trailer into the last bytes of buf, behind the block.
func (t trailer) seal(buf []byte) {
	b := buf[len(buf)-trailerSize:]
	binary.LittleEndian.PutUint64(b, t.seq)
	binary.LittleEndian.PutUint64(b[8:], t.block)
	binary.LittleEndian.PutUint64(b[16:], t.size)
	binary.LittleEndian.PutUint32(b[24:], t.epoch)
	binary.LittleEndian.PutUint32(b[28:], t.length)
	binary.LittleEndian.PutUint32(b[32:], 0)
	binary.LittleEndian.PutUint32(b[36:], crc32.Checksum(buf[:len(buf)-4], castagnoli))
}

// unseal checks a block with its trailer and returns what it says of itself, or ErrCorrupt.
func unseal(buf []byte) (trailer, error) {
	if len(buf) < trailerSize {
		return trailer{}, fmt.Errorf("%w: %d bytes", ErrCorrupt, len(buf))
	}
	b := buf[len(buf)-trailerSize:]
	sum := crc32.Checksum(buf[:len(buf)-4], castagnoli)
	if want := binary.LittleEndian.Uint32(b[36:]); sum != want {
		return trailer{}, fmt.Errorf("%w: checksum %08x, want %08x", ErrCorrupt, sum, want)
	}
	t := trailer{
		seq:    binary.LittleEndian.Uint64(b),
		block:  binary.LittleEndian.Uint64(b[8:]),
		size:   binary.LittleEndian.Uint64(b[16:]),
		epoch:  binary.LittleEndian.Uint32(b[24:]),
		length: binary.LittleEndian.Uint32(b[28:]),
	}
	if reserved := binary.LittleEndian.Uint32(b[32:]); reserved != 0 || int(t.length) != len(buf)-trailerSize {
		return trailer{}, fmt.Errorf("%w: length %d in %d bytes", ErrCorrupt, t.length, len(buf))
	}
	return t, nil
}
