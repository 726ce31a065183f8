package core

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/rdmcfs/rdmcfs/internal/consensus/logstate"
)

// Config says who a core is and what its log holds.
type Config struct {
	ID             ID
	State          *logstate.State
	ElectionTicks  int
	HeartbeatTicks int
	// Intn gives randomness for election timeouts: a value in [0, n).
	Intn func(n int) int
	// Log takes the lines that raft logs; nil: nobody does.
	Log func(level Level, line string)
}

// Status is the core's view of the cluster.
type Status struct {
	Role   Role
	Leader ID
	Term   uint64
	Commit uint64
	First  uint64
	Last   uint64
}

// Core is raft as a value: it has no clock, goroutine, disk or socket, and is not safe for concurrent use.
//
// Its caller, in a loop: calls Tick, Step, Propose, ...; then Ready until it returns false, each time sending Messages,
// beginning to persist Append and beginning to apply Apply; and calls Persisted and Applied when these are done.
type Core struct {
	cfg  Config
	raft *raft.RawNode
	log  *memLog

	lastTime int64 // highest stamp in the log
	// last is the last index handed out to be persisted. Peers never refer to anything beyond it: they only know of
	// entries this node has acknowledged, or sent.
	last uint64
	// unsettled is the first entry that raft has taken from a leader since the log had all that raft has, 0 if none: what
	// the log has from there on may be out of date. handed is how many appends are handed out and not persisted.
	unsettled uint64
	handed    int
	// unsaved is a hard state that the log on disk lacks, and raft does not know to be missing: it goes with the next
	// append.
	unsaved *raftpb.HardState
	// after are messages that became ready by a Persisted.
	after []*raftpb.Message
	// applying are the answers owed to raft for what is being applied.
	applying []applying
	// snap waits until nothing is being applied: raft must not hear of older applies after it.
	snap *raftpb.Message
	// Ticks since a leader was heard from (or a vote given), how many of them raft has had, and when to campaign.
	silent, told, patience int
	beat                   int // a leader's ticks since its last heartbeat
	// hurry is how many ticks the next election may take at least while this node hastens, 0 otherwise.
	hurry int
	// gone is the term in which the leader was last taken for gone.
	gone uint64
	// confTerm is the term in which a change of voters was given to raft that has not been committed yet, 0 if none was.
	confTerm uint64
	// handing says that leadership was to be handed over.
	handing bool
	marks   marks
	short   []logstate.Mark // members to be told what they have lost
	// shared is the leader whose log is known to be this one's too up to some entry. refused is the leader that is known
	// to have another one.
	shared, refused led
	differs         uint64 // the first entry of the latter that is known to differ
}

// led is a leader in its term.
type led struct{ leader, term uint64 }

// New starts raft from a log. Entries up to the log's hard state are handed out for apply again, from the base on:
// the caller skips those its state machine has.
func New(cfg Config) (*Core, error) {
	if cfg.ID == 0 || cfg.State == nil || cfg.ElectionTicks <= cfg.HeartbeatTicks || cfg.HeartbeatTicks <= 0 {
		return nil, errors.New("consensus: core: bad configuration")
	}
	found := cfg.State.Hard
	if err := checkState(cfg.State); err != nil {
		return nil, err
	}
	c := &Core{cfg: cfg, log: newMemLog(cfg.State), marks: newMarks(cfg.State.Marks)}
	if cfg.State.Hard != found {
		c.unsaved = cfg.State.Hard
	}
	c.lastTime, c.last = c.log.lastTime(), c.log.last()
	var err error
	c.raft, err = raft.NewRawNode(&raft.Config{
		ID:                        cfg.ID,
		ElectionTick:              cfg.ElectionTicks,
		HeartbeatTick:             cfg.HeartbeatTicks,
		Storage:                   c.log,
		Applied:                   c.log.base.Index,
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             1 << 20,
		MaxCommittedSizePerReady:  8 << 20,
		MaxUncommittedEntriesSize: 64 << 20,
		MaxInflightMsgs:           256,
		MaxInflightBytes:          32 << 20,
		CheckQuorum:               true,
		PreVote:                   true,
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
		Logger:                    raftLogger{cfg.Log},
	})
	if err != nil {
		return nil, fmt.Errorf("consensus: core: %w", err)
	}
	c.heard()
	return c, nil
}

