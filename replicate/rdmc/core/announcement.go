package core

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// Bounds of messages and groups.
const (
	// MaxMessageBytes bounds the size of a message.
	MaxMessageBytes = 1 << 48
	// MaxMessageBlocks bounds the number of blocks of a message.
	MaxMessageBlocks = 1 << 32
	// MaxBlockSize bounds the block size.
	MaxBlockSize = 64 << 20
	// MaxMembers bounds the members of a group.
	MaxMembers = schedule.MaxMembers
)

// Announcement is what every member must know of a message, out of band, before its blocks move.
type Announcement struct {
	// Seq is the message's number in its group, from 1, without gaps.
	Seq uint64
	// Size is the message's length in bytes.
	Size uint64
	// Blocks are the blocks that will move; others are left alone.
	Blocks Ranges
}

// BlockCount is the number of blocks of a message of size bytes.
func BlockCount(size uint64, blockSize int) uint64 {
	return (size + uint64(blockSize) - 1) / uint64(blockSize)
}

// BlockLength is the length of block i of a message of size bytes.
func BlockLength(size uint64, blockSize int, i uint64) int {
	return int(min(uint64(blockSize), size-i*uint64(blockSize)))
}

func (a *Announcement) code(c *coder.Coder) {
	c.V64(&a.Seq)
	c.V64(&a.Size)
	a.Blocks.Code(c, MaxMessageBlocks)
}

// AppendBinary appends the announcement's encoding.
func (a Announcement) AppendBinary(b []byte) []byte {
	c := coder.Writer(b, coder.Little)
	a.code(&c)
	return c.Written()
}

// DecodeAnnouncement decodes what AppendBinary made.
func DecodeAnnouncement(b []byte) (a Announcement, err error) {
	c := coder.Reader(b, coder.Little)
	if a.code(&c); c.Finish() != nil {
		return Announcement{}, fmt.Errorf("%w: announcement: %w", ErrInvalid, c.Err())
	}
	if err := a.Blocks.Validate(MaxMessageBlocks); err != nil {
		return Announcement{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return a, nil
}

// Validate returns ErrInvalid if the announcement does not fit a group with the given block size in bytes.
func (a Announcement) Validate(blockSize int) error {
	if a.Seq == 0 || a.Size > MaxMessageBytes {
		return fmt.Errorf("%w: message %d of %d bytes", ErrInvalid, a.Seq, a.Size)
	}
	blocks := BlockCount(a.Size, blockSize)
	if blocks > MaxMessageBlocks {
		return fmt.Errorf("%w: message of %d blocks", ErrInvalid, blocks)
	}
	if len(a.Blocks) > MaxRanges {
		return fmt.Errorf("%w: message of %d runs of blocks, which no member would decode", ErrInvalid, len(a.Blocks))
	}
	if err := a.Blocks.Validate(blocks); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}
