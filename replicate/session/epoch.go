package session

import (
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/meta/id"
	"github.com/rdmcfs/rdmcfs/meta/owed"
)

// beginEpoch announces the epoch to all members that are still wanted.
func (s *Root) beginEpoch(now time.Time, acts []RootAction) []RootAction {
	s.phase, s.began, s.parts, s.vain = RootAnnouncing, now, nil, false
	for _, m := range s.members {
		if !m.live() {
			continue
		}
		m.phase, m.asked, m.polled, m.moved, m.heard, m.had, m.bytes = MemberAsked, false, false, now, now, 0, 0
		m.steps, m.done, m.front, m.excused, m.waits = 0, time.Time{}, 0, time.Time{}, waits{}
		m.called = true
		acts = append(acts, Announce{m.node, s.epoch})
	}
	return acts
}

// beginSending sends what is missing, or settles at once.
func (s *Root) beginSending(now time.Time, acts []RootAction) []RootAction {
	s.phase, s.parts = RootSettling, nil
	for i, members := range s.arrange() {
		var haves []*blockset.Bitmap
		for _, n := range members {
			m := s.members.find(n)
			m.moved, m.heard = now, now
			haves = append(haves, m.have)
		}
		blocks := blockset.MissingIn(uint64(s.blocks), haves)
		bytes := int64(blocks.Count()) * BlockBytes
		for k, n := range members {
			s.members.find(n).had = bytes - int64(s.blocks-int(haves[k].Count()))*BlockBytes
		}
		s.parts = append(s.parts, sendPart{members: members, bytes: bytes, up: true})
		s.phase = RootSending
		acts = append(acts, Send{s.epoch, i, slices.Clone(members), haves, blocks})
	}
	return s.pollAll(now, acts)
}

// sendPart is one group of an epoch.
type sendPart struct {
	members []id.Node
	bytes   int64     // to be sent
	front   int64     // the most that one of its members has got
	up      bool      // it was asked for and has not ended
	flowing bool      // it is set up: a member that makes no progress now may be to blame
	began   time.Time // since when
}

// part is a group that has not ended; nil if it has, or is of another epoch.
func (s *Root) part(epoch uint32, i int) *sendPart {
	if epoch != s.epoch || i >= len(s.parts) || !s.parts[i].up {
		return nil
	}
	return &s.parts[i]
}

// partOf is the running group of a member, or nil.
func (s *Root) partOf(n id.Node) *sendPart {
	for i := range s.parts {
		if p := &s.parts[i]; p.up && slices.Contains(p.members, n) {
			return p
		}
	}
	return nil
}

// endPart notes that a group has ended. With the last one the session settles.
func (s *Root) endPart(p *sendPart) {
	p.up = false
	if s.phase == RootSending && !slices.ContainsFunc(s.parts, func(p sendPart) bool { return p.up }) {
		s.phase = RootSettling
	}
}

// endParts ends all groups of the epoch.
func (s *Root) endParts(acts []RootAction, suspects []id.Node) []RootAction {
	for i := range s.parts {
		if p := &s.parts[i]; p.up {
			acts = append(acts, EndGroup{s.epoch, i, suspects})
			s.endPart(p)
		}
	}
	return acts
}

// out ejects members. A group that has lost some but not all of its members ends, and the rest goes on in a new epoch.
// Other sessions may share the group: they learn which members may be gone. A member that is slow with this content, or
// can't take it, may be well for them.
func (s *Root) out(now time.Time, acts []RootAction, list []Suspect, text string) []RootAction {
	var broken []*sendPart
	var suspects []id.Node
	for _, x := range list {
		m := s.members.find(x.Node)
		if m == nil || !m.live() {
			continue
		}
		if p := s.partOf(m.node); p != nil {
			broken = append(broken, p)
		}
		m.phase, m.reason, m.text = MemberOut, x.Reason, text
		if x.Reason == owed.Unreachable || x.Reason == owed.Down {
			suspects = append(suspects, m.node)
		}
		acts = append(acts, Stop{m.node, s.epoch, false})
	}
	for _, p := range broken {
		if s.members.anyReady(p) || len(s.parts) == 1 {
			return s.nextEpoch(now, s.endParts(acts, suspects))
		}
	}
	for i := range s.parts {
		if p := &s.parts[i]; p.up && slices.Contains(broken, p) {
			acts = append(acts, EndGroup{s.epoch, i, suspects})
			s.endPart(p)
		}
	}
	return acts
}

func (s *Root) nextEpoch(now time.Time, acts []RootAction) []RootAction {
	s.fruitless++
	if s.moved.After(s.began) {
		s.fruitless = 0
	}
	if s.fruitless >= fruitlessEpochsMax {
		return s.outAll(acts, owed.Unreachable, "no group of the members works")
	}
	s.epoch++
	return s.beginEpoch(now, acts)
}

func (s *Root) outAll(acts []RootAction, reason owed.Reason, text string) []RootAction {
	for _, m := range s.members {
		if m.live() {
			m.phase, m.reason, m.text = MemberOut, reason, text
			acts = append(acts, Stop{m.node, s.epoch, false})
		}
	}
	acts = s.endParts(acts, nil)
	s.phase = RootSettling
	return acts
}

// outAllDrop ends a session that will not be published.
func (s *Root) outAllDrop(acts []RootAction) []RootAction {
	acts = s.outAll(acts, owed.Failed, "given up")
	for _, m := range s.members {
		acts = append(acts, Stop{m.node, s.epoch, true})
	}
	return acts
}

// advance moves to the next phase when the present one is complete.
func (s *Root) advance(now time.Time, acts []RootAction) []RootAction {
	if s.cancelled || s.own == OwnFailed {
		return s.end(s.outAllDrop(acts))
	}
	if s.phase == RootAnnouncing && s.members.count(MemberAsked) == 0 {
		acts = s.beginSending(now, acts)
	}
	if s.phase != RootSettling || s.members.live() > 0 {
		return acts
	}
	if list := s.wantedBack(now); len(list) > 0 {
		return s.askBack(now, acts, list)
	}
	if s.own == OwnStored {
		return s.end(acts)
	}
	return acts
}

func (s *Root) end(acts []RootAction) []RootAction {
	s.phase = RootEnded
	return append(acts, End{})
}

// pollAll asks each live member how far it is, or for its vote once the root is known.
func (s *Root) pollAll(now time.Time, acts []RootAction) []RootAction {
	if s.phase == RootAnnouncing {
		return acts
	}
	for _, m := range s.members {
		if m.live() {
			acts = s.poll(m, acts)
		}
	}
	return acts
}

// poll keeps one question under way; the first one with the root goes out beside a running one.
func (s *Root) poll(m *record, acts []RootAction) []RootAction {
	if m.polled && (m.asked || !s.hashKnown) {
		return acts
	}
	m.polled = true
	m.asked = m.asked || s.hashKnown
	return append(acts, Poll{m.node, s.epoch, s.hashKnown, s.hash})
}
