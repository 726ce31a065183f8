package replicate

import (
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// beginEpoch announces the epoch to all members that are still wanted.
func (s *rootSession) beginEpoch(now time.Time, acts []rootAction) []rootAction {
	s.phase, s.began, s.sending = rootAnnouncing, now, nil
	for _, m := range s.members {
		if !m.live() {
			continue
		}
		m.phase, m.asked, m.polled, m.moved, m.heard = memberAsked, false, false, now, now
		acts = append(acts, actAnnounce{m.node, s.epoch})
	}
	return acts
}

// beginSending sends what is missing, or settles at once.
func (s *rootSession) beginSending(now time.Time, acts []rootAction) []rootAction {
	var haves []bitmap
	s.sending = nil
	for _, m := range s.members {
		if m.phase == memberReady {
			m.moved, m.heard = now, now
			s.sending = append(s.sending, m.node)
			haves = append(haves, m.have)
		}
	}
	s.phase = rootSettling
	if len(s.sending) > 0 {
		s.phase, s.groupUp, s.flowing = rootSending, true, false
		acts = append(acts, actSend{s.epoch, slices.Clone(s.sending), haves, unionMissing(s.blocks, haves)})
	}
	return s.pollAll(now, acts)
}

// out ejects members; if one of them was in the running group, the rest goes on in a new epoch.
func (s *rootSession) out(now time.Time, acts []rootAction, list []suspect, text string) []rootAction {
	broken := false
	var ejected []meta.NodeID
	for _, x := range list {
		m := s.member(x.node)
		if m == nil || !m.live() {
			continue
		}
		broken = broken || s.groupUp && slices.Contains(s.sending, m.node)
		m.phase, m.reason, m.text = memberOut, x.reason, text
		ejected = append(ejected, m.node)
		acts = append(acts, actStop{m.node, s.epoch, false})
	}
	if !broken {
		return acts
	}
	acts = append(acts, actEndGroup{s.epoch, ejected})
	s.groupUp = false
	return s.nextEpoch(now, acts)
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
	if s.groupUp {
		acts = append(acts, actEndGroup{epoch: s.epoch})
		s.groupUp = false
	}
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
