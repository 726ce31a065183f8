package core

import "time"

// ID identifies a node in raft and on its connections: a hash of the node's id and its store's id, never 0.
type ID = uint64

// Entry is one committed entry, as the state machine gets it. The state machine must not modify Data, but may keep it.
// Entries that mean nothing to the state machine (a new leader's empty entry, changes of the voters) are handed over
// too, with Data nil, so that the applied index has no gaps.
type Entry struct {
	Index uint64
	Term  uint64
	// Time is when the leader took the proposal, in Unix nanoseconds. Over the whole log it strictly increases from
	// each proposal to the next; 0 when Data is nil.
	Time int64
	Data []byte
	// Conf says that this entry changed raft's configuration. Voters is then who votes after it; while the change is a
	// joint one, Outgoing is who did before, and both sets decide.
	Conf             bool
	Voters, Outgoing []ID
}

// Member is a node as the upper layer knows it; the leader's policy reads these.
type Member struct {
	ID ID
	// Up is what the log says about the node.
	Up bool
	// DownFor is for how long it has been down (0 if up).
	DownFor time.Duration
}

// Role is what a node is to raft.
type Role string

// The roles. A learner is on its way to become a voter.
const (
	RoleObserver  Role = "observer"
	RoleLearner   Role = "learner"
	RoleFollower  Role = "follower"
	RoleCandidate Role = "candidate"
	RoleLeader    Role = "leader"
)
