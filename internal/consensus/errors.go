package consensus

import (
	"errors"
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// Errors a caller can act on.
var (
	// ErrNoQuorum means that no leader is known: nothing can be changed now. If the proposal may have reached a leader
	// before, the error is ErrUnknown too.
	ErrNoQuorum = errors.New("consensus: no quorum of voters")
	// ErrUnknown means that the outcome is unknown: the same bytes may be proposed again, or may turn up in the log.
	ErrUnknown = errors.New("consensus: outcome unknown")
	// ErrReadOnly means that the leader's log can't be written (disk full or broken).
	ErrReadOnly = errors.New("consensus: log is read-only")
	// ErrClosed means that the node was closed.
	ErrClosed = errors.New("consensus: node closed")
	// ErrTooLarge means that a proposal is over the limit.
	ErrTooLarge = errors.New("consensus: proposal too large")
	// ErrNotLeader is the answer of a node that was asked something only the leader knows.
	ErrNotLeader = core.ErrNotLeader
	// ErrBusy means that too many proposals wait already.
	ErrBusy = errors.New("consensus: too many proposals waiting")
	// ErrForeign means that a peer belongs to another cluster or generation.
	ErrForeign = errors.New("consensus: peer is of another cluster or generation")
	// ErrPeerGone is wrapped by an error of [Config.Dial] to a peer that the cluster has removed: it leads no more.
	ErrPeerGone = errors.New("consensus: the peer was removed")
	// ErrConfChange means that a change of voters was refused or overtaken by another one.
	ErrConfChange = core.ErrConfChange
	// ErrStateBehind means that the state database lost what the log does not hold any more.
	ErrStateBehind = errors.New("consensus: state database is older than the log's beginning: remove this node and " +
		"join it again")
	// ErrStateWrong is what a state machine's Apply returns for a state that is damaged: the node goes on, and
	// replaces it, see [Node.Rebuild].
	ErrStateWrong = errors.New("consensus: the state is damaged")
	// ErrSafety means that a peer's message contradicts this node's log. The node stops voting: one of the two logs
	// is wrong.
	ErrSafety = core.ErrSafety
)

// errOtherStore means that a peer knows another store under this node's number.
var errOtherStore = errors.New("consensus: the peer knows another store of this node")

// errHolding is a [core.ErrEarly] while proposals wait.
var errHolding = fmt.Errorf("%w: the state lacks entries of the log", core.ErrEarly)

// The errors of a log that must not be used under its old identity. ErrLogDamaged's details are in
// [raftlog.DamagedError].
var (
	ErrLogMissing  = raftlog.ErrMissing
	ErrLogDamaged  = raftlog.ErrDamaged
	ErrLogIdentity = raftlog.ErrIdentity
)

// ErrLogShort is the class of [ShortError].
var ErrLogShort = core.ErrLogShort

// ShortError says that the log ends before an index this node is known to have had.
type ShortError = core.ShortError
