package rdmc

import (
	"errors"
	"fmt"
)

// Errors that a caller can act on.
var (
	// ErrClosed is returned by calls on a closed engine or group.
	ErrClosed = errors.New("rdmc: closed")
	// ErrFull is returned by Group.SendSmall when as many small messages are under way as there is memory for: see
	// WaitRoom.
	ErrFull = errors.New("rdmc: too many small messages under way")
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
)

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
