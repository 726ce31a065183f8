package session

import (
	"time"

	"github.com/rdmcfs/rdmcfs/meta/id"
	"github.com/rdmcfs/rdmcfs/meta/owed"
	"github.com/rdmcfs/rdmcfs/replicate/slow"
)

// groups returns the groups of the epoch as the judge of slowness sees them.
func (s *Root) groups() []slow.Group {
	groups := make([]slow.Group, len(s.parts))
	for i := range s.parts {
		groups[i] = s.members.group(&s.parts[i])
	}
	return groups
}

// group is one of them.
func (r roster) group(p *sendPart) slow.Group {
	g := slow.Group{Members: make([]slow.Member, len(p.members)), Bytes: p.bytes, Up: p.up, Flowing: p.flowing,
		Began: p.began}
	for k, n := range p.members {
		m := r.find(n)
		g.Members[k] = slow.Member{
			Node: n, Ready: m.phase == MemberReady, Out: m.phase == MemberOut,
			Bytes: m.had + m.bytes, Steps: m.steps, Moved: m.moved, Done: m.done,
			Sending: m.waits.sending, Waiting: m.waits.waiting,
		}
	}
	return g
}

// arrange puts the members that are to receive into groups.
func (s *Root) arrange() [][]id.Node {
	var ready []id.Node
	for _, m := range s.members {
		if m.phase == MemberReady {
			ready = append(ready, m.node)
		}
	}
	return s.judge.Arrange(ready)
}

// watchPace carries out what the judge of slowness says.
func (s *Root) watchPace(now time.Time) []RootAction {
	if s.phase != RootSending {
		return nil
	}
	spare := s.members.count(MemberVoted)+s.members.live()-1 >= s.need
	v := s.judge.Watch(now, s.groups(), spare)
	switch {
	case v.Out:
		return s.out(now, nil, []Suspect{{v.Node, owed.Slow}}, v.Text)
	case v.Regroup:
		acts := s.endParts(nil, nil)
		s.epoch++
		return s.beginEpoch(now, acts)
	}
	return nil
}
