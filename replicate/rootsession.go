package replicate

import (
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// rootSession is the protocol of one session at its root: a pure state machine. The shell (push.go) hands it
// events with the time and carries out the actions it returns; it never waits for one.
//
//	announcing ──all answered──> sending ──group done or nothing to send──> settling ──all voted or out──> ended
//	     ^                          │                                          │
//	     └──────── epoch + 1 ───────┴─────────── a member failed ──────────────┘
//
// Each epoch asks the members that have not voted which blocks they have and sends, in one group, what some of them
// lack. A member that fails is out: it is owed the content, with the reason, and the others go on. When too few are
// left for the publish, those that were lost are asked again (rootview.go).
type rootSession struct {
	lim    sessionLimits
	blocks int

	epoch     uint32
	phase     rootPhase
	members   []*rootMember
	began     time.Time  // of the epoch
	moved     time.Time  // last progress of anybody
	gained    time.Time  // last block or vote, of anybody
	need      int        // votes of members that the publish needs
	parts     []sendPart // the groups of the epoch
	fruitless int        // epochs in a row that moved nothing
	pace      paceWatch

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
	node    meta.NodeID
	phase   memberPhase
	have    content.Bitmap // as of the announcement of this epoch
	held    int            // blocks held, as last told
	bytes   int64          // of this epoch's blocks that it has stored, as the group knows: finer than held
	mark    int64          // bytes when the comparison of paces began
	done    time.Time      // when its group brought everything, in this epoch
	moved   time.Time
	whole   time.Time     // when it was found to have every block, in this epoch
	checked time.Duration // what it took from then to its vote
	heard   time.Time
	asked   bool // a finish with the root was sent in this epoch
	polled  bool // a finish is under way
	reason  meta.OwedReason
	text    string

	up          bool   // as the log says
	incarnation uint32 // likewise; 0 until it was looked at
}

// fruitlessEpochsMax bounds the epochs in a row in which nothing moved.
const fruitlessEpochsMax = 5

// sessionLimits are the bounds of a session. All are positive.
type sessionLimits struct {
	announce time.Duration // for the answers to an announcement once one has come
	silent   time.Duration // without any answer while others answer
	stalled  time.Duration // without progress while others progress
	checking time.Duration // for the last check and sync when all others are done, while it is not known how long those take
	stuck    time.Duration // without progress of anybody: the session ends
	pollWait time.Duration // a member answers a poll within this
	again    time.Duration // members that were lost and are needed are asked again this often
	slowFor  time.Duration // how long paces are compared
	trial    time.Duration // how long each member is served alone, to find out who is slow
	slowPart float64       // a member below the others' median pace divided by this is left out
}

func defaultLimits() sessionLimits {
	return sessionLimits{
		announce: 3 * time.Second, silent: 2 * time.Second, stalled: 1500 * time.Millisecond,
		checking: 10 * time.Second, stuck: 25 * time.Second, pollWait: 300 * time.Millisecond,
		again: askAgain, slowFor: 10 * time.Second, trial: 3 * time.Second, slowPart: 8,
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
	s.moved, s.gained = now, now
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
			s.restartPace(now)
		}
	case evGroupDone:
		return s.onGroupDone(now, e)
	case evGroupFailed:
		return s.onGroupFailed(now, e)
	case evRoot:
		s.rootKnown, s.root, s.moved, s.gained = true, e.root, now, now
		return s.pollAll(now, nil)
	case evLocal:
		s.onLocal(now, e)
	case evView:
		return s.onView(now, e)
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

func (s *rootSession) onAnswer(now time.Time, e evAnswer) []rootAction {
	m := s.member(e.node)
	if m == nil || !m.live() || e.Epoch != s.epoch || m.phase != memberAsked {
		return nil
	}
	m.heard, m.moved = now, now
	switch e.Status {
	case statusReady, statusReceiving, statusChecking:
		m.phase, m.have = memberReady, e.Have.Clip(int64(s.blocks))
		m.held = m.have.Count()
		if m.held == s.blocks {
			m.phase, m.whole = memberChecking, now
		}
	case statusVoted:
		m.phase, s.moved, s.gained = memberVoted, now, now
	case statusPreparing:
		return []rootAction{actAnnounce{m.node, s.epoch}} // it answers after a while
	default:
		return s.out(now, nil, []suspect{{m.node, owedReasonOf(e.standing)}}, e.Text)
	}
	return nil
}

// owedReasonOf is the reason under which a member that refused is owed.
func owedReasonOf(st standing) meta.OwedReason {
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
		if m.phase == memberChecking {
			m.checked = now.Sub(m.whole)
		}
		m.phase, m.moved, s.moved, s.gained = memberVoted, now, now, now
		m.held = s.blocks
		return nil
	case statusRefused, statusGone:
		return s.out(now, nil, []suspect{{m.node, owedReasonOf(e.standing)}}, e.Text)
	}
	s.setHeld(now, m, int(e.Held))
	if e.Status == statusChecking && m.phase != memberChecking {
		m.phase, m.whole, m.moved, s.moved = memberChecking, now, now, now
	}
	return s.poll(m, nil)
}

func (s *rootSession) setHeld(now time.Time, m *rootMember, held int) {
	if held > m.held {
		m.held, m.moved, s.moved, s.gained = min(held, s.blocks), now, now, now
	}
}

func (s *rootSession) onProgress(now time.Time, e evProgress) {
	if m := s.member(e.node); m != nil && m.live() && e.epoch == s.epoch {
		if e.bytes > m.bytes {
			m.bytes, m.moved, s.moved, s.gained = e.bytes, now, now, now
		}
		s.setHeld(now, m, m.have.Count()+int(e.bytes/content.BlockBytes))
	}
}

func (s *rootSession) onFlowing(now time.Time, e evFlowing) {
	p := s.part(e.epoch, e.part)
	if p == nil {
		return
	}
	p.flowing, s.moved = true, now
	for _, n := range p.members {
		s.member(n).moved = now
	}
	s.restartPace(now)
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
	p := s.part(e.epoch, e.part)
	if p == nil {
		return nil
	}
	s.moved = now
	for _, n := range p.members {
		m := s.member(n)
		m.bytes, m.done = max(m.bytes, p.bytes), now
		if m.live() {
			m.held, m.moved = s.blocks, now
			m.phase, m.whole = memberChecking, now
		}
	}
	s.learnPace(now)
	s.endPart(p)
	return s.pollAll(now, nil)
}

func (s *rootSession) onGroupFailed(now time.Time, e evGroupFailed) []rootAction {
	p := s.part(e.epoch, e.part)
	if p == nil {
		return nil
	}
	s.endPart(p)
	acts := s.out(now, nil, e.suspects, e.text)
	if s.epoch != e.epoch || !s.anyReady(p) && len(s.parts) > 1 {
		return acts
	}
	return s.nextEpoch(now, s.endParts(acts, nil))
}

func (s *rootSession) onLocal(now time.Time, e evLocal) {
	s.moved, s.gained = now, now
	s.local, s.localErr = localStored, e.err
	if e.err != nil {
		s.local = localFailed
	}
}
