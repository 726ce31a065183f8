package replicate

import (
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// Events of a root session.
type (
	// evTick lets time pass.
	evTick struct{}
	// evAnswer is a member's answer to an announcement.
	evAnswer struct {
		node meta.NodeID
		standing
	}
	// evStanding is a member's answer to a finish.
	evStanding struct {
		node meta.NodeID
		standing
	}
	// evUnreachable says that a call to a member failed.
	evUnreachable struct {
		node  meta.NodeID
		epoch uint32
		text  string
	}
	// evProgress tells how many bytes of this epoch's blocks a member has stored, as the group knows.
	evProgress struct {
		node  meta.NodeID
		epoch uint32
		bytes int64
	}
	// evFlowing says that every member knows its group and message: blocks can flow from now on.
	evFlowing struct {
		epoch uint32
		part  int
	}
	// evAhead says that a member progresses with messages that its group carries before this one.
	evAhead struct {
		node  meta.NodeID
		epoch uint32
	}
	// evGroupDone says that every member of the group has every block.
	evGroupDone struct {
		epoch uint32
		part  int
	}
	// evGroupFailed says that the group of the epoch ended; suspects may be empty.
	evGroupFailed struct {
		epoch    uint32
		part     int
		suspects []suspect
		text     string
	}
	// evRoot says that all bytes were read and their root is known.
	evRoot struct{ root [32]byte }
	// evLocal says how the root's own copy ended: nil is stored.
	evLocal struct{ err error }
	// evView says how the log sees the nodes of the placement now, but for the root, and how many of their votes the
	// publish needs.
	evView struct {
		need  int
		nodes []nodeView
	}
	// evCancel ends the session without a version.
	evCancel struct{}
)

// nodeView is what the log says of a node.
type nodeView struct {
	node        meta.NodeID
	up          bool
	incarnation uint32
}

type suspect struct {
	node   meta.NodeID
	reason meta.OwedReason
}

// Actions of a root session.
type (
	// actAnnounce asks the member to join the epoch; the shell answers evAnswer or evUnreachable.
	actAnnounce struct {
		node  meta.NodeID
		epoch uint32
	}
	// actSend opens a group with these members and sends the blocks; ends with evGroupDone or evGroupFailed.
	actSend struct {
		epoch   uint32
		part    int // an epoch may have several groups
		members []meta.NodeID
		have    []content.Bitmap // by member
		blocks  content.Bitmap
	}
	// actEndGroup ends a group of an epoch; no event of it counts any more.
	actEndGroup struct {
		epoch    uint32
		part     int
		suspects []meta.NodeID
	}
	// actFinish asks the member how far it is, or for its vote; ends with evStanding or evUnreachable.
	actFinish struct {
		node    meta.NodeID
		epoch   uint32
		hasRoot bool
		root    [32]byte
	}
	// actStop tells a member that is out that nothing more comes.
	actStop struct {
		node  meta.NodeID
		epoch uint32
		drop  bool
	}
	// actEnd says that the session has its result.
	actEnd struct{}
)

type rootEvent any

type rootAction any
