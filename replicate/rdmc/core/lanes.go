package core

import (
	"slices"
	"time"
)

// lane is what the core knows of one neighbour. A lane has two queue pairs: one for blocks, one for control messages.
// Control messages carry state, not changes: how many blocks the neighbour may have sent in all, which control messages
// came, how far members are, whether the group failed or closed. So at most one is on its way at a time, and what
// happens meanwhile goes with the next.
//
// They too are sent only into posted receives: each says how many came the other way. The last two of a window are kept
// for messages that must say this, so that two neighbours never wait for each other.
type lane struct {
	peer   int
	blocks bool // a neighbour of the schedule: has a queue pair for blocks
	child  bool // reports to this member
	up     bool // the queue pairs are connected
	broken bool // a queue pair is in error

	sent    uint64 // blocks posted to the neighbour, in all
	credit  uint64 // blocks that the neighbour has granted, in all
	granted uint64 // blocks granted to the neighbour, in all
	offered uint64 // blocks granted in the last control message, in all
	ring    []int  // slots posted as receives, oldest first

	standing int // slot of the standing receive, see plain.go; -1 if none

	smallSent   uint64 // small messages posted to the neighbour, in all
	smallCredit uint64 // small messages that it has made room for, in all

	dirty   bool // there is something to send
	busy    bool // a control message is on its way
	ctlSent uint64
	ctlDone uint64 // control messages that the neighbour said it received
	ctlCame uint64 // control messages received
	ctlTold uint64 // control messages that the neighbour knows were received
	ends    bool   // the control message on its way reports the end of the group
	told    bool   // the neighbour knows of the end

	heard      time.Time // when something last came
	spoke      time.Time // when a control message was last sent
	peerActive time.Time // when the neighbour last said that it is active
}

// offer marks the lane for a control message with the neighbour's new credit when the neighbour may have used up half
// of the credit it knows of: one control message for several blocks, not one for each.
func (l *lane) offer() {
	used := l.granted - uint64(len(l.ring))
	if left := l.offered - used; l.offered < l.granted && 2*left <= uint64(len(l.ring)) {
		l.dirty = true
	}
}

// mustAcknowledge reports that the neighbour's window may run dry.
func (l *lane) mustAcknowledge() bool { return l.ctlCame-l.ctlTold >= ControlWindow*3/4 }

// mayAcknowledge reports that it is time to acknowledge if something goes to the neighbour anyway.
func (l *lane) mayAcknowledge() bool { return l.ctlCame-l.ctlTold >= ControlWindow/2 }

// mayControl reports whether the neighbour has room for a control message.
func (l *lane) mayControl() bool {
	out := l.ctlSent - l.ctlDone
	return out < ControlWindow-2 || out < ControlWindow && l.mustAcknowledge()
}

// canBeTold reports whether the neighbour is expected to take a control message that the group has failed or, with nil,
// closed. A neighbour that sent a corrupt block or message is: it must hear of that before its queue pairs break, lest
// it suspect this member.
func (l *lane) canBeTold(f *Failure) bool {
	if !l.up || l.broken {
		return false
	}
	return f == nil || f.Reason == ReasonCorrupt || !slices.Contains(f.Suspects, l.peer)
}

// Lanes are a member's neighbours: of the schedule, and of the tree of reports. A lane is a number from 0 on.
type Lanes struct {
	all []lane
	of  []int // by rank, -1 if no neighbour
}

// Lanes are the member's neighbours.
func (c *Member) Lanes() *Lanes { return &c.lanes }

func newLanes(members int) Lanes {
	of := make([]int, members)
	for rank := range of {
		of[rank] = -1
	}
	return Lanes{of: of}
}

// add makes a neighbour, if it is not one yet. Only neighbours of the schedule exchange blocks, through so many slots.
func (n *Lanes) add(peer int, blocks bool, slots int) {
	if n.of[peer] >= 0 {
		return
	}
	n.of[peer] = len(n.all)
	l := lane{peer: peer, blocks: blocks, standing: -1}
	if blocks {
		l.ring = make([]int, 0, slots+1)
	}
	n.all = append(n.all, l)
}

// wake begins a time of activity: silence counts from now.
func (n *Lanes) wake(now time.Time) {
	for i := range n.all {
		n.all[i].heard = now
	}
}

// Count is the number of neighbours.
func (n *Lanes) Count() int { return len(n.all) }

// To is the lane to a rank, or -1 if it is no neighbour.
func (n *Lanes) To(rank int) int { return n.of[rank] }

// Peer is the rank of a lane's neighbour.
func (n *Lanes) Peer(lane int) int { return n.all[lane].peer }

// HasBlocks reports whether blocks move on the lane. Else only control and small messages do.
func (n *Lanes) HasBlocks(lane int) bool { return n.all[lane].blocks }

// IsUp reports whether Connected was called for the lane.
func (n *Lanes) IsUp(lane int) bool { return n.all[lane].up }
