package session

import (
	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/meta/owed"
)

// BlockBytes is the size of the blocks that sessions count: a content's stream is cut into them.
const BlockBytes = 1 << 20

// Status is the first thing that a member says of a session. The numbers are part of the wire format.
type Status uint8

// Statuses.
const (
	StatusReady     Status = iota + 1 // to Announce: send what Have lacks
	StatusReceiving                   // to Poll: blocks are missing
	StatusChecking                    // to Poll: all is here, being checked and synced
	StatusVoted                       // stored, durable: a vote
	StatusRefused                     // not taken, with a reason
	StatusGone                        // the log has decided that nobody wants this content
	StatusPreparing                   // to Announce: what was left here is being looked at; announce it again
	statusEnd
)

// Known reports whether s is one of the statuses.
func (s Status) Known() bool { return s > 0 && s < statusEnd }

// Standing is what a member answers to Announce and Poll.
type Standing struct {
	Epoch  uint32
	Status Status
	Reason owed.Reason // when refused
	Text   string
	Held   uint32           // blocks of the stream that are here
	Have   *blockset.Bitmap // to Announce: which
}

// Owed is the reason under which a member that refused is owed the content.
func (st Standing) Owed() owed.Reason {
	if st.Reason == 0 {
		return owed.Failed
	}
	return st.Reason
}

// MayPass reports whether a member that is owed a content for this reason may take it a moment later.
func MayPass(r owed.Reason) bool {
	return r == owed.Down || r == owed.Unreachable || r == owed.Slow
}
