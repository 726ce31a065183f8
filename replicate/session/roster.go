package session

import (
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/meta/id"
	"github.com/rdmcfs/rdmcfs/meta/owed"
)

// record is what the root knows of one member.
type record struct {
	node    id.Node
	phase   MemberState
	have    *blockset.Bitmap // as of the announcement of this epoch
	held    int              // blocks held, as last reported
	had     int64            // bytes of what its group sends that it had before
	bytes   int64            // that it has stored in this epoch, as the group knows: finer than held
	done    time.Time        // when its group brought everything, in this epoch
	waits   waits            // of the root's sends to it, in this epoch
	steps   int              // in which it got blocks in this epoch, as far as the root saw them one by one
	moved   time.Time
	front   int64         // the most that a member of its group had got when this one last got blocks
	excused time.Time     // when the group might last have been sending only what this one has
	whole   time.Time     // when it was found to have every block, in this epoch
	checked time.Duration // what it took from then to its vote
	heard   time.Time
	asked   bool // a poll with the hash was sent in this epoch
	polled  bool // a poll is under way
	called  bool // an epoch was announced to its present incarnation
	reason  owed.Reason
	text    string

	up          bool   // as the log says
	incarnation uint32 // likewise; 0 until it was looked at
}

// waits is for how long sends have waited: for blocks on their way, or for room with none on its way. A group may have
// carried other sessions before, so only what is added to the first figures of an epoch counts.
type waits struct {
	known                 bool
	sendingFirst, sending time.Duration
	waitingFirst, waiting time.Duration
}

func (w *waits) tell(sending, waiting time.Duration) {
	if !w.known {
		w.known, w.sendingFirst, w.waitingFirst = true, sending, waiting
	}
	w.sending, w.waiting = sending-w.sendingFirst, waiting-w.waitingFirst
}

func (m *record) live() bool { return m.phase != MemberOut && m.phase != MemberVoted }

// present is how many bytes a member has, as far as the root knows.
func (m *record) present() int64 {
	return max(int64(m.held)*BlockBytes, int64(m.have.Count())*BlockBytes+m.bytes)
}

// roster is the members of a session.
type roster []*record

// find is the record of a node; nil if it is no member.
func (r roster) find(n id.Node) *record {
	for _, m := range r {
		if m.node == n {
			return m
		}
	}
	return nil
}

// count is how many members are in a state.
func (r roster) count(p MemberState) (n int) {
	for _, m := range r {
		if m.phase == p {
			n++
		}
	}
	return n
}

// live counts the members of which more is expected.
func (r roster) live() (n int) {
	for _, m := range r {
		if m.live() {
			n++
		}
	}
	return n
}

// anyReady reports whether a group has members that still receive.
func (r roster) anyReady(p *sendPart) bool {
	return slices.ContainsFunc(p.members, func(n id.Node) bool { return r.find(n).phase == MemberReady })
}

// waitsForSilent reports whether a member that answers may lack blocks only because another member of the group, which
// no longer answers, should have relayed them. The silent member's time is over soon.
func (r roster) waitsForSilent(now time.Time, m *record, pollWait time.Duration) bool {
	quiet := func(o *record) bool { return now.Sub(o.heard) >= 2*pollWait }
	return !quiet(m) && slices.ContainsFunc(r, func(o *record) bool {
		return o != m && o.phase == MemberReady && quiet(o)
	})
}

// othersDone reports whether every other member has voted or is out.
func (r roster) othersDone(m *record) bool {
	for _, o := range r {
		if o != m && o.live() && o.phase != MemberChecking {
			return false
		}
	}
	return true
}

// furthestBehind reports whether no member of the group has fewer blocks. Relaying couples the members, so of
// several that wait only this one is to blame.
func (r roster) furthestBehind(m *record) bool {
	for _, o := range r {
		if o.phase == MemberReady && o.held < m.held {
			return false
		}
	}
	return true
}
