package core

import "time"

// reports are how far the members are, as far as is known here: of members below in the tree of reports, and of this
// one.
type reports struct {
	members []memberState
	made    time.Time // when the parent was last told
}

// memberState is how far a member is, as reported.
type memberState struct {
	done   uint64
	blocks uint64
	dirty  bool // to be reported to the parent
}

// append appends to a control message what the parent does not know of members, as far as there is room, and says
// whether there is more.
func (r *reports) append(b []byte, now time.Time) (appended []byte, more bool) {
	for rank := range r.members {
		m := &r.members[rank]
		if !m.dirty {
			continue
		}
		if len(b)+reportSize > MaxControl {
			return b, true
		}
		b = appendReport(b, report{rank: uint32(rank), done: m.done, blocks: m.blocks})
		m.dirty = false
	}
	r.made = now
	return b, false
}

// isDue reports whether it is time to tell the parent what it does not know.
func (r *reports) isDue(now time.Time, interval time.Duration) bool {
	if now.Sub(r.made) < interval {
		return false
	}
	for rank := range r.members {
		if r.members[rank].dirty {
			return true
		}
	}
	return false
}

// delivered is the last message before next that all members but the root have stored.
func (r *reports) delivered(next uint64) uint64 {
	low := next
	for _, m := range r.members[1:] {
		low = min(low, m.done)
	}
	return low
}
