package session

import (
	"time"

	"github.com/rdmcfs/rdmcfs/meta/id"
	"github.com/rdmcfs/rdmcfs/meta/owed"
	"github.com/rdmcfs/rdmcfs/replicate/slow"
)

// Root is the protocol of one session at its root: a pure state machine. The shell hands it events with the time and
// carries out the actions that it returns; it never waits for one. It is not safe for concurrent use.
//
//	announcing ──all answered──> sending ──group done or nothing to send──> settling ──all voted or out──> ended
//	     ^                          │                                          │
//	     └──────── epoch + 1 ───────┴─────────── a member failed ──────────────┘
//
// Each epoch asks the members that have not voted which blocks they have and sends what some of them lack, in one group
// or, while paces are compared, in several (pace.go). A member that fails is out: it is owed the content, with the
// reason, and the others go on. When too few are left for the publish, lost members are asked again (view.go).
type Root struct {
	lim    Limits
	blocks int

	epoch     uint32
	phase     RootPhase
	members   roster
	began     time.Time  // of the epoch
	moved     time.Time  // last progress of anybody
	gained    time.Time  // last block or vote, of anybody
	seen      time.Time  // the last event
	need      int        // votes of members that the publish needs
	parts     []sendPart // the groups of the epoch
	fruitless int        // epochs in a row that moved nothing
	vain      bool       // the group of the epoch before failed, with nobody to leave out, and had brought nothing
	judge     *slow.Judge

	hashKnown bool
	hash      [32]byte
	own       OwnState
	ownErr    error
	cancelled bool
}

// RootPhase is what a session is doing, as a whole.
type RootPhase uint8

// Phases of a Root.
const (
	RootAnnouncing RootPhase = iota // asking the members
	RootSending                     // blocks flow
	RootSettling                    // all blocks are there; being checked and synced
	RootEnded                       // it has its result
)

// OwnState is how far the root's own copy is.
type OwnState uint8

// States of the root's own copy.
const (
	OwnReading OwnState = iota // bytes are still being read from the source
	OwnStored                  // checked, durable
	OwnFailed
)

// MemberState is how far a member is, as the root knows.
type MemberState uint8

// States of a member.
const (
	MemberAsked    MemberState = iota // announced, no answer yet
	MemberReady                       // answered
	MemberChecking                    // has every block
	MemberVoted
	MemberOut
)

// fruitlessEpochsMax bounds the epochs in a row in which nothing moved.
const fruitlessEpochsMax = 5

// Limits are the bounds of a session. All are positive.
type Limits struct {
	Announce time.Duration // for the answers to an announcement once one has come
	Prepare  time.Duration // for members that say that they prepare, while others are ready
	Silent   time.Duration // without any answer while others answer
	Stalled  time.Duration // without progress while others progress
	// for the last check and sync when all others are done, while it is not known how long check and sync take
	Checking time.Duration
	Stuck    time.Duration // without progress of anybody: the session ends
	PollWait time.Duration // a member answers a poll within this
	Again    time.Duration // members that were lost and are needed are asked again this often
	Slow     slow.Limits
}

// DefaultLimits are the bounds that have proved right.
func DefaultLimits() Limits {
	return Limits{
		Announce: 3 * time.Second, Prepare: 15 * time.Second, Silent: 2 * time.Second, Stalled: 1500 * time.Millisecond,
		Checking: 10 * time.Second, Stuck: 25 * time.Second, PollWait: 300 * time.Millisecond,
		Again: time.Second, Slow: slow.Limits{Over: 10 * time.Second, Trial: 3 * time.Second, Part: 8},
	}
}

// RootConfig says what a session is about.
type RootConfig struct {
	Members []id.Node // that are to get the content, without the root
	Blocks  int       // of BlockBytes, of the stream
	Limits  Limits
	// Pace is what groups without a slow member have reached, in bytes a second; 0 is unknown.
	Pace float64
	// Published says that the log has the content already, with this Hash, and that the root's own copy is stored.
	Published bool
	Hash      [32]byte
}

// NewRoot makes a session that Start begins.
func NewRoot(cfg RootConfig) *Root {
	s := &Root{lim: cfg.Limits, blocks: cfg.Blocks, phase: RootSettling, judge: slow.NewJudge(cfg.Limits.Slow, cfg.Pace)}
	if cfg.Published {
		s.hashKnown, s.hash, s.own = true, cfg.Hash, OwnStored
	}
	for _, n := range cfg.Members {
		s.members = append(s.members, &record{node: n})
	}
	return s
}

// Start announces the session to all members.
func (s *Root) Start(now time.Time) []RootAction {
	s.moved, s.gained, s.seen = now, now, now
	return s.beginEpoch(now, nil)
}

// Step takes one event and says what is to be done.
func (s *Root) Step(now time.Time, ev RootEvent) []RootAction {
	if s.phase == RootEnded {
		return nil
	}
	s.watched(now)
	acts := s.handle(now, ev)
	if s.phase == RootEnded {
		return acts
	}
	return s.advance(now, acts)
}

func (s *Root) handle(now time.Time, ev RootEvent) []RootAction {
	switch e := ev.(type) {
	case Answered:
		return s.onAnswered(now, e)
	case Polled:
		return s.onPolled(now, e)
	case Unreachable:
		return s.onUnreachable(now, e)
	case Progressed:
		s.onProgress(now, e)
	case Flowing:
		s.onFlowing(now, e)
	case Ahead:
		if m := s.members.find(e.Node); m != nil && m.live() && e.Epoch == s.epoch {
			m.moved, s.moved = now, now
			s.restart(now, m)
		}
	case GroupDone:
		return s.onGroupDone(now, e)
	case GroupFailed:
		return s.onGroupFailed(now, e)
	case Hashed:
		s.hashKnown, s.hash, s.moved, s.gained = true, e.Hash, now, now
		return s.pollAll(now, nil)
	case OwnCopy:
		s.onOwnCopy(now, e)
	case View:
		return s.onView(now, e)
	case Tick:
		return s.onTick(now)
	case Joined:
		return s.onJoined(now, e)
	case Cancel:
		s.cancelled = true
	}
	return nil
}