// checkState refuses a log raft would panic on.
func checkState(s *logstate.State) error {
	last, lastTerm := s.LastIndex(), s.Base.Term
	if n := len(s.Entries); n > 0 {
		lastTerm = s.Entries[n-1].GetTerm()
	}
	if commit := s.Hard.GetCommit(); commit > last {
		return &ShortError{LastIndex: last, Promised: commit, Witness: "its own hard state"}
	}
	if s.Hard.GetCommit() < s.Base.Index {
		hard := raftpb.HardState{Term: new(s.Hard.GetTerm()), Vote: new(s.Hard.GetVote()), Commit: new(s.Base.Index)}
		s.Hard = &hard
	}
	for _, k := range s.Marks { // what is committed has been written more often than the commit index
		if k.Index > max(s.Hard.GetCommit(), s.Base.Index) && k.Index <= last && s.Holds(k.Index, k.Term) {
			s.Hard = &raftpb.HardState{Term: new(s.Hard.GetTerm()), Vote: new(s.Hard.GetVote()), Commit: new(k.Index)}
		}
	}
	if lastTerm > s.Hard.GetTerm() {
		if len(s.Entries) > 0 {
			return &logstate.DamagedError{Reason: fmt.Sprintf("entry %d is of term %d, hard state of %d", last, lastTerm,
				s.Hard.GetTerm())}
		}
		s.Hard = &raftpb.HardState{Term: new(lastTerm), Vote: new(uint64(0)), Commit: new(s.Hard.GetCommit())}
	}
	return CheckConf(s.Base.Conf)
}

// hurryTicks spreads the voters that stand for election before ElectionTicks are over.
const hurryTicks = 5

// heard restarts the election timer.
func (c *Core) heard() {
	c.silent, c.told, c.hurry = 0, 0, 0
	c.patience = c.patienceAfter()
}

// Tick advances the clock. The election timeout is kept here and not by raft, so that it comes from Intn.
func (c *Core) Tick() {
	if c.raft.BasicStatus().RaftState == raft.StateLeader {
		c.silent, c.told, c.hurry, c.patience = 0, 0, 0, 0
		c.beat = (c.beat + 1) % c.cfg.HeartbeatTicks
		c.raft.Tick()
		c.leaveJoint()
		return
	}
	if c.patience == 0 { // it led until now
		c.heard()
	}
	c.beat = 0
	c.silent++
	if c.told < c.cfg.ElectionTicks-1 {
		c.told++
		c.raft.Tick()
	}
	if c.silent == c.cfg.ElectionTicks {
		_ = c.raft.ForgetLeader()
	}
	if c.silent >= c.patience {
		c.silent = 0
		c.patience = c.patienceAfter()
		_ = c.raft.Campaign()
	}
}

// Quiet is how many ticks may come at once from now on, at least 1: nothing is to be done before the last of them. A
// leader beats then. A follower misses its leader only after ElectionTicks; what comes before that is taken after the
// ticks until then.
func (c *Core) Quiet() int {
	s := c.raft.BasicStatus()
	switch {
	case s.RaftState == raft.StateLeader && c.alone():
		return c.cfg.ElectionTicks - 1
	case s.RaftState == raft.StateLeader:
		return c.cfg.HeartbeatTicks - c.beat
	case s.RaftState == raft.StateFollower && s.Lead != raft.None && c.hurry == 0:
		return max(1, c.cfg.ElectionTicks-1-c.silent)
	}
	return 1
}

// alone reports whether there is no member of raft but this one, and none is on its way.
func (c *Core) alone() bool {
	conf := c.Conf()
	return len(conf.GetVoters()) == 1 && len(conf.GetLearners())+len(conf.GetLearnersNext()) == 0 &&
		len(conf.GetVotersOutgoing()) == 0
}

// LeaderGone takes word that a member's machine refuses connections: its process has ended, as a rule. If that is this
// follower's leader, the follower stands for election after a few ticks instead of ElectionTicks or more. A leader
// that lives after all stays, unless a quorum takes it for gone: others refuse the pre-vote. A leader that goes on
// sending is forgotten once in a term.
func (c *Core) LeaderGone(id ID) {
	s := c.raft.BasicStatus()
	if s.RaftState != raft.StateFollower || s.Lead != id {
		return
	}
	if term := s.HardState.GetTerm(); c.gone != term || c.silent > 2*c.cfg.HeartbeatTicks {
		c.gone = term
		_ = c.raft.ForgetLeader()
		c.hasten(1)
	}
}

// Reached takes word that there is a connection to a member that there was none to. While there is no leader, the two
// may be the quorum that was missing: this node stands for election soon, unless a heartbeat comes before.
func (c *Core) Reached() {
	s := c.raft.BasicStatus()
	if s.Lead == raft.None && (s.RaftState == raft.StateFollower || s.RaftState == raft.StatePreCandidate) {
		c.hasten(c.cfg.HeartbeatTicks + 1)
	}
}

