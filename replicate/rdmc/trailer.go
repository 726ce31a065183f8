package rdmc

import (
	"encoding/binary"
	"fmt"

	"github.com/minio/crc64nvme"
)

// trailerSize is the length of what follows each block on the wire:
//
//	0  message number   8 bytes, little endian
//	8  block            8
//	16 message size     8
//	24 epoch            4
//	28 length           4  of the block
//	32 CRC-64/NVME      8  of the block and the 32 bytes before
//
// It is made once, by the root, and relayed unchanged, so that it covers the block from end to end.
const (
	trailerSize = 40
	crcBytes    = 8 // at its end
)

// trailer is what a block says of itself.
type trailer struct {
	seq    uint64
	block  uint64
	size   uint64 // of the message
	epoch  uint32
	length uint32
}

// seal writes the trailer of a block into b, of trailerSize bytes.
func (t trailer) seal(block, b []byte) {
	t.put(b)
	binary.LittleEndian.PutUint64(b[trailerSize-crcBytes:], checksum(block, b))
}

// put writes the trailer into b, without the checksum.
func (t trailer) put(b []byte) {
	binary.LittleEndian.PutUint64(b, t.seq)
	binary.LittleEndian.PutUint64(b[8:], t.block)
	binary.LittleEndian.PutUint64(b[16:], t.size)
	binary.LittleEndian.PutUint32(b[24:], t.epoch)
	binary.LittleEndian.PutUint32(b[28:], t.length)
}

// checksum is that of a block and of its trailer up to the checksum's place.
func checksum(block, b []byte) uint64 {
	return crc64nvme.Update(crc64nvme.Checksum(block), b[:trailerSize-crcBytes])
}

// split takes apart a block and the trailer behind it; the trailer is nil if there is no room for one.
func split(buf []byte) (block, b []byte) {
	if len(buf) < trailerSize {
		return buf, nil
	}
	n := len(buf) - trailerSize
	return buf[:n:n], buf[n:]
}

// sealedCRC is the CRC-64/NVME of each block with its trailer, as it is of any bytes with their CRC behind them.
const sealedCRC = 0x0cefcfc4d49091bd

// unsealChecked is unseal for a block whose CRC, with the trailer's, the provider has given.
func unsealChecked(block, b []byte, crc uint64) (trailer, error) {
	if len(b) == trailerSize && crc != sealedCRC {
		return trailer{}, fmt.Errorf("%w: checksum of block and trailer %016x", ErrCorrupt, crc)
	}
	return parseTrailer(block, b)
}

// unseal checks a block with its trailer b and returns what it says of itself, or ErrCorrupt.
func unseal(block, b []byte) (trailer, error) {
	if len(b) != trailerSize {
		return parseTrailer(block, b)
	}
	sum := checksum(block, b)
	if want := binary.LittleEndian.Uint64(b[trailerSize-crcBytes:]); sum != want {
		return trailer{}, fmt.Errorf("%w: checksum %016x, want %016x", ErrCorrupt, sum, want)
	}
	return parseTrailer(block, b)
}

// parseTrailer decodes a trailer whose checksum is good.
func parseTrailer(block, b []byte) (trailer, error) {
	if len(b) != trailerSize {
		return trailer{}, fmt.Errorf("%w: %d bytes", ErrCorrupt, len(block)+len(b))
	}
	t := trailer{
		seq:    binary.LittleEndian.Uint64(b),
		block:  binary.LittleEndian.Uint64(b[8:]),
		size:   binary.LittleEndian.Uint64(b[16:]),
		epoch:  binary.LittleEndian.Uint32(b[24:]),
		length: binary.LittleEndian.Uint32(b[28:]),
	}
	if int(t.length) != len(block) {
		return trailer{}, fmt.Errorf("%w: length %d in %d bytes", ErrCorrupt, t.length, len(block))
	}
	return t, nil
}
