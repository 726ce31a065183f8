package rdmc

import (
	"fmt"
	"slices"
	"time"
)

// Constants of the judgement.
const (
	// slowIdle is the pace with the best of its sources, over what a member gets, above which its link idles now and
	// then: it is not slow.
	slowIdle = 1.1
	// slowRatio is how many times as much of a round each of a straggler's sources must have spent on it as on
	// others: they queue up for it.
	slowRatio = 2
	// slowSurely is the percent from which half as much again as with the others is enough.
	slowSurely = 80
	// slowRoom and slowRoomRatio are the same for who makes room late: a healthy member on a busy machine does that
	// now and then.
	slowRoom      = 60
	slowRoomRatio = 4
	// slowElsewhere is the part of a group's bytes, in percent, that a machine may receive for others and still be
	// judged.
	slowElsewhere = 25
)

// laneFigures is what a member tells a peer that it sends blocks to of how that goes.
type laneFigures struct {
	pace       uint32 // by the time spent on the peer, in paceUnit
	busy, wait uint8  // percent of the round: spent on the peer, and of that waited for room
}

// figures is what a member tells the root once in a round of how it takes blocks, by what its sources told it.
type figures struct {
	pace       uint32 // with the best of its sources, in paceUnit; 0 if nothing is known
	rate       uint32 // of the blocks that it got, in paceUnit
	pulse      uint32 // of the blocks that it got behind the first ones of pulses, in paceUnit; without pulses of as many blocks; 0 if none came
	busy, wait uint8  // percent of the round, of the source that was the least busy with it
	peers      uint8  // sources
	elsewhere  bool   // its link was also used by others
}

// Straggler is a member that takes blocks from each of its sources more slowly than the others do from the best of
// theirs, while all its sources queue up for it.
type Straggler struct {
	Rank int
	// Pace is that with the best of its sources by the time that this one spent on it, Others the median of the other
	// members' such paces, the lower one of two, and Group the pace at which it gets blocks, all in bytes a second.
	Pace, Others, Group float64
	// Peers is by how many members it was measured; each was Busy with it for at least this part of the time, and for
	// the part Waiting of it waited for room.
	Peers         int
	Busy, Waiting float64
	// Pulse is its pace in pulses, when the root sent in some to know, and OthersPulse what a third of the others
	// reached in them. 0 if there were none.
	Pulse, OthersPulse float64
	// Over is how long it was measured.
	Over time.Duration

	doubtful bool // bursts may be the reason
}

// String is the evidence in a sentence.
func (s Straggler) String() string {
	why := "its link or its processor is slow"
	if s.Waiting > 0.5 {
		why = "it makes room late"
	}
	pulses := ""
	if s.Pulse > 0 {
		pulses = fmt.Sprintf(", in pulses %.3g where others got %.3g", s.Pulse/1e6, s.OthersPulse/1e6)
	}
	return fmt.Sprintf("member %d takes at best %.3g MB a second from one source, the others %.3g; each of its %d sources was busy with it for %.0f%% of "+
		"%v or more, and it got %.3g MB a second%s: %s", s.Rank, s.Pace/1e6, s.Others/1e6, s.Peers, 100*s.Busy, s.Over.Round(time.Millisecond), s.Group/1e6, pulses, why)
}

// SlowError is the cause of a GroupError with ReasonSlow, at the root.
type SlowError struct{ Straggler Straggler }

// Error is the evidence.
func (e *SlowError) Error() string { return "rdmc: " + e.Straggler.String() }

// straggler judges a member by the figures of all, by rank, of blocks of a size. Two sources or more must have
// measured it, as one slow link is no slow member.
func straggler(all []figures, rank int, factor float64, block int) (Straggler, bool) {
	f := &all[rank]
	if f.pace == 0 || f.busy == 0 || f.elsewhere || f.peers < 2 || float64(f.pace) > slowIdle*float64(f.rate) {
		return Straggler{}, false
	}
	paces := known(all, rank, func(f *figures) float64 { return float64(f.pace) })
	busy := known(all, rank, func(f *figures) float64 { return float64(f.busy) })
	if len(paces) == 0 || !f.queued(busy[len(busy)/2]) {
		return Straggler{}, false
	}
	others := median(paces)
	return Straggler{
		Rank: rank, Pace: float64(f.pace) * paceUnit, Others: others * paceUnit, Group: float64(f.rate) * paceUnit,
		Peers: int(f.peers), Busy: float64(f.busy) / 100, Waiting: float64(f.wait) / float64(f.busy),
		doubtful: !f.late() && f.bursts(block),
	}, float64(f.pace)*factor < others
}

// queued reports whether sources are busy with a member so much more than with the others, that they queue up for it.
func (f *figures) queued(others float64) bool {
	busy := float64(f.busy)
	switch {
	case busy >= slowSurely && busy >= 1.5*others:
		return true
	case f.late():
		return busy >= slowRoom && busy >= slowRoomRatio*others
	default:
		return busy >= slowRatio*others
	}
}

// late reports whether sources wait for a member's room, rather than for its link.
func (f *figures) late() bool { return 2*int(f.wait) > int(f.busy) }

// known is what others tell, in order, of those that a pace is known of.
func known(all []figures, rank int, of func(*figures) float64) (list []float64) {
	for r := range all {
		if r != rank && all[r].pace > 0 {
			list = append(list, of(&all[r]))
		}
	}
	slices.Sort(list)
	return list
}

// worst is the straggler with the lowest pace, if there is one: beside one others may look slow that wait for it.
func worst(all []figures, factor float64, block int) (found Straggler, ok bool) {
	for rank := 1; rank < len(all); rank++ {
		if s, slow := straggler(all, rank, factor, block); slow && (!ok || s.Pace < found.Pace) {
			found, ok = s, true
		}
	}
	return found, ok
}
