package core

import "time"

// Gate is where a member asks for its turn to send: a share of an arbiter of package share, with the lock of that. A
// member without one sends when it can. The methods are called under the shell's lock.
type Gate interface {
	// Ask reports whether a send of so many bytes may be posted now, and then books it, each byte at a cost in units of
	// package share. If not, the shell calls Pump when the turn has come.
	Ask(bytes int, cost int64, now time.Time) bool
	// Done says that a send of so many bytes has completed.
	Done(bytes int, now time.Time)
	// Rest says that there is nothing to send any more after a refusal.
	Rest(now time.Time)
}

// myTurn reports whether the engine's other groups leave a send of so many bytes to this one now, all else allowing it.
func (c *Member) myTurn(bytes int, cost int64) bool {
	if c.gate == nil || c.gate.Ask(bytes, cost, c.now) {
		return true
	}
	c.refused = true
	return false
}

// sendDone says that a send of so many bytes has completed.
func (c *Member) sendDone(bytes int) {
	if c.gate != nil {
		c.gate.Done(bytes, c.now)
	}
}

// settleTurn takes a refused wish back when there is nothing to send any more.
func (c *Member) settleTurn() {
	if c.waits && !c.refused {
		c.gate.Rest(c.now)
	}
	c.waits, c.refused = c.refused, false
}
