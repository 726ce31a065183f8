package replicate

import (
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// onTick ejects members that are silent or stalled while others are not, and ends a session that nobody moves.
func (s *rootSession) onTick(now time.Time) []rootAction {
	if now.Sub(s.moved) >= s.lim.stuck {
		return s.onStuck()
	}
	if s.phase == rootAnnouncing {
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

func (s *rootSession) onStuck() []rootAction {
	acts := s.outAll(nil, meta.OwedSlow, "no progress of anybody")
	if s.local == localReading {
		s.cancelled = true
	}
	return acts
}

// ejectUnanswered goes on without members that have not answered the announcement in time.
func (s *rootSession) ejectUnanswered(now time.Time) []rootAction {
	wait := s.lim.announce
	if s.count(memberAsked) == s.liveCount() && s.count(memberVoted) == 0 {
		wait *= 3 // nobody has answered: the fault may be ours
	}
	var list []suspect
	for _, m := range s.members {
		if m.phase == memberAsked && now.Sub(m.heard) >= wait {
			list = append(list, suspect{m.node, meta.OwedUnreachable})
		}
	}
	if len(list) == 0 {
		return nil
	}
	return s.out(now, nil, list, "no answer to the announcement")
}

// silentMembers answer nothing while somebody else does. With nobody else they get twice the time.
func (s *rootSession) silentMembers(now time.Time) (list []suspect) {
	others := s.count(memberVoted) > 0
	for _, m := range s.members {
		others = others || m.live() && now.Sub(m.heard) < s.lim.silent/2
	}
	limit := s.lim.silent
	if !others {
		limit *= 2
	}
	for _, m := range s.members {
		if m.live() && now.Sub(m.heard) >= limit {
			list = append(list, suspect{m.node, meta.OwedUnreachable})
		}
	}
	return list
}

// stalledMembers make no progress while others do, or, when nobody does, are the furthest behind.
func (s *rootSession) stalledMembers(now time.Time) (list []suspect) {
	for _, m := range s.members {
		if !m.live() || !s.blamable(now, m) {
			continue
		}
		list = append(list, suspect{m.node, s.stallReason(now, m)})
	}
	return list
}

// stallReason is why a member that makes no progress is owed a content: one that answers no poll either was stopped
// or cut off, and is not slow.
func (s *rootSession) stallReason(now time.Time, m *rootMember) meta.OwedReason {
	if now.Sub(m.heard) >= 2*s.lim.pollWait {
		return meta.OwedUnreachable
	}
	return meta.OwedSlow
}

func (s *rootSession) blamable(now time.Time, m *rootMember) bool {
	idle := now.Sub(m.moved)
	if m.phase == memberChecking {
		return s.rootKnown && s.local == localStored && idle >= s.checkingLimit() && s.othersDone(m)
	}
	if s.waitsForSilent(now, m) {
		return false
	}
	p := s.partOf(m.node)
	if s.phase != rootSending || p == nil || !p.flowing || s.local == localReading && !s.anyMoved(now) {
		return false // the source is what is slow
	}
	if idle >= s.lim.stalled && s.anyMoved(now) {
		return s.furthestBehind(m)
	}
	return idle >= 2*s.lim.stalled && s.furthestBehind(m)
}

// checkingLimit is how long a member may check and sync when all others are done: twice as long as they took, but not
// less than a while.
func (s *rootSession) checkingLimit() time.Duration {
	var took []float64
	for _, m := range s.members {
		if m.phase == memberVoted && m.checked > 0 {
			took = append(took, float64(m.checked))
		}
	}
	if len(took) == 0 || s.count(memberVoted) < s.need {
		return s.lim.checking
	}
	slices.Sort(took)
	return max(s.lim.checking/2, time.Duration(2*median(took)))
}

// waitsForSilent reports whether a member that answers may lack blocks only because another one of the group, which
// does not answer any more, should have relayed them. That one's time is over soon.
func (s *rootSession) waitsForSilent(now time.Time, m *rootMember) bool {
	quiet := func(o *rootMember) bool { return now.Sub(o.heard) >= 2*s.lim.pollWait }
	return !quiet(m) && slices.ContainsFunc(s.members, func(o *rootMember) bool {
		return o != m && o.phase == memberReady && quiet(o)
	})
}

// othersDone reports whether every other member has voted or is out.
func (s *rootSession) othersDone(m *rootMember) bool {
	for _, o := range s.members {
		if o != m && o.live() && o.phase != memberChecking {
			return false
		}
	}
	return true
}

// anyMoved reports whether somebody progressed lately.
func (s *rootSession) anyMoved(now time.Time) bool { return now.Sub(s.moved) < s.lim.stalled }

// furthestBehind reports whether no member of the group has fewer blocks. Relaying couples the members, so of
// several that wait only this one is to blame.
func (s *rootSession) furthestBehind(m *rootMember) bool {
	for _, o := range s.members {
		if o.phase == memberReady && o.held < m.held {
			return false
		}
	}
	return true
}
