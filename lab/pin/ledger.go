package pin

import (
	"cmp"
	"slices"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// span is a range of addresses, [lo, hi).
type span struct{ lo, hi uint64 }

func (s span) bytes() uint64        { return s.hi - s.lo }
func (s span) covers(o span) bool   { return s.lo <= o.lo && o.hi <= s.hi }
func (s span) overlaps(o span) bool { return s.lo < o.hi && o.lo < s.hi }
func (s span) empty() bool          { return s.hi <= s.lo }

// want is what a user asks for.
type want struct {
	span
	access rdma.Access
	keep   bool // may be found by others, and stays when nobody uses it
	fixed  bool // is no part of what claims share
	claim  Claim
}

// Claim says what a use of registered memory waits for. A use that others wait for may take more of the budget than the
// uses that wait. So users of several domains, each with others' transfers in both directions, cannot wait for each
// other in a circle.
type Claim uint8

const (
	// ClaimNow is for memory that work is posted on at once: all of the budget.
	ClaimNow Claim = iota
	// ClaimPeer is for memory that waits for a peer's ClaimNow: two thirds.
	ClaimPeer
	// ClaimAhead is for memory that waits for a peer's ClaimPeer: a third.
	ClaimAhead
)

// entry is one registration, from the moment that room was made for it until it was deregistered.
type entry struct {
	span
	access  rdma.Access
	keep    bool
	fixed   bool
	users   int
	stale   bool   // its memory is no longer what was registered: found by nobody
	leaving bool   // is being deregistered
	used    uint64 // turn of the last use
	again   int    // messages that found all their memory registered in pieces, of which this was the first
}

func (e *entry) less(lo uint64) int { return cmp.Compare(e.lo, lo) }
func (e *entry) findable() bool     { return e.keep && !e.stale && !e.leaving }
func (e *entry) idle() bool         { return e.users == 0 && !e.leaving }

// more is how many bytes more are in use with another user.
func (e *entry) more() uint64 {
	if e.users > 0 {
		return 0
	}
	return e.bytes()
}

func (e *entry) serves(w want) bool {
	return e.findable() && e.covers(w.span) && e.access&w.access == w.access
}

// ledger is the book of registrations. It is pure and registers nothing itself: its owner has to do what it answers,
// outside of locks, and report that by gone.
type ledger struct {
	budget  uint64 // bytes, 0 is without bounds
	used    uint64 // bytes of all entries: registered, about to be, or about to go
	fixed   uint64 // bytes of fixed entries
	turn    uint64
	longest uint64   // bytes of the longest findable entry there was
	entries []*entry // by lo
}

// verdict is what has to be done about a want.
type verdict uint8

const (
	found   verdict = iota // the entry is registered already, or will be by its maker
	made                   // register the entry
	evicted                // deregister these, then ask again
	waiting                // others deregister: ask again when they have
	refused                // others use what would be needed
)

// take finds or makes the entry for a want, and makes the caller a user of it.
func (l *ledger) take(w want) (v verdict, e *entry, victims []*entry) {
	if e := l.reuse(w); e != nil {
		return found, e, nil
	}
	n := w.bytes()
	if !l.fits(w) {
		return refused, nil, nil
	}
	if !l.room(n) {
		victims = l.victims(n)
		for _, e := range victims {
			e.leaving = true
		}
		if len(victims) > 0 {
			return evicted, nil, victims
		}
		return waiting, nil, nil
	}
	e = &entry{span: w.span, access: w.access, keep: w.keep, fixed: w.fixed, users: 1, used: l.turn}
	i, _ := slices.BinarySearchFunc(l.entries, e.lo, (*entry).less)
	l.entries = slices.Insert(l.entries, i, e)
	l.used += n
	if w.fixed {
		l.fixed += n
	}
	if w.keep {
		l.longest = max(l.longest, n)
	}
	return made, e, nil
}

// reuse makes the caller a user of an entry that is there, if one serves.
func (l *ledger) reuse(w want) *entry {
	l.turn++
	if !w.keep || w.empty() {
		return nil
	}
	e := l.find(w)
	if e != nil {
		e.users++
		e.used = l.turn
	}
	return e
}

// find looks for an entry that serves a want and that its claim may hold: also an entry that others use, as they may
// release it before. An entry that serves begins at most the longest entry before the end of the want.
func (l *ledger) find(w want) *entry {
	after, _ := slices.BinarySearchFunc(l.entries, w.lo+1, (*entry).less)
	for i := after - 1; i >= 0 && l.entries[i].lo+l.longest >= w.hi; i-- {
		if e := l.entries[i]; e.serves(w) && l.holds(e.more(), w) {
			return e
		}
	}
	return nil
}

// room reports whether n bytes fit now.
func (l *ledger) room(n uint64) bool { return l.budget == 0 || l.used+n <= l.budget }

// fits reports whether a want would fit if all went that nobody uses.
func (l *ledger) fits(w want) bool { return l.holds(w.bytes(), w) }

// holds reports whether n bytes more would be in use within the share of a want.
func (l *ledger) holds(n uint64, w want) bool {
	if l.budget == 0 {
		return true
	}
	inUse := uint64(0)
	for _, e := range l.entries {
		if e.users > 0 && !e.fixed {
			inUse += e.bytes()
		}
	}
	return inUse+n <= l.share(w)
}

// share is how much of the budget a want's claim may take, with others.
func (l *ledger) share(w want) uint64 {
	free := l.budget - min(l.fixed, l.budget)
	if w.fixed {
		return free
	}
	return free * uint64(ClaimAhead+1-w.claim) / uint64(ClaimAhead+1)
}

// never reports whether a want would not fit if there were no other users.
func (l *ledger) never(w want) bool { return l.budget > 0 && w.bytes() > l.share(w) }

func (l *ledger) leavingBytes() (n uint64) {
	for _, e := range l.entries {
		if e.leaving {
			n += e.bytes()
		}
	}
	return n
}

// victims returns the idle entries, the ones unused for longest first, that must go to make room for n bytes, in
// addition to the entries that are already leaving.
func (l *ledger) victims(n uint64) []*entry {
	var idle []*entry
	for _, e := range l.entries {
		if e.idle() {
			idle = append(idle, e)
		}
	}
	slices.SortFunc(idle, func(a, b *entry) int { return cmp.Compare(a.used, b.used) })
	free := l.leavingBytes()
	for i, e := range idle {
		if l.used-free+n <= l.budget {
			return idle[:i]
		}
		free += e.bytes()
	}
	return idle
}

// replace makes e the entry that is found instead of the ones that it serves as well. They go with their last user; the
// ones without a user are to be deregistered now.
func (l *ledger) replace(e *entry) (leave []*entry) {
	for _, o := range l.entries {
		if o == e || !o.findable() || !e.serves(want{span: o.span, access: o.access}) {
			continue
		}
		if o.keep = false; o.idle() {
			o.leaving = true
			leave = append(leave, o)
		}
	}
	return leave
}

// give ends one use and reports whether the entry is to be deregistered now.
func (l *ledger) give(e *entry) (leave bool) {
	l.turn++
	e.users--
	e.used = l.turn
	if e.users > 0 || e.keep && !e.stale {
		return false
	}
	e.leaving = true
	return true
}

// gone notes that an entry was deregistered.
func (l *ledger) gone(e *entry) {
	if i := slices.Index(l.entries, e); i >= 0 {
		l.entries = slices.Delete(l.entries, i, i+1)
		l.used -= e.bytes()
		if e.fixed {
			l.fixed -= e.bytes()
		}
	}
}

// invalidate marks all entries that share a byte with s. Entries that nobody uses are to be deregistered now, entries
// in use when their last user ends.
func (l *ledger) invalidate(s span) (leave, inUse []*entry) {
	for _, e := range l.entries {
		if !e.overlaps(s) || e.stale || e.leaving {
			continue
		}
		e.stale = true
		if e.users > 0 {
			inUse = append(inUse, e)
			continue
		}
		e.leaving = true
		leave = append(leave, e)
	}
	return leave, inUse
}

// touches reports whether a registration, or what is left of one, shares a byte with s.
func (l *ledger) touches(s span) bool {
	return slices.ContainsFunc(l.entries, func(e *entry) bool { return e.overlaps(s) })
}
