package rdmc

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// blockBuffers are the memory of a group's slots. A slot's block lies in the pool, which has room for a block and its
// trailer on pages of its own for each slot, or where the message is placed. In that case only its trailer is in the
// pool, after the blocks of all slots. Unused pages cost nothing. The group's lock is held in all methods.
type blockBuffers struct {
	group     uint64 // its number, for errors
	blockSize int    // in bytes
	slots     int
	lanes     int
	pool      rdma.Region // nil while there are no messages
	places    []rdma.SGE  // by slot: where its block lies if not in the pool
	unsealed  []bool      // by slot: its block is placed, and each send makes its sum
}

func newBlockBuffers(cfg *GroupConfig, slots, lanes int) blockBuffers {
	return blockBuffers{group: cfg.Number, blockSize: cfg.BlockSize, slots: slots, lanes: lanes,
		places: make([]rdma.SGE, slots), unsealed: make([]bool, slots)}
}

// open allocates the pool if it is not there.
func (b *blockBuffers) open(device rdma.Device) error {
	if b.pool != nil {
		return nil
	}
	pool, err := device.AllocRegion(b.size(), 0)
	if err != nil {
		return fmt.Errorf("rdmc: block buffers of group %d: %w", b.group, err)
	}
	b.pool = pool
	return nil
}

// size is how many bytes the pool has.
func (b *blockBuffers) size() int { return b.trailerAt(b.slots, 0) }

// stride is how many bytes a slot has in the pool.
func (b *blockBuffers) stride() int { return (b.blockSize + core.TrailerSize + 4095) &^ 4095 }

// trailerStride keeps each trailer in a cache line of its own.
const trailerStride = 64

// trailerAt is where a trailer of a placed block lies in the pool: the slot's first trailer is what came with the
// block, the others are what goes to each lane, where the provider makes the sum.
func (b *blockBuffers) trailerAt(slot, n int) int {
	return b.slots*b.stride() + (slot*(1+b.lanes)+n)*trailerStride
}

func (b *blockBuffers) isPlaced(slot int) bool { return b.places[slot].Region != nil }

// list is the memory of a slot for length bytes on the wire, with the trailer at an offset of the pool if the block is
// placed. It lies in sge.
func (b *blockBuffers) list(sge *[2]rdma.SGE, slot, length, trailerAt int) []rdma.SGE {
	if !b.isPlaced(slot) {
		sge[0] = rdma.SGE{Region: b.pool, Offset: slot * b.stride(), Length: length}
		return sge[:1]
	}
	sge[0] = b.places[slot]
	sge[1] = rdma.SGE{Region: b.pool, Offset: trailerAt, Length: core.TrailerSize}
	return sge[:2]
}

// bytes is a slot's block, of length bytes on the wire, and its trailer.
func (b *blockBuffers) bytes(slot, length int) (block, trailer []byte) {
	if !b.isPlaced(slot) {
		at := slot * b.stride()
		return core.Split(b.pool.Bytes()[at : at+length : at+length])
	}
	p, at := &b.places[slot], b.trailerAt(slot, 0)
	return p.Region.Bytes()[p.Offset : p.Offset+p.Length : p.Offset+p.Length],
		b.pool.Bytes()[at : at+core.TrailerSize : at+core.TrailerSize]
}

// unseal checks the block that a receive brought, with the provider's checksum if it gave one, and returns what the
// block says of itself.
func (b *blockBuffers) unseal(c *rdma.Completion) (core.Trailer, error) {
	slot := int(c.ID)
	var block, trailer []byte // none if it does not have the length of the place
	if !b.isPlaced(slot) || c.Bytes == b.places[slot].Length+core.TrailerSize {
		block, trailer = b.bytes(slot, c.Bytes)
	}
	if c.HasCRC {
		return core.UnsealChecked(block, trailer, c.CRC)
	}
	return core.Unseal(block, trailer)
}
