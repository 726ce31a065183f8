package core

import (
	"errors"
	"fmt"
)

// Errors a caller can act on.
var (
	// ErrNotLeader is the answer of a node that was asked something only the leader knows.
	ErrNotLeader = errors.New("consensus: not the leader")
	// ErrConfChange means that a change of voters was refused or overtaken by another one.
	ErrConfChange = errors.New("consensus: change of voters refused")
	// ErrEarly is an [ErrConfChange] that passes when the leader has applied what is committed.
	ErrEarly = fmt.Errorf("%w: too early", ErrConfChange)
	// ErrSafety means that a peer's message contradicts this node's log. The node stops voting: one of the two logs
	// is wrong.
	ErrSafety = errors.New("consensus: log contradicts a peer's")
	// ErrMessage is the class of messages that are dropped because they make no sense.
	ErrMessage = errors.New("consensus: bad raft message")
)

// DivergedError says that a member has another history than this node. It is no reason for this node to end, or to give
// anything up.
type DivergedError struct {
	Peer  ID
	Leads bool   // the peer
	Index uint64 // of the first entry that is known to differ
	Count uint64 // committed entries that this node has from there on
}

// Error says what differs.
func (e *DivergedError) Error() string {
	return fmt.Sprintf("consensus: node %d has another history from log index %d on: this node has %d committed entries "+
		"there", e.Peer>>32, e.Index, e.Count)
}

// ErrLogShort is the class of [ShortError].
var ErrLogShort = errors.New("consensus: raft log is shorter than what this node acknowledged")

// ShortError says that the log ends before an index this node is known to have had.
type ShortError struct {
	LastIndex uint64 // where the log ends
	Promised  uint64 // what it once held
	Witness   string // who says so
}

// Error says what was found and what to do.
func (e *ShortError) Error() string {
	return fmt.Sprintf("%v: it ends at %d, %s says %d; this node must not vote with it. If this data directory was put "+
		"back to an older copy and there is a newer one, put that back; else remove this node from the cluster and join it "+
		"again with a new store", ErrLogShort, e.LastIndex, e.Witness, e.Promised)
}

// Is makes errors.Is(err, ErrLogShort) true.
func (e *ShortError) Is(target error) bool { return target == ErrLogShort }
