package consensus

import (
	"context"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// What raft's core shares with its users.
type (
	// ID identifies a node in raft and on its connections: a hash of the node's id and its store's id, never 0.
	ID = core.ID
	// Entry is one committed entry, as handed to [StateMachine.Apply].
	Entry = core.Entry
	// Member is a node as the upper layer knows it; the leader's policy reads these.
	Member = core.Member
	// Role is what a node is to raft.
	Role = core.Role
)

// The roles. A learner is on its way to become a voter.
const (
	RoleObserver  = core.RoleObserver
	RoleLearner   = core.RoleLearner
	RoleFollower  = core.RoleFollower
	RoleCandidate = core.RoleCandidate
	RoleLeader    = core.RoleLeader
)

// ClockAgree is how far two clocks may differ and still count as equal. A clock that differs more from the cluster's is
// named.
const ClockAgree = core.ClockAgree

// Identity says whose log this is. It is written into the head of every log segment and into every hello.
type Identity = raftlog.Identity

// StateMachine is the replicated state. Apply, Sync and Restore are called by one goroutine, never two at a time;
// Applied, Synced and Snapshot may be called at the same time as these.
type StateMachine interface {
	// Apply applies entries in order and returns one result for each (nil where there is none). An error stops the
	// node: it is returned by every call until the node is closed.
	Apply(entries []Entry) ([]any, error)
	// Applied is the highest applied index, durable or not.
	Applied() uint64
	// Synced is the highest applied index known to be on stable storage.
	Synced() uint64
	// Sync makes the applied state durable.
	Sync() error
	// Snapshot returns the state at the index it returns (the applied index at some moment of the call).
	// The caller closes the reader.
	Snapshot() (io.ReadCloser, uint64, error)
	// Restore replaces the state by that of a snapshot and makes it durable before it returns. On an error the old
	// state stays as it was.
	Restore(index, term uint64, r io.Reader) error
}

// Config describes a node to Open. Dir, Identity, StateMachine and Dial are required.
type Config struct {
	// Dir is the directory of the raft log; it is made by [Create].
	Dir string
	// Identity must equal what Create was given.
	Identity Identity
	// StateMachine is called by the node until Close has returned.
	StateMachine StateMachine
	// Dial opens an authenticated connection to a peer, under the protocol name of raft.
	Dial func(ctx context.Context, peer ID) (net.Conn, error)
	// Peers returns the nodes that can be asked for the log when no voter is known yet (after a join). May be nil.
	Peers func() []ID
	// Members returns the nodes the voter policy chooses from, and those a barrier waits for (the ones that are
	// up). It is called on the leader, from goroutines of the node. Nil switches the policy off.
	Members func() []Member
	// LogTime is the time of the last entry that the state machine has applied, 0 if none. Nil: not known.
	LogTime func() int64
	// Wall is the machine's clock; nil is time.Now.
	Wall func() time.Time
	// WallSynced reports whether a time service keeps that clock. Nil: not known.
	WallSynced func() bool
	// Digest returns the digest of the state at an index, if it is known: followers and followed compare. May be nil.
	Digest func(index uint64) (digest [16]byte, ok bool)
	// Wrong is why the state machine's state is known to be wrong and must be replaced, nil normally. May be nil.
	Wrong func() error
	// Logger gets rare events: changes of role, damaged logs, full disks. Nil discards them.
	Logger *slog.Logger
	// FS is the file system that holds Dir; nil is the real one.
	FS raftlog.FS
	// Tuning changes timers and limits; the zero value is right for real use.
	Tuning Tuning
}

// Tuning holds timers and limits; a zero field means its default.
type Tuning struct {
	Tick             time.Duration // raft's clock: 100 ms
	ElectionTicks    int           // 10
	HeartbeatTicks   int           // 2
	LeaderLost       time.Duration // after this long without a leader, proposals fail at once: 4 s
	LeaderAwaited    time.Duration // a patient proposal waits this long for a leader: 25 s
	ProposeTimeout   time.Duration // outcome unknown after: 30 s
	BarrierTimeout   time.Duration // nodes that are not visible by then are behind: 5 s
	StaleAfter       time.Duration // a node not heard from for this long is behind at once: 3 s
	PolicyInterval   time.Duration // 2 s
	DeadVoterAfter   time.Duration // a voter down for this long is replaced: 10 min
	LearnerStill     time.Duration // a learner whose log stands still for this long does not become a voter: 15 s
	SyncInterval     time.Duration // state machine synced at least so often while it changes: 1 s
	SyncEntries      uint64        // or after so many entries: 4,096
	TailEntries      uint64        // entries kept behind the synced index for followers: 10,000
	TailBytes        uint64        // and at most this many bytes of them: 64 MiB
	SegmentBytes     int64         // preallocated log segments: 16 MiB
	MaxProposalBytes int           // 4 MiB
	ClockInterval    time.Duration // between readings of clocks: 1 s; five times as long once the time is sure
	ReportInterval   time.Duration // reports of progress that nobody waits for are gathered for this long: 50 ms
}

// ProposeOptions changes what Propose waits for.
type ProposeOptions struct {
	// Announce makes all nodes report at once when they have made the entry visible: a [Node.Barrier] for it comes
	// next.
	Announce bool
	// Announced says to Barrier that the entry was proposed with Announce.
	Announced bool
	// Patient makes a proposal wait for a leader also when none has been known for long, for Tuning.LeaderAwaited. It
	// is for callers that lose much by a refusal and hold up nobody else: a close may come just before this node is
	// reached again.
	Patient bool
}

// Proposed is the outcome of a proposal that was applied.
type Proposed struct {
	Index uint64
	Time  int64
	// Result is what the state machine's Apply returned for it on this node.
	Result any
	// Skipped says that this node took a snapshot while the proposal was under way. The proposal may have been applied
	// within the snapshot, and Result belongs to another time.
	Skipped bool
}

// Progress is how far a node is, as far as the node that reports it knows.
type Progress struct {
	Applied  uint64
	Synced   uint64
	Visible  uint64
	ReadOnly bool
	LastSeen time.Time
}

// Status is a snapshot of what a node knows.
type Status struct {
	ID      ID
	Role    Role
	Leader  ID // 0: unknown
	Commit  uint64
	Applied uint64
	Voters  []ID
	// LedSince is when this node last became the leader, zero if it never did.
	LedSince time.Time
	// Joint says that the voters are being changed right now.
	Joint bool
	// ReadOnly says why the log can't be written, "" if it can.
	ReadOnly string
	// Diverged says whose history differs from this node's, "" normally: one refuses to follow the other.
	Diverged string
	// Rebuild says why a wrong state could not be replaced by another node's yet, "" normally.
	Rebuild string
	// NoQuorum says that no leader has been known for long. Proposals fail at once, unless they are patient or a
	// majority of the voters has just been reached again.
	NoQuorum bool
	// RefusedBy are the peers that said last, within a minute, that this node's number has another store: this one was
	// replaced, or they are behind.
	RefusedBy []ID
	// Progress of all nodes, on the leader; elsewhere of this node, of the nodes that follow it, and of a leader that
	// can't write its log.
	Progress map[ID]Progress
}
