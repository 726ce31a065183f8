package rdmc

import (
	"errors"
	"fmt"
)

// Errors that a caller can act on.
var (
	// ErrClosed is returned by calls on a closed engine or group.
	ErrClosed = errors.New("rdmc: closed")
	// ErrFull is returned by Group.SendSmall when as many small messages are under way as there is memory for, see
	// WaitRoom, and by Group.PostReceive when very many receives are posted.
	ErrFull = errors.New("rdmc: too many small messages under way")
	// ErrInvalid is returned for a configuration or argument that can never work.
	ErrInvalid = errors.New("rdmc: invalid")
	// ErrWithin is returned to a callback, Source or Sink by Engine.Close, and by Group.Close with a ctx that never
	// ends: they may wait for it. Call them from another goroutine, or Group.Abort, which does not wait there.
	ErrWithin = errors.New("rdmc: called by a callback, Source or Sink, which it may wait for")
	// ErrMemory is returned for a group for which there is no registered memory now. Idle groups that may yield have
	// been ended for it: try again when that is over.
	ErrMemory = errors.New("rdmc: no registered memory for a group now")
	// ErrFailed is matched by every GroupError.
	ErrFailed = errors.New("rdmc: group failed")
	// ErrMemberFailed is matched by a GroupError that has suspects.
	ErrMemberFailed = errors.New("rdmc: member failed")
	// ErrCorrupt is matched by a GroupError whose reason is a block that failed its check.
	ErrCorrupt = errors.New("rdmc: corrupt block")
)

// Reason says why a group failed.
type Reason uint8

// The reasons of failure.
const (
	// ReasonDisconnected is a queue pair that went into error.
	ReasonDisconnected Reason = iota + 1
	// ReasonSilent is a neighbour that said nothing for longer than GroupConfig.SilenceTimeout.
	ReasonSilent
	// ReasonSink is a Sink that returned an error; the suspect is the member that has it.
	ReasonSink
	// ReasonSource is a Source that returned an error; the suspect is the root.
	ReasonSource
	// ReasonCorrupt is a block or control message that failed its check; the suspect is its sender.
	ReasonCorrupt
	// ReasonAborted is Group.Fail or Group.Abort, with the suspects that the caller named.
	ReasonAborted
	_ // earlier versions had a reason of their own for slow members
	// ReasonYielded is a group that ended while it carried nothing, as its memory was needed for another: nobody is
	// to blame. See GroupConfig.Yields.
	ReasonYielded
)

// String names the reason.
func (r Reason) String() string {
	names := [...]string{"none", "disconnected", "silent", "sink error", "source error", "corrupt data", "aborted", "slow",
		"yielded"}
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// GroupError says how a group failed, as far as this member knows.
type GroupError struct {
	Reason Reason
	// Suspects are the ranks that the reporter holds responsible; none if the root gave up by itself.
	Suspects []int
	// Reporter is the rank that saw it first, or -1 if unknown.
	Reporter int
	// Err is the cause, only on the member that saw it.
	Err error
}

// Error describes the failure.
func (e *GroupError) Error() string {
	s := fmt.Sprintf("rdmc: group failed: %v, suspects %v, reported by %d", e.Reason, e.Suspects, e.Reporter)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *GroupError) Unwrap() error { return e.Err }

// Is matches ErrFailed, ErrMemberFailed if there are suspects, and ErrCorrupt.
func (e *GroupError) Is(target error) bool {
	switch target {
	case ErrFailed:
		return true
	case ErrMemberFailed:
		return len(e.Suspects) > 0
	case ErrCorrupt:
		return e.Reason == ReasonCorrupt
	}
	return false
}
