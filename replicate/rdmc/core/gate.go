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

// turn says whether a member may send now: its own cap, and then the other members' turns.
type turn struct {
	bucket  bucket
	gate    Gate      // nil if there is nobody to take turns with
	refused bool      // it said no since Pump began
	waits   bool      // it has said no, and knows of nothing newer
	wakeAt  time.Time // when Advance has to be called for the bucket; zero if it has not
}

// isOpen reports whether the cap allows a send now; if not, the shell is asked to call Advance when it does.
func (t *turn) isOpen(now time.Time) bool {
	if t.bucket.open(now) {
		return true
	}
	t.wakeBy(t.bucket.opens())
	return false
}

// wakeBy asks the shell to call Advance at a time, or before.
func (t *turn) wakeBy(at time.Time) {
	if t.wakeAt.IsZero() || at.Before(t.wakeAt) {
		t.wakeAt = at
	}
}

// ask reports whether the other groups leave a send of so many bytes to this one now, all else allowing it.
func (t *turn) ask(bytes int, cost int64, now time.Time) bool {
	if t.gate == nil || t.gate.Ask(bytes, cost, now) {
		return true
	}
	t.refused = true
	return false
}

// done says that a send of so many bytes has completed.
func (t *turn) done(bytes int, now time.Time) {
	if t.gate != nil {
		t.gate.Done(bytes, now)
	}
}

// settle takes a refused wish back when there is nothing to send any more.
func (t *turn) settle(now time.Time) {
	if t.waits && !t.refused {
		t.gate.Rest(now)
	}
	t.waits, t.refused = t.refused, false
}
