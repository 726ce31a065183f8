package meta

import (
	"encoding/hex"
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// NodeID numbers a node of the cluster. Numbers are given by the log at join, dense from 1, never used
// again. Zero is no node.
type NodeID uint32

// Ino is an inode number. The upper 24 bits are the node whose operation made it, so that numbers can be
// given out without asking later; 1 is the root directory.
type Ino uint64

// RootIno is the root directory.
const RootIno Ino = 1

// ContentID names the bytes of one version: the session that brought them, not their hash.
type ContentID struct {
	Node        NodeID // the writer
	Incarnation uint32 // of the writer, from its boot entry
	Seq         uint64 // of the session within the incarnation
}

// IsZero reports whether c names nothing: the content of an empty file.
func (c ContentID) IsZero() bool { return c == ContentID{} }

// code lists the fields in the form of Bytes.
func (c *ContentID) code(to *coder.Coder) {
	to.U32((*uint32)(&c.Node))
	to.U32(&c.Incarnation)
	to.U64(&c.Seq)
}

// Bytes is the 16-byte big-endian form, which sorts like (Node, Incarnation, Seq).
func (c ContentID) Bytes() (b [16]byte) {
	to := coder.Writer(b[:0], coder.Big)
	c.code(&to)
	return b
}

// ContentIDFromBytes is the inverse of Bytes.
func ContentIDFromBytes(b [16]byte) (c ContentID) {
	from := coder.Reader(b[:], coder.Big)
	c.code(&from)
	return c
}

// String is the 32 hex digits used in file names and messages.
func (c ContentID) String() string { b := c.Bytes(); return hex.EncodeToString(b[:]) }

// ParseContentID reads what String wrote.
func ParseContentID(s string) (ContentID, error) {
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != 16 {
		return ContentID{}, fmt.Errorf("meta: content id %q: want 32 hex digits", s)
	}
	return ContentIDFromBytes([16]byte(raw)), nil
}
