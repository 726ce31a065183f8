// Package format has the number of the cluster's format, and the range of numbers that this program knows.
//
// There is one number for all that nodes write for each other and for a later start: log entries, state, files on disk
// and messages. All nodes use the number that is in the state. An operator raises it, by one, when each node runs a
// program that knows the next one. docs/decisions/052-versions.md has the reasons; docs/FORMAT.md#versions and
// docs/WIRE.md#versions-and-generations say how something is changed.
package format

import (
	"errors"
	"fmt"
)

// First is the format of the first release.
const First = 1

// ErrUnknown is wrapped by the errors about a format that a program does not know.
var ErrUnknown = errors.New("install a version of rdmcfs that knows it; 'rdmcfs upgrade' on a node that runs shows " +
	"the versions of all nodes")

// ErrPeer is wrapped by the errors about a format that the program of another node does not know.
var ErrPeer = errors.New("install the version of the other nodes there, too")

// Known are the formats that this program reads and writes.
var Known = Range{Oldest: oldest, Newest: newest}

// Range are the formats that a program reads and writes. The zero value stands for a program that did not say: it knows
// the first one.
type Range struct{ Oldest, Newest uint64 }

// Said is the range with the zero value made plain.
func (r Range) Said() Range {
	if r == (Range{}) {
		return Range{First, First}
	}
	return r
}

// Has reports whether the program knows a format.
func (r Range) Has(number uint64) bool {
	r = r.Said()
	return r.Oldest <= number && number <= r.Newest
}

// Check returns an error that wraps ErrUnknown if the program does not know a format.
func (r Range) Check(number uint64) error {
	if r.Has(number) {
		return nil
	}
	return fmt.Errorf("format %d is in use, and this version knows format %s: %w", number, r, ErrUnknown)
}

// String is "2", or "1 to 2".
func (r Range) String() string {
	if r = r.Said(); r.Oldest == r.Newest {
		return fmt.Sprint(r.Newest)
	}
	return fmt.Sprintf("%d to %d", r.Oldest, r.Newest)
}

// End is what one end of a connection says of itself.
type End struct {
	Used  uint64 // by the cluster, as far as this end has applied the log; 0: it does not know yet
	Known Range
}

// Meet returns the format of a connection: the later of those that its ends use. An end that has not applied all of the
// log may use an earlier one, but its program knows the later one, too. Otherwise the error, for the caller to read,
// wraps ErrUnknown if the caller's program does not know it, and ErrPeer if that of the called end does not.
func Meet(caller, called End) (uint64, error) {
	used := max(caller.Used, called.Used)
	switch {
	case used == 0: // neither knows it yet
		return 0, nil
	case !called.Known.Has(used):
		return 0, fmt.Errorf("format %d is in use, and the version there knows format %s: %w", used, called.Known, ErrPeer)
	}
	return used, caller.Known.Check(used)
}