// hasten lets a voter stand for election in a few ticks, at least as many as said.
func (c *Core) hasten(ticks int) {
	if c.patience == 0 { // it led until now
		c.heard()
	}
	if slices.Contains(VotersOf(c.Conf()), c.cfg.ID) {
		c.patience = min(c.patience, c.silent+ticks+c.cfg.Intn(hurryTicks))
		c.hurry = hurryTicks
	}
}

// patienceAfter is how long an election may take before the next: ElectionTicks or more, or twice as long each time
// while this node hastens.
func (c *Core) patienceAfter() int {
	base := c.cfg.ElectionTicks
	if c.hurry > 0 && c.hurry < base {
		base = c.hurry
		c.hurry *= 2
	}
	return base + c.cfg.Intn(base)
}

// leaveJoint takes the second step of a change of voters after leadership was not handed over: raft takes none
// meanwhile, and would take it with the next entry that is applied, which an idle cluster does not have.
func (c *Core) leaveJoint() {
	if !c.handing || c.raft.BasicStatus().LeadTransferee != 0 {
		return
	}
	c.handing = false
	if c.Conf().GetVotersOutgoing() != nil {
		// while it is on its way already, raft turns this one into an empty entry
		_ = c.raft.ProposeConfChange(&raftpb.ConfChangeV2{})
	}
}

// Campaign starts an election now.
func (c *Core) Campaign() { _ = c.raft.Campaign() }

// Step takes a message of a peer. An error that is ErrSafety or ErrLogShort means that this log must not be used any
// more; other errors mean that the message was dropped.
func (c *Core) Step(m *raftpb.Message) error {
	if err := c.Check(m); err != nil {
		return err
	}
	if m.GetType() == raftpb.MsgSnap && len(c.applying) > 0 {
		c.snap = m
		return nil
	}
	return c.step(m)
}

func (c *Core) step(m *raftpb.Message) error {
	for _, e := range m.GetEntries() {
		c.lastTime = max(c.lastTime, TimeOf(e))
	}
	c.share(m)
	err := c.raft.Step(m)
	if list := m.GetEntries(); m.GetType() == raftpb.MsgApp && len(list) > 0 &&
		(c.unsettled == 0 || list[0].GetIndex() < c.unsettled) {
		c.unsettled = list[0].GetIndex()
	}
	s := c.raft.BasicStatus()
	switch m.GetType() {
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap:
		if m.GetTerm() == s.HardState.GetTerm() && s.RaftState == raft.StateFollower {
			c.heard()
		}
	case raftpb.MsgVote:
		if m.GetTerm() == s.HardState.GetTerm() && s.HardState.GetVote() == m.GetFrom() {
			c.heard()
		}
	}
	if err != nil {
		return fmt.Errorf("consensus: step %v of %x: %w", m.GetType(), m.GetFrom(), err)
	}
	return nil
}

// LastTime is the highest stamp in the log, 0 if there is none: the state may not have applied it yet.
func (c *Core) LastTime() int64 { return c.lastTime }

// Propose appends proposals to the log of a leader, stamped with nowNanos or later. All or none are taken.
func (c *Core) Propose(nowNanos int64, list []Proposal) error {
	if c.raft.BasicStatus().RaftState != raft.StateLeader {
		return ErrNotLeader
	}
	at := c.lastTime
	m := &raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(c.cfg.ID)}
	for i := range list {
		at = max(at+1, nowNanos)
		m.Entries = append(m.Entries, &raftpb.Entry{Type: raftpb.EntryNormal.Enum(), Data: list[i].Envelope(at)})
	}
	if err := c.raft.Step(m); err != nil {
		return fmt.Errorf("consensus: propose: %w", err)
	}
	c.lastTime = at
	return nil
}

// Change is one step of a change of voters and learners.
func Change(kind raftpb.ConfChangeType, id ID) *raftpb.ConfChangeSingle {
	return &raftpb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(id)}
}

// ProposeConf proposes a change of voters and learners. Only a leader takes it, one at a time, and not before it has
// applied the last change, left a joint configuration, and applied an entry of its own term: ErrEarly, in which case
// the caller tries again. Raft itself would put an empty entry in the change's place, without an error.
func (c *Core) ProposeConf(changes []*raftpb.ConfChangeSingle) error {
	s := c.raft.BasicStatus()
	if s.RaftState != raft.StateLeader {
		return ErrNotLeader
	}
	term := s.HardState.GetTerm()
	if c.confTerm == term || s.Applied < c.lastConfIndex() {
		return fmt.Errorf("%w: the last change is not applied yet", ErrEarly)
	}
	if applied, err := c.log.Term(s.Applied); err != nil || applied != term {
		return fmt.Errorf("%w: this leader has not applied what leaders before it left", ErrEarly)
	}
	if len(c.Conf().GetVotersOutgoing()) > 0 {
		return fmt.Errorf("%w: the last change has a second step", ErrEarly)
	}
	cc := &raftpb.ConfChangeV2{Transition: raftpb.ConfChangeTransitionAuto.Enum(), Changes: changes}
	if err := c.raft.ProposeConfChange(cc); err != nil {
		return fmt.Errorf("consensus: propose voters: %w", err)
	}
	c.confTerm = term
	return nil
}

