package session

import (
	"time"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/meta/id"
	"github.com/rdmcfs/rdmcfs/meta/owed"
)

// RootEvent is what a Root takes in: one of the types below.
type RootEvent any

// Events of a Root.
type (
	// Tick lets time pass.
	Tick struct{}
	// Answered is a member's answer to Announce.
	Answered struct {
		Node id.Node
		Standing
	}
	// Polled is a member's answer to Poll.
	Polled struct {
		Node id.Node
		Standing
	}
	// Unreachable says that a call to a member failed.
	Unreachable struct {
		Node  id.Node
		Epoch uint32
		Text  string
	}
	// Progressed reports how many bytes a member has stored in this epoch, as the group knows, without what it had
	// before; and what the root's own sends to it have waited for, in all: a block on its way, or with none on its way
	// room there.
	Progressed struct {
		Node             id.Node
		Epoch            uint32
		Bytes            int64
		Sending, Waiting time.Duration
	}
	// Flowing says that every member knows its group and message: blocks can flow from now on.
	Flowing struct {
		Epoch uint32
		Part  int
	}
	// Ahead says that a member progresses with messages that its group carries before this one.
	Ahead struct {
		Node  id.Node
		Epoch uint32
	}
	// GroupDone says that every member of the group has every block.
	GroupDone struct {
		Epoch uint32
		Part  int
	}
	// GroupFailed says that a group of the epoch ended; Suspects may be empty.
	GroupFailed struct {
		Epoch    uint32
		Part     int
		Suspects []Suspect
		Text     string
	}
	// Hashed says that all bytes were read, and the root of their hash tree.
	Hashed struct{ Hash [32]byte }
	// OwnCopy says how the root's own copy ended: nil is stored.
	OwnCopy struct{ Err error }
	// View says how the log now sees the nodes of the placement, without the root, and how many of their votes the
	// publish needs.
	View struct {
		Need  int
		Nodes []NodeView
	}
	// Joined says that more nodes are to get the content: an epoch begins with them.
	Joined struct{ Nodes []id.Node }
	// Cancel ends the session without a version.
	Cancel struct{}
)

// NodeView is what the log says of a node.
type NodeView struct {
	Node        id.Node
	Up          bool
	Incarnation uint32
}

// Suspect is a member that is to blame for a failure, with the reason under which it is owed the content.
type Suspect struct {
	Node   id.Node
	Reason owed.Reason
}

// RootAction is what a Root wants done: one of the types below.
type RootAction any

// Actions of a Root.
type (
	// Announce asks a member to join the epoch; ends with Answered or Unreachable.
	Announce struct {
		Node  id.Node
		Epoch uint32
	}
	// Send opens a group with these members and sends the blocks; ends with GroupDone or GroupFailed. Part 0 is the
	// first of its epoch: all groups before it have ended.
	Send struct {
		Epoch   uint32
		Part    int
		Members []id.Node
		Have    []*blockset.Bitmap // by member
		Blocks  *blockset.Bitmap
	}
	// EndGroup ends a group of an epoch; no event of it counts any more.
	EndGroup struct {
		Epoch    uint32
		Part     int
		Suspects []id.Node
	}
	// Poll asks a member how far it is, or, with the hash, for its vote; ends with Polled or Unreachable.
	Poll struct {
		Node    id.Node
		Epoch   uint32
		HasHash bool
		Hash    [32]byte
	}
	// Stop lets a member that is out know that nothing more comes; with Drop it need not keep what it has.
	Stop struct {
		Node  id.Node
		Epoch uint32
		Drop  bool
	}
	// End says that the session has its result.
	End struct{}
)
