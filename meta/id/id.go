// Package id has the names of the things of a cluster: nodes, inodes, contents. They are plain values, which pure code
// uses without the state that package meta keeps.
package id

import (
	"encoding/hex"
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// Node numbers a node of the cluster. Numbers are given by the log at join, dense from 1, never used
// again. Zero is no node.
type Node uint32

// Ino is an inode number. The upper 24 bits are the node whose operation made it, so that numbers can be
// given out without asking later; 1 is the root directory.
type Ino uint64

// Content names the bytes of one version: the session that brought them, not their hash.
type Content struct {
	Node        Node   // the writer
	Incarnation uint32 // of the writer, from its boot entry
	Seq         uint64 // of the session within the incarnation
}

// IsZero reports whether c names nothing: the content of an empty file.
func (c Content) IsZero() bool { return c == Content{} }

// Code lists the fields in the form of Bytes, if to is big-endian.
func (c *Content) Code(to *coder.Coder) {
	to.U32((*uint32)(&c.Node))
	to.U32(&c.Incarnation)
	to.U64(&c.Seq)
}

// Bytes is the 16-byte big-endian form, which sorts like (Node, Incarnation, Seq).
func (c Content) Bytes() (b [16]byte) {
	to := coder.Writer(b[:0], coder.Big)
	c.Code(&to)
	return b
}

// ContentFromBytes is the inverse of Bytes.
func ContentFromBytes(b [16]byte) (c Content) {
	from := coder.Reader(b[:], coder.Big)
	c.Code(&from)
	return c
}

// String is the 32 hex digits used in file names and messages.
func (c Content) String() string { b := c.Bytes(); return hex.EncodeToString(b[:]) }

// ParseContent reads what String wrote.
func ParseContent(s string) (Content, error) {
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != 16 {
		return Content{}, fmt.Errorf("meta: content id %q: want 32 hex digits", s)
	}
	return ContentFromBytes([16]byte(raw)), nil
}
