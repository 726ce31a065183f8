package meta

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
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

// Bytes is the 16-byte big-endian form, which sorts like (Node, Incarnation, Seq).
func (c ContentID) Bytes() (b [16]byte) {
	binary.BigEndian.PutUint32(b[0:], uint32(c.Node))
	binary.BigEndian.PutUint32(b[4:], c.Incarnation)
	binary.BigEndian.PutUint64(b[8:], c.Seq)
	return b
}

// ContentIDFromBytes is the inverse of Bytes.
func ContentIDFromBytes(b [16]byte) ContentID {
	return ContentID{
		Node:        NodeID(binary.BigEndian.Uint32(b[0:])),
		Incarnation: binary.BigEndian.Uint32(b[4:]),
		Seq:         binary.BigEndian.Uint64(b[8:]),
	}
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
