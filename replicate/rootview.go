package replicate

import (
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// onView takes the log's word on the members. One that is down, or in a new incarnation, is out: apply takes no vote
// of an incarnation that ended. One that was down when the session began and is up now may be asked if it is needed.
func (s *rootSession) onView(now time.Time, e evView) []rootAction {
	s.need = e.need
	var lost []suspect
	for _, v := range e.nodes {
		m := s.member(v.node)
		if m == nil && v.up {
			m = &rootMember{node: v.node, phase: memberOut, reason: meta.OwedDown, text: "was down"}
			s.members = append(s.members, m)
		}
		if m == nil {
			continue
		}
		restarted := m.incarnation != 0 && m.incarnation != v.incarnation
		m.up, m.incarnation = v.up, v.incarnation
		x := suspect{v.node, meta.OwedDown}
		switch {
		case v.up && !restarted:
			continue
		case v.up:
			x.reason = meta.OwedUnreachable
		}
		lost = append(lost, x)
		if m.phase == memberVoted {
			m.phase, m.reason, m.text = memberOut, x.reason, downText
		}
	}
	return s.out(now, nil, lost, downText)
}

const downText = "down or restarted, as the log says"

// wantedBack are the members that were lost on the way, that the log holds up, and without which too few have voted:
// they were killed and are back, or will be back or be declared down soon. What they have stored counts. Nobody waits
// for them for longer than a session may be stuck, and those that are well have had their turn: none of their blocks
// is sent again.
func (s *rootSession) wantedBack(now time.Time) (list []*rootMember) {
	if s.count(memberVoted) >= s.need || now.Sub(s.gained) >= s.lim.stuck {
		return nil
	}
	for _, m := range s.members {
		if m.phase == memberOut && m.up && mayPass(m.reason) {
			list = append(list, m)
		}
	}
	return list
}

// mayPass reports whether a member that is owed a content for this reason may take it a moment later.
func mayPass(r meta.OwedReason) bool {
	return r == meta.OwedDown || r == meta.OwedUnreachable || r == meta.OwedSlow
}

// askBack begins an epoch with members that were lost, unless one began just now.
func (s *rootSession) askBack(now time.Time, acts []rootAction, list []*rootMember) []rootAction {
	if now.Sub(s.began) < s.lim.again {
		return acts
	}
	for _, m := range list {
		m.phase = memberAsked
	}
	s.epoch++
	s.fruitless = 0
	return s.beginEpoch(now, acts)
}

// looked is what the applied log says of nodes; no votes are needed.
func looked(names meta.Reader, nodes []meta.NodeID) (e evView) {
	for _, id := range nodes {
		if n, err := names.Node(id); err == nil {
			e.nodes = append(e.nodes, nodeView{id, n.State == meta.NodeUp, n.Incarnation})
		}
	}
	return e
}
