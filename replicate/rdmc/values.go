package rdmc

import (
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// The values that users of groups share with packages core and share.
type (
	// Announcement is what every member must know of a message, out of band, before its blocks move.
	Announcement = core.Announcement
	// Bitmap says which of a message's blocks a member has. It is not safe for concurrent use.
	Bitmap = core.Bitmap
	// Range is a run of blocks.
	Range = core.Range
	// Ranges is a set of blocks: ascending, disjoint, non-empty runs that do not touch.
	Ranges = core.Ranges
	// Reason says why a group failed.
	Reason = core.Reason
	// Priority is the class of a group among the groups of one engine; see docs/decisions/018.
	Priority = share.Priority
)

// Bounds of messages and groups.
const (
	// MaxMessageBytes bounds the size of a message.
	MaxMessageBytes = core.MaxMessageBytes
	// MaxMessageBlocks bounds the number of blocks of a message.
	MaxMessageBlocks = core.MaxMessageBlocks
	// MaxBlockSize bounds the block size.
	MaxBlockSize = core.MaxBlockSize
	// MaxRanges bounds the runs of an encoded set of blocks.
	MaxRanges = core.MaxRanges
	// MaxMembers bounds the members of a group.
	MaxMembers = schedule.MaxMembers
)

// The reasons of failure, as core.Reason explains them.
const (
	ReasonDisconnected = core.ReasonDisconnected
	ReasonSilent       = core.ReasonSilent
	ReasonSink         = core.ReasonSink
	ReasonSource       = core.ReasonSource
	ReasonCorrupt      = core.ReasonCorrupt
	ReasonAborted      = core.ReasonAborted
	ReasonYielded      = core.ReasonYielded
)

// The classes. While groups of several compete for a member's outgoing link, a lower class gets a seventeenth of what
// the next higher one gets; what a class does not ask for goes to the others.
const (
	PriorityLow    = share.PriorityLow
	PriorityNormal = share.PriorityNormal
	PriorityHigh   = share.PriorityHigh
)

var (
	// ErrInvalid is returned for a configuration or argument that can never work.
	ErrInvalid = core.ErrInvalid
	// ErrCorrupt is matched by a GroupError whose reason is a block that failed its check.
	ErrCorrupt = core.ErrCorrupt
)

// NewBitmap makes an empty bitmap for a message of the given number of blocks, at most MaxMessageBlocks.
func NewBitmap(blocks uint64) *Bitmap { return core.NewBitmap(blocks) }

// BitmapOf makes a bitmap with the given blocks set; blocks at or beyond the size are left out.
func BitmapOf(blocks uint64, set Ranges) *Bitmap { return core.BitmapOf(blocks, set) }

// AllBlocks is the set of the first k blocks.
func AllBlocks(k uint64) Ranges { return core.AllBlocks(k) }

// BlockCount is the number of blocks of a message of size bytes.
func BlockCount(size uint64, blockSize int) uint64 { return core.BlockCount(size, blockSize) }

// BlockLength is the length of block i of a message of size bytes.
func BlockLength(size uint64, blockSize int, i uint64) int {
	return core.BlockLength(size, blockSize, i)
}

// DecodeAnnouncement decodes what Announcement.AppendBinary made.
func DecodeAnnouncement(b []byte) (Announcement, error) { return core.DecodeAnnouncement(b) }
