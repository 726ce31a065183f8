package core

import (
	"errors"
	"fmt"
)

// Errors that a caller can act on.
var (
	// ErrInvalid is returned for a configuration or argument that can never work.
	ErrInvalid = errors.New("rdmc: invalid")
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
