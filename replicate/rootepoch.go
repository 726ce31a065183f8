package replicate

import (
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// beginEpoch announces the epoch to all members that are still wanted.
func (s *rootSession) beginEpoch(now time.Time, acts []rootAction) []rootAction {
	s.phase, s.began, s.parts = rootAnnouncing, now, nil
	for _, m := range s.members {
		if !m.live() {
			continue
		}
		m.phase, m.asked, m.polled, m.moved, m.heard, m.bytes = memberAsked, false, false, now, now, 0
		m.mark, m.done = 0, time.Time{}
		acts = append(acts, actAnnounce{m.node, s.epoch})
	}
	return acts
}

// beginSending sends what is missing, or settles at once.
func (s *rootSession) beginSending(now time.Time, acts []rootAction) []rootAction {
	s.phase, s.parts = rootSettling, nil
	for i, members := range s.arrange() {
		var haves []content.Bitmap
		for _, n := range members {
			m := s.member(n)
			m.moved, m.heard = now, now
			haves = append(haves, m.have)
		}
		blocks := content.MissingIn(int64(s.blocks), haves)
		s.parts = append(s.parts, sendPart{members: members, bytes: int64(blocks.Count()) * content.BlockBytes, up: true})
		s.phase = rootSending
		acts = append(acts, actSend{s.epoch, i, slices.Clone(members), haves, blocks})
	}
	return s.pollAll(now, acts)
}

// sendPart is one group of an epoch.
type sendPart struct {
	members []meta.NodeID
	bytes   int64 // to be sent
	up      bool  // it was asked for and has not ended
	flowing bool  // it is set up: who makes no progress now may be to blame
}

// part is a group that has not ended; nil if it has, or is of another epoch.
func (s *rootSession) part(epoch uint32, i int) *sendPart {
	if epoch != s.epoch || i >= len(s.parts) || !s.parts[i].up {
		return nil
	}
	return &s.parts[i]
}

// partOf is the running group of a member, or nil.
func (s *rootSession) partOf(n meta.NodeID) *sendPart {
	for i := range s.parts {
		if p := &s.parts[i]; p.up && slices.Contains(p.members, n) {
			return p
		}
	}
	return nil
}

// anyReady reports whether a group has members that still receive.
func (s *rootSession) anyReady(p *sendPart) bool {
	return slices.ContainsFunc(p.members, func(n meta.NodeID) bool { return s.member(n).phase == memberReady })
}

// endPart notes that a group has ended. With the last one the session settles.
func (s *rootSession) endPart(p *sendPart) {
	p.up = false
	if s.phase == rootSending && !slices.ContainsFunc(s.parts, func(p sendPart) bool { return p.up }) {
		s.phase = rootSettling
	}
}

// endParts ends all groups of the epoch.
func (s *rootSession) endParts(acts []rootAction, suspects []meta.NodeID) []rootAction {
	for i := range s.parts {
		if p := &s.parts[i]; p.up {
			acts = append(acts, actEndGroup{s.epoch, i, suspects})
			s.endPart(p)
		}
	}
	return acts
}

// out ejects members. A group that has lost some but not all of its members ends, and the rest goes on in a new epoch.
func (s *rootSession) out(now time.Time, acts []rootAction, list []suspect, text string) []rootAction {
	var broken []*sendPart
	var ejected []meta.NodeID
	for _, x := range list {
		m := s.member(x.node)
		if m == nil || !m.live() {
			continue
		}
		if p := s.partOf(m.node); p != nil {
			broken = append(broken, p)
		}
		m.phase, m.reason, m.text = memberOut, x.reason, text
		ejected = append(ejected, m.node)
		acts = append(acts, actStop{m.node, s.epoch, false})
	}
	for _, p := range broken {
		if s.anyReady(p) || len(s.parts) == 1 {
			return s.nextEpoch(now, s.endParts(acts, ejected))
		}
	}
	for i := range s.parts {
		if p := &s.parts[i]; p.up && slices.Contains(broken, p) {
			acts = append(acts, actEndGroup{s.epoch, i, ejected})
			s.endPart(p)
		}
	}
	return acts
}

func (s *rootSession) nextEpoch(now time.Time, acts []rootAction) []rootAction {
	s.fruitless++
	if s.moved.After(s.began) {
		s.fruitless = 0
	}
	if s.fruitless >= fruitlessEpochsMax {
		return s.outAll(acts, meta.OwedUnreachable, "no group of the members works")
	}
	s.epoch++
	return s.beginEpoch(now, acts)
}

func (s *rootSession) outAll(acts []rootAction, reason meta.OwedReason, text string) []rootAction {
	for _, m := range s.members {
		if m.live() {
			m.phase, m.reason, m.text = memberOut, reason, text
			acts = append(acts, actStop{m.node, s.epoch, false})
		}
	}
	acts = s.endParts(acts, nil)
	s.phase = rootSettling
	return acts
}

// outAllDrop ends a session that will not be published.
func (s *rootSession) outAllDrop(acts []rootAction) []rootAction {
	acts = s.outAll(acts, meta.OwedFailed, "given up")
	for _, m := range s.members {
		acts = append(acts, actStop{m.node, s.epoch, true})
	}
	return acts
}

// advance moves to the next phase when the present one is complete.
func (s *rootSession) advance(now time.Time, acts []rootAction) []rootAction {
	if s.cancelled || s.local == localFailed {
		return s.end(s.outAllDrop(acts))
	}
	if s.phase == rootAnnouncing && s.count(memberAsked) == 0 {
		acts = s.beginSending(now, acts)
	}
	if s.phase != rootSettling || s.liveCount() > 0 {
		return acts
	}
	if list := s.wantedBack(now); len(list) > 0 {
		return s.askBack(now, acts, list)
	}
	if s.local == localStored {
		return s.end(acts)
	}
	return acts
}

func (s *rootSession) end(acts []rootAction) []rootAction {
	s.phase = rootEnded
	return append(acts, actEnd{})
}

// pollAll asks each live member how far it is, or for its vote once the root is known.
func (s *rootSession) pollAll(now time.Time, acts []rootAction) []rootAction {
	if s.phase == rootAnnouncing {
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
func (s *rootSession) poll(m *rootMember, acts []rootAction) []rootAction {
	if m.polled && (m.asked || !s.rootKnown) {
		return acts
	}
	m.polled = true
	m.asked = m.asked || s.rootKnown
	return append(acts, actFinish{m.node, s.epoch, s.rootKnown, s.root})
}

func (s *rootSession) count(p memberPhase) (n int) {
	for _, m := range s.members {
		if m.phase == p {
			n++
		}
	}
	return n
}

func (s *rootSession) liveCount() (n int) {
	for _, m := range s.members {
		if m.live() {
			n++
		}
	}
	return n
}
