package session

import (
	"time"

	"github.com/rdmcfs/rdmcfs/meta/owed"
)

// onView takes the log's word on the members. A member that is down, or in a new incarnation, is out: apply takes no
// vote of an incarnation that ended. A member that was down when the session began and is up now may be asked if it is
// needed.
func (s *Root) onView(now time.Time, e View) []RootAction {
	s.need = e.Need
	var lost []Suspect
	for _, v := range e.Nodes {
		m := s.members.find(v.Node)
		if m == nil && v.Up {
			m = &record{node: v.Node, phase: MemberOut, reason: owed.Down, text: "was down"}
			s.members = append(s.members, m)
		}
		if m == nil {
			continue
		}
		restarted := m.incarnation != 0 && m.incarnation != v.Incarnation
		m.up, m.incarnation, m.called = v.Up, v.Incarnation, m.called && !restarted
		x := Suspect{v.Node, owed.Down}
		switch {
		case v.Up && !restarted:
			continue
		case v.Up:
			x.Reason = owed.Unreachable
		}
		lost = append(lost, x)
		if m.phase == MemberVoted {
			m.phase, m.reason, m.text = MemberOut, x.Reason, downText
		}
	}
	return s.out(now, nil, lost, downText)
}

const downText = "down or restarted, as the log says"

// wantedBack returns the members that were lost on the way, that the log lists as up, and without which too few have
// voted: they were killed and are back, or will be back or be declared down soon. What they have stored counts. Nobody
// waits for them for longer than a session may be stuck. The members that are well have had their turn: none of their
// blocks is sent again.
func (s *Root) wantedBack(now time.Time) (list []*record) {
	if s.members.count(MemberVoted) >= s.need || now.Sub(s.gained) >= s.lim.Stuck {
		return nil
	}
	for _, m := range s.members {
		if m.phase == MemberOut && m.up && MayPass(m.reason) {
			list = append(list, m)
		}
	}
	return list
}

// onJoined takes more members in. All of them get, in one group, what some of them lack: so the first members wait for
// blocks that they have. It is worth it early in a session.
func (s *Root) onJoined(now time.Time, e Joined) []RootAction {
	for _, n := range e.Nodes {
		m := s.members.find(n)
		if m == nil {
			m = &record{node: n, phase: MemberOut}
			s.members = append(s.members, m)
		}
		if m.phase == MemberOut {
			m.phase = MemberAsked
		}
	}
	acts := s.endParts(nil, nil)
	s.epoch++
	return s.beginEpoch(now, acts)
}

// askBack begins an epoch with members that were lost, unless one began just now.
func (s *Root) askBack(now time.Time, acts []RootAction, list []*record) []RootAction {
	if now.Sub(s.began) < s.lim.Again {
		return acts
	}
	for _, m := range list {
		m.phase = MemberAsked
	}
	s.epoch++
	s.fruitless = 0
	return s.beginEpoch(now, acts)
}
