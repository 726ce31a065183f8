package raftlog

import (
	"errors"

	"github.com/rdmcfs/rdmcfs/internal/consensus/logstate"
)

// Errors of Open.
var (
	// ErrMissing means that there is no log where there must be one.
	ErrMissing = errors.New("raftlog: log is missing: this node must not start under its old identity; remove it from " +
		"the cluster and join it again with a new store")
	// ErrDamaged is the class of DamagedError.
	ErrDamaged = logstate.ErrDamaged
	// ErrIdentity means that the log belongs to another node, store, cluster or generation.
	ErrIdentity = errors.New("raftlog: log has another identity")
	// ErrLocked means that another process has the log open.
	ErrLocked = errors.New("raftlog: log is in use by another process")
	// ErrExists means that Create found a log.
	ErrExists = errors.New("raftlog: log exists already")
)

// What a log holds, and what is written to it: values that the core of raft knows too.
type (
	// DamagedError says where a log is damaged.
	DamagedError = logstate.DamagedError
	// Identity says whose log it is.
	Identity = logstate.Identity
	// Base is the point the log begins after.
	Base = logstate.Base
	// Mark says what a member has had.
	Mark = logstate.Mark
	// Batch is what is written and synced as one frame. Zero fields are left as they are.
	Batch = logstate.Batch
	// State is what a log held when it was opened.
	State = logstate.State
)
