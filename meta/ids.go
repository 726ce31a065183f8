package meta

import (
	"github.com/rdmcfs/rdmcfs/meta/id"
	"github.com/rdmcfs/rdmcfs/meta/owed"
)

// The values that pure code shares with this package live in packages of their own.
type (
	// NodeID numbers a node of the cluster.
	NodeID = id.Node
	// Ino is an inode number.
	Ino = id.Ino
	// ContentID names the bytes of one version.
	ContentID = id.Content
	// OwedReason says why a node lacks a content.
	OwedReason = owed.Reason
)

// RootIno is the root directory.
const RootIno Ino = 1

// Reasons for which a content is owed.
const (
	OwedDown        = owed.Down
	OwedUnreachable = owed.Unreachable
	OwedSlow        = owed.Slow
	OwedFull        = owed.Full
	OwedFailed      = owed.Failed
	OwedLost        = owed.Lost
	OwedJoined      = owed.Joined
)

// ContentIDFromBytes is the inverse of [ContentID.Bytes].
func ContentIDFromBytes(b [16]byte) ContentID { return id.ContentFromBytes(b) }

// ParseContentID reads what [ContentID.String] wrote.
func ParseContentID(s string) (ContentID, error) { return id.ParseContent(s) }
