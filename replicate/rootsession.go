package replicate

import (
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// rootSession is the protocol of one session at its root: a pure state machine. The shell (push.go) hands it
// events with the time and carries out the actions it returns; it never waits for one.
//
//	announcing ──all answered──> sending ──group done or nothing to send──> settling ──all voted or out──> ended
//	     ^                          │                                          │
//	     └──────── epoch + 1 ───────┴─────────── a member failed ──────────────┘
//
// Each epoch asks the members that have not voted which blocks they have and sends, in one group, what
// some of them lack. A member that fails is out: it is owed the content, with the reason, and the others go on.
type rootSession struct {
	lim    sessionLimits
	blocks int

	epoch     uint32
	phase     rootPhase
	members   []*rootMember
	began     time.Time // of the epoch
	moved     time.Time // last progress of anybody
	sending   []meta.NodeID
	fruitless int  // epochs in a row that moved nothing
	groupUp   bool // a group of this epoch was asked for and has not ended
	flowing   bool // it is set up: who makes no progress now may be to blame

	rootKnown bool
	root      [32]byte
	local     localState
	localErr  error
	cancelled bool
}

type rootPhase uint8

const (
	rootAnnouncing rootPhase = iota
	rootSending
	rootSettling
	rootEnded
)

type localState uint8

const (
	localReading localState = iota // bytes are still being read from the source
	localStored                    // checked, durable
	localFailed
)

type memberPhase uint8

const (
	memberAsked    memberPhase = iota // announced, no answer yet
	memberReady                       // answered
	memberChecking                    // has every block
	memberVoted
	memberOut
)

// rootMember is what the root knows of one member.
type rootMember struct {
	node   meta.NodeID
	phase  memberPhase
	have   bitmap // as of the announcement of this epoch
	held   int    // blocks held, as last told
	moved  time.Time
	heard  time.Time
	asked  bool // a finish with the root was sent in this epoch
	polled bool // a finish is under way
	reason meta.OwedReason
	text   string
}

// fruitlessEpochsMax bounds the epochs in a row in which nothing moved.
const fruitlessEpochsMax = 5

// sessionLimits are the bounds of a session. All are positive.
type sessionLimits struct {
	announce time.Duration // for the answers to an announcement once one has come
	silent   time.Duration // without any answer while others answer
	stalled  time.Duration // without progress while others progress
	checking time.Duration // for the last check and sync when all others are done
	stuck    time.Duration // without progress of anybody: the session ends
	pollWait time.Duration // a member answers a poll within this
}

func defaultLimits() sessionLimits {
	return sessionLimits{
		announce: 3 * time.Second, silent: 2 * time.Second, stalled: 1500 * time.Millisecond,
		checking: 10 * time.Second, stuck: 25 * time.Second, pollWait: 300 * time.Millisecond,
	}
}

func newRootSession(members []meta.NodeID, blocks int, lim sessionLimits) *rootSession {
	s := &rootSession{lim: lim, blocks: blocks, phase: rootSettling}
	for _, n := range members {
		s.members = append(s.members, &rootMember{node: n})
	}
	return s
}

// start announces the session to all members.
func (s *rootSession) start(now time.Time) []rootAction {
	s.moved = now
	return s.beginEpoch(now, nil)
}

// step takes one event and says what is to be done.
func (s *rootSession) step(now time.Time, ev rootEvent) []rootAction {
	if s.phase == rootEnded {
		return nil
	}
	acts := s.take(now, ev)
	if s.phase == rootEnded {
		return acts
	}
	return s.advance(now, acts)
}

func (s *rootSession) take(now time.Time, ev rootEvent) []rootAction {
	switch e := ev.(type) {
	case evAnswer:
		return s.onAnswer(now, e)
	case evStanding:
		return s.onStanding(now, e)
	case evUnreachable:
		return s.onUnreachable(now, e)
	case evProgress:
		s.onProgress(now, e)
	case evFlowing:
		s.onFlowing(now, e)
	case evAhead:
		if m := s.member(e.node); m != nil && m.live() && e.epoch == s.epoch {
			m.moved, s.moved = now, now
		}
	case evGroupDone:
		return s.onGroupDone(now, e)
	case evGroupFailed:
		return s.onGroupFailed(now, e)
	case evRoot:
		s.rootKnown, s.root, s.moved = true, e.root, now
		return s.pollAll(now, nil)
	case evLocal:
		s.onLocal(now, e)
	case evDown:
		return s.out(now, nil, []suspect{{e.node, meta.OwedDown}}, "declared down")
	case evTick:
		return s.onTick(now)
	case evCancel:
		s.cancelled = true
	}
	return nil
}

func (s *rootSession) member(n meta.NodeID) *rootMember {
	for _, m := range s.members {
		if m.node == n {
			return m
		}
	}
	return nil
}

func (m *rootMember) live() bool { return m.phase != memberOut && m.phase != memberVoted }

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

func (s *rootSession) onAnswer(now time.Time, e evAnswer) []rootAction {
	m := s.member(e.node)
	if m == nil || !m.live() || e.Epoch != s.epoch || m.phase != memberAsked {
		return nil
	}
	m.heard, m.moved = now, now
	switch e.Status {
	case statusReady, statusReceiving, statusChecking:
		m.phase, m.have = memberReady, e.Have.clip(s.blocks)
		m.held = m.have.count()
		if m.held == s.blocks {
			m.phase = memberChecking
		}
	case statusVoted:
		m.phase, s.moved = memberVoted, now
	default:
		return s.out(now, nil, []suspect{{m.node, refusal(e.standing)}}, e.Text)
	}
	return nil
}

// refusal is the reason under which a member that refused is owed.
func refusal(st standing) meta.OwedReason {
	if st.Reason == 0 {
		return meta.OwedFailed
	}
	return st.Reason
}

func (s *rootSession) onStanding(now time.Time, e evStanding) []rootAction {
	m := s.member(e.node)
	if m == nil || !m.live() || e.Epoch != s.epoch {
		return nil
	}
	m.heard, m.polled = now, false
	switch e.Status {
	case statusVoted:
		m.phase, m.moved, s.moved = memberVoted, now, now
		m.held = s.blocks
		return nil
	case statusRefused, statusGone:
		return s.out(now, nil, []suspect{{m.node, refusal(e.standing)}}, e.Text)
	}
	s.setHeld(now, m, int(e.Held))
	if e.Status == statusChecking && m.phase != memberChecking {
		m.phase, m.moved, s.moved = memberChecking, now, now
	}
	return s.poll(m, nil)
}

func (s *rootSession) setHeld(now time.Time, m *rootMember, held int) {
	if held > m.held {
		m.held, m.moved, s.moved = min(held, s.blocks), now, now
	}
}

func (s *rootSession) onProgress(now time.Time, e evProgress) {
	if m := s.member(e.node); m != nil && m.live() && e.epoch == s.epoch {
		s.setHeld(now, m, m.have.count()+e.moved)
	}
}

func (s *rootSession) onFlowing(now time.Time, e evFlowing) {
	if e.epoch != s.epoch || !s.groupUp {
		return
	}
	s.flowing, s.moved = true, now
	for _, n := range s.sending {
		s.member(n).moved = now
	}
}

func (s *rootSession) onUnreachable(now time.Time, e evUnreachable) []rootAction {
	m := s.member(e.node)
	if m == nil || !m.live() || e.epoch != s.epoch {
		return nil
	}
	m.polled = false
	return s.out(now, nil, []suspect{{e.node, meta.OwedUnreachable}}, e.text)
}

func (s *rootSession) onGroupDone(now time.Time, e evGroupDone) []rootAction {
	if e.epoch != s.epoch || !s.groupUp {
		return nil
	}
	s.groupUp, s.phase, s.moved = false, rootSettling, now
	for _, n := range s.sending {
		if m := s.member(n); m.live() {
			m.held, m.moved = s.blocks, now
			m.phase = memberChecking
		}
	}
	return s.pollAll(now, nil)
}

func (s *rootSession) onGroupFailed(now time.Time, e evGroupFailed) []rootAction {
	if e.epoch != s.epoch || !s.groupUp {
		return nil
	}
	s.groupUp = false
	return s.nextEpoch(now, s.out(now, nil, e.suspects, e.text))
}

func (s *rootSession) onLocal(now time.Time, e evLocal) {
	s.moved = now
	s.local, s.localErr = localStored, e.err
	if e.err != nil {
		s.local = localFailed
	}
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

// advance moves to the next phase when the present one is complete.
func (s *rootSession) advance(now time.Time, acts []rootAction) []rootAction {
	if s.cancelled || s.local == localFailed {
		return s.end(s.outAllDrop(acts))
	}
	if s.phase == rootAnnouncing && s.count(memberAsked) == 0 {
		acts = s.beginSending(now, acts)
	}
	if s.phase == rootSettling && s.local == localStored && s.liveCount() == 0 {
		return s.end(acts)
	}
	return acts
}

func (s *rootSession) end(acts []rootAction) []rootAction {
	s.phase = rootEnded
	return append(acts, actEnd{})
}

// outAllDrop ends a session that will not be published.
func (s *rootSession) outAllDrop(acts []rootAction) []rootAction {
	acts = s.outAll(acts, meta.OwedFailed, "given up")
	for _, m := range s.members {
		acts = append(acts, actStop{m.node, s.epoch, true})
	}
	return acts
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
