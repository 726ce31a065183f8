package core

import (
	"time"
)

// What a shell asks of its core. None of these changes anything but TakeActions.

// TakeActions hands over what the shell must do, in order; there may be nothing. next gets later actions: its memory is
// used again, and what is in it is lost.
func (c *Member) TakeActions(next []Action) []Action {
	acts := c.acts
	c.acts = next[:0]
	return acts
}

// Parent is the lane to the parent in the tree of reports, on which small messages come; -1 at the root.
func (c *Member) Parent() int { return c.parent }

// Slots is the number of block buffers that the shell must have.
func (c *Member) Slots() int { return len(c.slots.all) }

// WakeAt is when Advance has to be called; zero if it has not.
func (c *Member) WakeAt() time.Time { return c.turn.wakeAt }

// Ended reports that no more blocks will move: the group has failed or is closed.
func (c *Member) Ended() bool { return c.failure != nil || c.closed }

// IsClosing reports whether the group's last message is known, so that none may be added.
func (c *Member) IsClosing() bool { return c.closing }

// Failure is why the group failed, or nil. It must not be changed.
func (c *Member) Failure() *Failure { return c.failure }

// Active reports whether messages are under way here, or the end of the group is waited for.
func (c *Member) Active() bool { return !c.Ended() && (len(c.messages.list) > 0 || c.waiting) }

// Done is the number of the last message that a member has stored whole, as far as is known here, and how many blocks
// of the next are stored there. The root knows of all members, others of themselves and of the members below them in
// the tree of reports.
func (c *Member) Done(rank int) (message, blocks uint64) {
	return c.reports.members[rank].done, c.reports.members[rank].blocks
}

// Waits is for how long, in all, a block was on its way to the lane's neighbour, and for how long none was and the next
// one waited for room there.
func (c *Member) Waits(lane int) (sending, waiting time.Duration) {
	p := &c.pace.lanes[lane]
	return p.sending, p.waiting
}

// IdleSince is since when nothing has been under way in the group, as far as this member knows, and whether it has
// carried a message before: other members may still receive what is done here, and their neighbours hear that they are
// active. If the group is not idle, or not connected, or about to end, ok is false.
func (c *Member) IdleSince() (since time.Time, used, ok bool) {
	if c.Ended() || c.closing || c.waiting || c.messages.Queued() > 0 {
		return time.Time{}, false, false
	}
	since = c.quiet
	for i := range c.lanes.all {
		l := &c.lanes.all[i]
		if !l.up || l.broken {
			return time.Time{}, false, false
		}
		if l.peerActive.After(since) {
			since = l.peerActive
		}
	}
	return since, c.messages.first > 1, true
}
