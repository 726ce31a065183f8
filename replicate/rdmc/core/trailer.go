package core

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
	TrailerSize = 40
	crcBytes    = 8 // at its end
)

// Trailer is what a block says of itself.
type Trailer struct {
	Seq    uint64
	Block  uint64
	Size   uint64 // of the message
	Epoch  uint32
	Length uint32
}

// Seal writes the trailer of a block into b, of trailerSize bytes.
func (t Trailer) Seal(block, b []byte) {
	t.Put(b)
	binary.LittleEndian.PutUint64(b[TrailerSize-crcBytes:], checksum(block, b))
}

// Put writes the trailer into b, without the checksum.
func (t Trailer) Put(b []byte) {
	binary.LittleEndian.PutUint64(b, t.Seq)
	binary.LittleEndian.PutUint64(b[8:], t.Block)
	binary.LittleEndian.PutUint64(b[16:], t.Size)
	binary.LittleEndian.PutUint32(b[24:], t.Epoch)
	binary.LittleEndian.PutUint32(b[28:], t.Length)
}

// checksum is that of a block and of its trailer up to the checksum's place.
func checksum(block, b []byte) uint64 {
	return crc64nvme.Update(crc64nvme.Checksum(block), b[:TrailerSize-crcBytes])
}

// Split takes apart a block and the trailer behind it; the trailer is nil if there is no room for one.
func Split(buf []byte) (block, b []byte) {
	if len(buf) < TrailerSize {
		return buf, nil
	}
	n := len(buf) - TrailerSize
	return buf[:n:n], buf[n:]
}

// sealedCRC is the CRC-64/NVME of each block with its trailer, as it is of any bytes with their CRC behind them.
const sealedCRC = 0x0cefcfc4d49091bd

// UnsealChecked is unseal for a block whose CRC, with the trailer's, the provider has given.
func UnsealChecked(block, b []byte, crc uint64) (Trailer, error) {
	if len(b) == TrailerSize && crc != sealedCRC {
		return Trailer{}, fmt.Errorf("%w: checksum of block and trailer %016x", ErrCorrupt, crc)
	}
	return parseTrailer(block, b)
}

// Unseal checks a block with its trailer b and returns what it says of itself, or ErrCorrupt.
func Unseal(block, b []byte) (Trailer, error) {
	if len(b) != TrailerSize {
		return parseTrailer(block, b)
	}
	sum := checksum(block, b)
	if want := binary.LittleEndian.Uint64(b[TrailerSize-crcBytes:]); sum != want {
		return Trailer{}, fmt.Errorf("%w: checksum %016x, want %016x", ErrCorrupt, sum, want)
	}
	return parseTrailer(block, b)
}

// parseTrailer decodes a trailer whose checksum is good.
func parseTrailer(block, b []byte) (Trailer, error) {
	if len(b) != TrailerSize {
		return Trailer{}, fmt.Errorf("%w: %d bytes", ErrCorrupt, len(block)+len(b))
	}
	t := Trailer{
		Seq:    binary.LittleEndian.Uint64(b),
		Block:  binary.LittleEndian.Uint64(b[8:]),
		Size:   binary.LittleEndian.Uint64(b[16:]),
		Epoch:  binary.LittleEndian.Uint32(b[24:]),
		Length: binary.LittleEndian.Uint32(b[28:]),
	}
	if int(t.Length) != len(block) {
		return Trailer{}, fmt.Errorf("%w: length %d in %d bytes", ErrCorrupt, t.Length, len(block))
	}
	return t, nil
}
