package rdmc

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// Buffer is a message in memory, as a Source or a Sink.
type Buffer struct {
	// Data is the message, or has room for it. It is the library's until the transfer has ended.
	Data []byte
	// BlockSize is the block size of the group.
	BlockSize int
	// Region, if not nil, is registered memory of the engine's device that has Data at Offset: then blocks move
	// without a copy.
	Region rdma.Region
	Offset int
}

// Place is where a block lies in the region. A block that is not within Data has no place: WriteBlock reports that.
func (b Buffer) Place(i uint64, length int) rdma.SGE {
	if !b.holds(i, length) {
		return rdma.SGE{}
	}
	return rdma.SGE{Region: b.Region, Offset: b.Offset + int(i)*b.BlockSize, Length: length}
}

// ReadBlock copies block i to buf.
func (b Buffer) ReadBlock(i uint64, buf []byte) error { return b.copy(i, buf, false) }

// WriteBlock copies buf to block i.
func (b Buffer) WriteBlock(i uint64, buf []byte) error { return b.copy(i, buf, true) }

// holds reports whether Data has room for block i of length bytes.
func (b Buffer) holds(i uint64, length int) bool {
	size := uint64(len(b.Data))
	return b.BlockSize > 0 && i <= size/uint64(b.BlockSize) && uint64(length) <= size-i*uint64(b.BlockSize)
}

func (b Buffer) copy(i uint64, buf []byte, in bool) error {
	if !b.holds(i, len(buf)) {
		return fmt.Errorf("%w: block %d of %d bytes in a buffer of %d", ErrInvalid, i, len(buf), len(b.Data))
	}
	if at := b.Data[i*uint64(b.BlockSize):]; in {
		copy(at, buf)
	} else {
		copy(buf, at)
	}
	return nil
}
