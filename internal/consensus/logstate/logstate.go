// Package logstate has what a raft log holds, as values: the core of raft starts from them, and package raftlog keeps
// them in files.
package logstate

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
)

// ErrDamaged is the class of [DamagedError].
var ErrDamaged = errors.New("raftlog: log is damaged")

// DamagedError says where a log is damaged.
type DamagedError struct {
	File   string
	Offset int64
	Reason string
}

// Error says what was found and what to do.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("%v: %s at byte %d: %s; this node must not vote with it: remove it from the cluster and join it "+
		"again with a new store",
		ErrDamaged, e.File, e.Offset, e.Reason)
}

// Is makes errors.Is(err, ErrDamaged) true.
func (e *DamagedError) Is(target error) bool { return target == ErrDamaged }

// Identity says whose log it is.
type Identity struct {
	Cluster    [16]byte
	Node       [16]byte // the node's id
	Store      [16]byte // random, made with the data directory
	Generation uint64   // of the cluster
	ID         uint64   // raft id: a hash of Node and Store, never 0
}

// Base is the point the log begins after.
type Base struct {
	Index uint64
	Term  uint64
	Time  int64 // of the last proposal at or before Index
	Conf  *raftpb.ConfState
}

// Mark says that a member has had a committed entry on stable storage.
type Mark struct {
	ID          uint64
	Index, Term uint64
}

// Lacks reports whether a log with this end lacks the entry.
func (k *Mark) Lacks(last, lastTerm uint64) bool { return last < k.Index || lastTerm < k.Term }

// Lost reports whether a log with this end lacks the entry, and has not gone on with another history since.
func (k *Mark) Lost(last, lastTerm uint64) bool {
	return lastTerm < k.Term || lastTerm == k.Term && last < k.Index
}

// Batch is what is written and synced as one frame. Zero fields are left as they are.
type Batch struct {
	// Entries are appended; those at or after the first one's index that the log holds already are replaced.
	Entries []*raftpb.Entry
	// Hard replaces the hard state if not nil.
	Hard *raftpb.HardState
	// Base moves the beginning of the log. Reset drops all entries first (a snapshot was taken in from outside).
	Base  *Base
	Reset bool
	// Marks replace those that were written before if not nil.
	Marks []Mark
	// Intent announces a snapshot that is about to replace the state machine: if the state machine is found at
	// Intent.Index later, the log continues from there. A Base of a later batch ends it.
	Intent *Base
}

// State is what a log held when it was opened.
type State struct {
	Identity Identity
	Hard     *raftpb.HardState
	Base     Base
	Entries  []*raftpb.Entry // Base.Index+1 ...
	Intent   *Base
	Marks    []Mark
	// TornBytes is the length of an unacknowledged, incomplete write that was dropped at the end.
	TornBytes int64
}

// LastIndex is the index of the last entry, or the base's.
func (s *State) LastIndex() uint64 { return s.Base.Index + uint64(len(s.Entries)) }

// Holds reports whether the log has an entry of this term at an index. Everything before its base counts: the log has
// had it.
func (s *State) Holds(index, term uint64) bool {
	if index <= s.Base.Index {
		return true
	}
	return index <= s.LastIndex() && s.Entries[index-s.Base.Index-1].GetTerm() == term
}

// Continued is where the log goes on for a state machine at an index, if that has the snapshot of the intent and the
// log has another history, or none, there: nothing of it follows then. It is nil where the log goes on as it is.
func (s *State) Continued(applied uint64) *Base {
	if s.Intent == nil || s.Holds(s.Intent.Index, s.Intent.Term) ||
		applied != s.Intent.Index && (applied < s.Intent.Index || len(s.Entries) > 0) {
		return nil
	}
	return s.Intent
}
