package core

import "github.com/rdmcfs/rdmcfs/internal/blockset"

// Sets of the blocks of a message.
type (
	// Range is a run of blocks.
	Range = blockset.Range
	// Ranges is a set of blocks: ascending, disjoint, non-empty runs that do not touch.
	Ranges = blockset.Ranges
	// Bitmap says which of a message's blocks a member has. It is not safe for concurrent use.
	Bitmap = blockset.Bitmap
)

// MaxRanges bounds the runs of an encoded set.
const MaxRanges = blockset.MaxRanges

// AllBlocks is the set of the first k blocks.
func AllBlocks(k uint64) Ranges { return blockset.All(k) }

// NewBitmap makes an empty bitmap for a message of the given number of blocks, at most MaxMessageBlocks. What only
// claims to be large takes 200 KiB at most.
func NewBitmap(blocks uint64) *Bitmap { return blockset.NewBitmap(blocks) }

// BitmapOf makes a bitmap with the given blocks set; blocks at or beyond the size are left out.
func BitmapOf(blocks uint64, set Ranges) *Bitmap { return blockset.BitmapOf(blocks, set) }
