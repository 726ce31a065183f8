package session

import (
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/meta/owed"
	"github.com/rdmcfs/rdmcfs/replicate/slow"
)

// unwatchedMost is the longest time between two events, which come with the shell's ticks, that a root counts. A root
// that was stopped for longer has heard nothing meanwhile, and holds that against nobody.
const unwatchedMost = time.Second

// watched moves all times on by the time that the root has not watched.
func (s *Root) watched(now time.Time) {
	lost := now.Sub(s.seen) - unwatchedMost
	s.seen = now
	if lost <= 0 {
		return
	}
	for _, m := range s.members {
		m.heard, m.moved, m.whole = m.heard.Add(lost), m.moved.Add(lost), m.whole.Add(lost)
		m.excused = m.excused.Add(lost)
		if !m.done.IsZero() {
			m.done = m.done.Add(lost)
		}
	}
	for i := range s.parts {
		s.parts[i].began = s.parts[i].began.Add(lost)
	}
	s.began, s.moved, s.gained = s.began.Add(lost), s.moved.Add(lost), s.gained.Add(lost)
	s.judge.Unwatched(lost)
}

// onTick ejects members that are silent or stalled while others are not, and ends a session that nobody moves.
func (s *Root) onTick(now time.Time) []RootAction {
	if now.Sub(s.moved) >= s.lim.Stuck {
		return s.onStuck()
	}
	if s.phase == RootAnnouncing {
		return s.ejectUnanswered(now)
	}
	if list := s.silentMembers(now); len(list) > 0 {
		return s.out(now, nil, list, "no answer")
	}
	if list := s.stalledMembers(now); len(list) > 0 {
		return s.out(now, nil, list, "no progress")
	}
	return s.watchPace(now)
}

func (s *Root) onStuck() []RootAction {
	acts := s.outAll(nil, owed.Slow, "no progress of anybody")
	if s.own == OwnReading {
		s.cancelled = true
	}
	return acts
}

// ejectUnanswered continues without members that have not answered the announcement in time.
func (s *Root) ejectUnanswered(now time.Time) []RootAction {
	wait := s.lim.Announce
	if s.members.count(MemberAsked) == s.members.live() && s.members.count(MemberVoted) == 0 {
		wait *= 3 // nobody has answered: the fault may be ours
	}
	var list []Suspect
	for _, m := range s.members {
		if m.phase == MemberAsked && now.Sub(m.heard) >= wait {
			list = append(list, Suspect{m.node, owed.Unreachable})
		}
	}
	if len(list) > 0 {
		return s.out(now, nil, list, "no answer to the announcement")
	}
	return s.ejectPreparing(now)
}

// ejectPreparing continues without members that still prepare long after the others were ready, if the others are
// enough.
func (s *Root) ejectPreparing(now time.Time) []RootAction {
	var list []Suspect
	var took []time.Duration
	for _, m := range s.members {
		switch m.phase {
		case MemberAsked:
			list = append(list, Suspect{m.node, owed.Slow})
		case MemberReady, MemberChecking:
			took = append(took, m.moved.Sub(s.began))
		}
	}
	if len(took) == 0 || s.members.count(MemberVoted)+len(took) < s.need {
		return nil
	}
	slices.Sort(took)
	wait := min(max(s.lim.Prepare, 2*slow.Median(took)), s.lim.Stuck*4/5)
	if now.Sub(s.began) < wait {
		return nil
	}
	return s.out(now, nil, list, "still prepares, and the others are ready")
}

// silentMembers returns the members that answer nothing while others do. If no others answer they get twice the time.
func (s *Root) silentMembers(now time.Time) (list []Suspect) {
	others := s.members.count(MemberVoted) > 0
	for _, m := range s.members {
		others = others || m.live() && now.Sub(m.heard) < s.lim.Silent/2
	}
	limit := s.lim.Silent
	if !others {
		limit *= 2
	}
	for _, m := range s.members {
		if m.live() && now.Sub(m.heard) >= limit {
			list = append(list, Suspect{m.node, owed.Unreachable})
		}
	}
	return list
}

// stalledMembers returns the members that make no progress while others do, or, when none does, are the furthest
// behind.
func (s *Root) stalledMembers(now time.Time) (list []Suspect) {
	s.excuse(now)
	for _, m := range s.members {
		if !m.live() || !s.blamable(now, m) {
			continue
		}
		list = append(list, Suspect{m.node, s.lim.stallReason(now, m)})
	}
	return list
}

// excuse notes which members get nothing because their group sends what they have: as long as nobody has got more since
// their last block than they had before.
func (s *Root) excuse(now time.Time) {
	if !s.anyMoved(now) {
		return
	}
	for _, m := range s.members {
		if m.had == 0 {
			continue
		}
		if p := s.partOf(m.node); p != nil && p.front-m.front <= m.had {
			m.excused = now
		}
	}
}

func (s *Root) blamable(now time.Time, m *record) bool {
	if m.phase == MemberChecking {
		return s.hashKnown && s.own == OwnStored && now.Sub(m.moved) >= s.checkingLimit() && s.members.othersDone(m)
	}
	if s.members.waitsForSilent(now, m, s.lim.PollWait) {
		return false
	}
	p := s.partOf(m.node)
	if s.phase != RootSending || p == nil || !p.flowing || s.own == OwnReading && !s.anyMoved(now) {
		return false // the source is what is slow
	}
	patience, known := slow.Patience(s.groups(), m.node, s.lim.Stalled)
	if now.Sub(s.moved) >= patience {
		patience *= 2 // nobody moves
	}
	idle := min(now.Sub(m.moved), now.Sub(m.excused))
	return known && idle >= patience && s.members.furthestBehind(m)
}

// checkingLimit is how long a member may check and sync when all others are done: twice as long as they took, but not
// less than a while.
func (s *Root) checkingLimit() time.Duration {
	var took []time.Duration
	for _, m := range s.members {
		if m.phase == MemberVoted && m.checked > 0 {
			took = append(took, m.checked)
		}
	}
	if len(took) == 0 || s.members.count(MemberVoted) < s.need {
		return s.lim.Checking
	}
	slices.Sort(took)
	return max(s.lim.Checking/2, 2*slow.Median(took))
}

// anyMoved reports whether somebody progressed lately.
func (s *Root) anyMoved(now time.Time) bool { return now.Sub(s.moved) < s.lim.Stalled }

// stallReason is why a member that makes no progress is owed a content: a member that answers no poll either was
// stopped or cut off, and is not slow.
func (l Limits) stallReason(now time.Time, m *record) owed.Reason {
	if now.Sub(m.heard) >= 2*l.PollWait {
		return owed.Unreachable
	}
	return owed.Slow
}