// Settled reports whether all entries are applied, also those on their way to the log: what a leader proposes next
// comes right after the state that it has. Call it when Ready has handed out what was proposed before.
func (c *Core) Settled() bool { return c.raft.BasicStatus().Applied == c.last }

func (c *Core) lastConfIndex() uint64 { return c.log.confs[len(c.log.confs)-1].index }

// ReadIndex asks for a read state, answered in an Output if this stays the leader. The only voter is asked again later,
// by ErrNotLeader, until an entry of its own term is committed: raft does not wait for that there.
func (c *Core) ReadIndex(request string) error {
	s := c.raft.BasicStatus()
	if s.RaftState != raft.StateLeader {
		return ErrNotLeader
	}
	if c.onlyVoter() {
		if term, err := c.log.Term(s.HardState.GetCommit()); err != nil || term != s.HardState.GetTerm() {
			return ErrNotLeader
		}
	}
	c.raft.ReadIndex([]byte(request))
	return nil
}

// TransferLeader makes a leader hand over.
func (c *Core) TransferLeader(to ID) {
	c.handing = true
	c.raft.TransferLeader(to)
}

// Unreachable notes that messages to a peer were lost.
func (c *Core) Unreachable(peer ID) { c.raft.ReportUnreachable(peer) }

// SnapshotFailed notes that a peer that was sent a snapshot message will not take one.
func (c *Core) SnapshotFailed(peer ID) { c.raft.ReportSnapshot(peer, raft.SnapshotFailure) }

// Status returns the core's view.
func (c *Core) Status() Status {
	s := c.raft.BasicStatus()
	st := Status{Leader: s.Lead, Term: s.HardState.GetTerm(), Commit: s.HardState.GetCommit(),
		First: c.log.base.Index + 1, Last: c.log.last()}
	switch s.RaftState {
	case raft.StateLeader:
		st.Role = RoleLeader
	case raft.StateFollower:
		st.Role = RoleFollower
	default:
		st.Role = RoleCandidate
	}
	if conf := c.Conf(); !slices.Contains(VotersOf(conf), c.cfg.ID) {
		st.Role = RoleLearner
	}
	return st
}

// Hard is the hard state that is on stable storage.
func (c *Core) Hard() *raftpb.HardState { return c.log.hard }

// LastHanded is the last index that was handed out to be persisted.
func (c *Core) LastHanded() uint64 { return c.last }

// Applying reports whether entries were handed out for apply, and are not applied yet.
func (c *Core) Applying() bool { return len(c.applying) > 0 }

// Conf is the configuration in force.
func (c *Core) Conf() *raftpb.ConfState { return c.log.confs[len(c.log.confs)-1].conf }

// Match returns how far a peer's log is known to equal this leader's, and whether it waits for a snapshot.
func (c *Core) Match(peer ID) (index uint64, snapshot bool) {
	c.raft.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if id == peer {
			index, snapshot = pr.Match, pr.State == tracker.StateSnapshot
		}
	})
	return index, snapshot
}

// Removed reports whether this node is out of the configuration, has applied that, and may give up its log.
func (c *Core) Removed() bool {
	return len(c.applying) == 0 && !slices.Contains(MembersOf(c.Conf()), c.cfg.ID) && !c.AddedAfter(c.ConfIndex())
}

// AddedAfter reports whether the log has a change beyond index that makes this node a member. While that change may be
// committed, the leader counts on what this node has acknowledged.
func (c *Core) AddedAfter(index uint64) bool {
	for i := len(c.log.entries) - 1; i >= 0 && c.log.entries[i].GetIndex() > index; i-- {
		cc, ok := confChangeOf(c.log.entries[i])
		if ok && slices.ContainsFunc(cc.GetChanges(), func(one *raftpb.ConfChangeSingle) bool {
			return one.GetNodeId() == c.cfg.ID && one.GetType() != raftpb.ConfChangeRemoveNode
		}) {
			return true
		}
	}
	return false
}

// ConfIndex is the index of the entry that brought Conf.
func (c *Core) ConfIndex() uint64 { return c.lastConfIndex() }
