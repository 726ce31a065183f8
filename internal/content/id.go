package content

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// Sizes of the store. They are part of the format.
const (
	// BlockBytes is the size of a block: what one leaf hash covers and one transfer carries.
	BlockBytes = 1 << 20
	// ChunkBytes is what one CRC32C at rest covers.
	ChunkBytes = 64 << 10
	// PageBytes is the granularity of an overlay's dirty map.
	PageBytes = 4 << 10
	// InlineBytesMax is the largest stream that is kept inside the sidecar.
	InlineBytesMax = 64 << 10
	// SizeMax is the largest content.
	SizeMax = 1 << 48
	// ExtentsMax bounds the extents, and the hole runs, of one shape.
	ExtentsMax = 1 << 20
	// DepthMax bounds the chain of deltas over a plain content; [Store.Begin] refuses a deeper one.
	DepthMax = 64
	// CopyUpBytesMax is the largest content that [Store.CopyUp] copies; larger ones get an [Overlay].
	CopyUpBytesMax = 16 << 20
	// StepAsideBytesMax is the largest content that [Store.StepAside] copies, where the file system can't clone it.
	StepAsideBytesMax = 256 << 20
)

const chunksPerBlock = BlockBytes / ChunkBytes

// Errors a caller can act on.
var (
	// ErrNotFound: the store has no such content (in the wanted state).
	ErrNotFound = errors.New("not found")
	// ErrExists: the content is held already.
	ErrExists = errors.New("already held")
	// ErrBusy: another Receiving of the same content is open, or the content is being removed or folded.
	ErrBusy = errors.New("busy")
	// ErrNoSpace: taking the content would go below the reserve. See [NoSpaceError] for the numbers.
	ErrNoSpace = errors.New("no space")
	// ErrNoBase: the base of a delta is not held here (or not whole), so the delta can't be taken.
	ErrNoBase = errors.New("base not held")
	// ErrTooDeep: the chain of deltas is at [DepthMax]; fold the base first.
	ErrTooDeep = errors.New("too many deltas")
	// ErrCorrupt: bytes on disk fail their check. No wrong byte was handed out.
	ErrCorrupt = errors.New("corrupt")
	// ErrMismatch: bytes handed in do not have the leaf or the root they should.
	ErrMismatch = errors.New("hash mismatch")
	// ErrIncomplete: Finish was called with blocks missing.
	ErrIncomplete = errors.New("incomplete")
	// ErrShape: a shape that is malformed or out of bounds.
	ErrShape = errors.New("invalid shape")
	// ErrLocked: another process has the store open.
	ErrLocked = errors.New("store in use by another process")
	// ErrFormat: the directory has an unknown format version, or is no store.
	ErrFormat = errors.New("unknown store format")
	// ErrTooLarge: the content is too large to be copied up; take an overlay.
	ErrTooLarge = errors.New("too large to copy")
	// ErrRefused: the disk has not taken all of the bytes.
	ErrRefused = errors.New("not all bytes came to the disk")
	// ErrClosed: the object was closed.
	ErrClosed = errors.New("closed")
)

// ID names a content. It is opaque here; the zero ID means "none".
type ID [16]byte

// String gives the 32 hex digits of the id.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether the id names nothing.
func (id ID) IsZero() bool { return id == ID{} }

// ParseID reads what [ID.String] wrote.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 2*len(id) {
		return ID{}, fmt.Errorf("content: parse id %q: want %d hex digits", s, 2*len(id))
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return ID{}, fmt.Errorf("content: parse id %q: %w", s, err)
	}
	if id.String() != s {
		return ID{}, fmt.Errorf("content: parse id %q: want lower case", s)
	}
	return id, nil
}

// Hash is a BLAKE3 hash: a leaf or a root.
type Hash [32]byte

// String gives the hash in hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }
