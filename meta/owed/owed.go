// Package owed has the reasons for which a node lacks a content that it should hold.
package owed

import "fmt"

// Reason says why a node lacks a content. The numbers are part of the formats on the wire and on disk.
type Reason uint8

// Reasons in what status prints.
const (
	Down Reason = iota + 1
	Unreachable
	Slow
	Full
	Failed // its disk or process failed in the transfer
	Lost   // it held the content and lost it (rot, lost disk)
	Joined // joined or returned later
)

// String says it in the words of status.
func (r Reason) String() string {
	words := [...]string{"", "down", "unreachable", "slow", "disk full", "failed in the transfer", "lost or damaged there",
		"joined or returned later"}
	if int(r) < len(words) {
		return words[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}