func (s *Root) onAnswered(now time.Time, e Answered) []RootAction {
	m := s.members.find(e.Node)
	if m == nil || !m.live() || e.Epoch != s.epoch || m.phase != MemberAsked {
		return nil
	}
	m.heard, m.moved = now, now
	switch e.Status {
	case StatusChecking: // it has every block, and can take none
		if m.held < s.blocks {
			s.moved, s.gained = now, now
		}
		m.phase, m.held, m.whole = MemberChecking, s.blocks, now
	case StatusReady, StatusReceiving:
		m.phase, m.have = MemberReady, e.Have.Clip(uint64(s.blocks))
		n := int(m.have.Count())
		if n > m.held {
			s.moved, s.gained = now, now // the group that has failed did bring something
		}
		m.held = n
		if m.held == s.blocks {
			m.phase, m.whole = MemberChecking, now
		}
	case StatusVoted:
		m.phase, s.moved, s.gained = MemberVoted, now, now
	case StatusPreparing:
		return []RootAction{Announce{m.node, s.epoch}} // it answers after a while
	default:
		return s.out(now, nil, []Suspect{{m.node, e.Owed()}}, e.Text)
	}
	return nil
}

func (s *Root) onPolled(now time.Time, e Polled) []RootAction {
	m := s.members.find(e.Node)
	if m == nil || !m.live() || e.Epoch != s.epoch {
		return nil
	}
	m.heard, m.polled = now, false
	switch e.Status {
	case StatusVoted:
		if m.phase == MemberChecking {
			m.checked = now.Sub(m.whole)
		}
		m.phase, m.moved, s.moved, s.gained = MemberVoted, now, now, now
		m.held = s.blocks
		return nil
	case StatusRefused, StatusGone:
		return s.out(now, nil, []Suspect{{m.node, e.Owed()}}, e.Text)
	}
	s.setHeld(now, m, int(e.Held))
	if e.Status == StatusChecking && m.phase != MemberChecking {
		m.phase, m.whole, m.moved, s.moved = MemberChecking, now, now, now
	}
	return s.poll(m, nil)
}

func (s *Root) setHeld(now time.Time, m *record, held int) {
	if held > m.held {
		m.held = min(held, s.blocks)
		s.stepped(now, m)
	}
}

// restart makes the judging begin now, if a group carried other messages before this one.
func (s *Root) restart(now time.Time, m *record) {
	if p := s.partOf(m.node); p != nil && m.steps == 0 {
		p.began = now
	}
	s.judge.Begin(now, s.groups())
}

// stepped notes that a member got blocks.
func (s *Root) stepped(now time.Time, m *record) {
	if m.steps == 0 || m.moved != now {
		m.steps++
	}
	m.moved, s.moved, s.gained = now, now, now
	if p := s.partOf(m.node); p != nil {
		p.front = max(p.front, m.bytes)
		m.front = p.front
	}
}

func (s *Root) onProgress(now time.Time, e Progressed) {
	if m := s.members.find(e.Node); m != nil && m.live() && e.Epoch == s.epoch {
		m.waits.tell(e.Sending, e.Waiting)
		if e.Bytes > m.bytes {
			m.bytes = e.Bytes
			s.stepped(now, m)
		}
		s.setHeld(now, m, int(m.have.Count())+int(e.Bytes/BlockBytes))
	}
}

func (s *Root) onFlowing(now time.Time, e Flowing) {
	p := s.part(e.Epoch, e.Part)
	if p == nil {
		return
	}
	p.flowing, p.began = true, now
	if !s.vain {
		s.moved = now
	}
	for _, n := range p.members {
		s.members.find(n).moved = now
	}
	s.judge.Begin(now, s.groups())
}

func (s *Root) onUnreachable(now time.Time, e Unreachable) []RootAction {
	m := s.members.find(e.Node)
	if m == nil || !m.live() || e.Epoch != s.epoch {
		return nil
	}
	m.polled = false
	return s.out(now, nil, []Suspect{{e.Node, owed.Unreachable}}, e.Text)
}

func (s *Root) onGroupDone(now time.Time, e GroupDone) []RootAction {
	p := s.part(e.Epoch, e.Part)
	if p == nil {
		return nil
	}
	s.moved = now
	for _, n := range p.members {
		m := s.members.find(n)
		m.bytes, m.done = max(m.bytes, p.bytes-m.had), now
		if m.live() {
			m.held, m.moved = s.blocks, now
			m.phase, m.whole = MemberChecking, now
		}
	}
	s.judge.Ended(now, s.groups())
	s.endPart(p)
	return s.pollAll(now, nil)
}

func (s *Root) onGroupFailed(now time.Time, e GroupFailed) []RootAction {
	p := s.part(e.Epoch, e.Part)
	if p == nil {
		return nil
	}
	s.endPart(p)
	acts := s.out(now, nil, e.Suspects, e.Text)
	if s.epoch != e.Epoch || !s.members.anyReady(p) && len(s.parts) > 1 {
		return acts
	}
	vain := !s.gained.After(s.began)
	acts = s.nextEpoch(now, s.endParts(acts, nil))
	s.vain = vain
	return acts
}

func (s *Root) onOwnCopy(now time.Time, e OwnCopy) {
	s.moved, s.gained = now, now
	s.own, s.ownErr = OwnStored, e.Err
	if e.Err != nil {
		s.own = OwnFailed
	}
}
