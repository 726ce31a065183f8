package core

import (
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/confchange"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// MaxMembers bounds a configuration.
const MaxMembers = 32

func badMessage(m *raftpb.Message, format string, args ...any) error {
	return fmt.Errorf("%w: %v of %x: %s", ErrMessage, m.GetType(), m.GetFrom(), fmt.Sprintf(format, args...))
}

// Check refuses what raft must not see: local messages, malformed messages, and messages that contradict this log, on
// which raft would panic.
func (c *Core) Check(m *raftpb.Message) error {
	if m.GetTo() != c.cfg.ID || m.GetFrom() == 0 || m.GetFrom() == c.cfg.ID || m.GetTerm() == 0 {
		return badMessage(m, "from %x to %x of term %d", m.GetFrom(), m.GetTo(), m.GetTerm())
	}
	s := c.raft.BasicStatus()
	current := m.GetTerm() >= s.HardState.GetTerm()
	if err := c.checkMark(m); err != nil {
		return err
	}
	if err := c.checkHistory(m, s.RaftState == raft.StateLeader, s.HardState); err != nil {
		return err
	}
	switch m.GetType() {
	case raftpb.MsgApp:
		return c.checkAppend(m)
	case raftpb.MsgHeartbeat:
		if last := c.last; current && m.GetCommit() > last {
			return &ShortError{LastIndex: last, Promised: m.GetCommit(), Witness: fmt.Sprintf("leader %x", m.GetFrom())}
		}
		return nil
	case raftpb.MsgSnap:
		return c.checkSnap(m)
	case raftpb.MsgAppResp:
		if last := c.last; current && !m.GetReject() && m.GetIndex() > last {
			return badMessage(m, "acknowledges entry %d, the last is %d", m.GetIndex(), last)
		}
		return nil
	case raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgPreVote, raftpb.MsgPreVoteResp, raftpb.MsgHeartbeatResp,
		raftpb.MsgTimeoutNow:
		return nil
	default:
		return badMessage(m, "no message between nodes")
	}
}

func (c *Core) checkAppend(m *raftpb.Message) error {
	index, term := m.GetIndex(), m.GetLogTerm()
	if term > m.GetTerm() {
		return badMessage(m, "previous entry of term %d", term)
	}
	for _, e := range m.GetEntries() {
		if e.GetIndex() != index+1 || e.GetTerm() < term || e.GetTerm() > m.GetTerm() {
			return badMessage(m, "entry %d of term %d after %d of %d", e.GetIndex(), e.GetTerm(), index, term)
		}
		index, term = e.GetIndex(), e.GetTerm()
		if err := checkEntry(e); err != nil {
			return badMessage(m, "%v", err)
		}
	}
	return nil
}

// checkHistory refuses the word of a leader that has another history than this node: one of the voters was put back to
// an older copy of its data directory, and has gone on from there.
func (c *Core) checkHistory(m *raftpb.Message, leads bool, own *raftpb.HardState) error {
	fromLeader := m.GetType() == raftpb.MsgApp || m.GetType() == raftpb.MsgHeartbeat || m.GetType() == raftpb.MsgSnap
	if !fromLeader || m.GetTerm() < own.GetTerm() {
		return nil
	}
	theirs := max(m.GetCommit(), m.GetSnapshot().GetMetadata().GetIndex())
	switch {
	case leads && m.GetTerm() == own.GetTerm():
		return c.checkRival(m, theirs, own.GetCommit(), "leads in the same term")
	case c.onlyVoter() && c.last < theirs: // it has acknowledged all that was committed
		return c.checkRival(m, theirs, own.GetCommit(), "leads, and this node is the only voter")
	case c.refused == led{m.GetFrom(), m.GetTerm()}:
		return c.diverged(m, 0, own.GetCommit())
	}
	if at := c.conflict(m, own.GetCommit()); at > 0 {
		c.refused = led{m.GetFrom(), m.GetTerm()}
		return c.diverged(m, at, own.GetCommit())
	}
	return nil
}

// checkRival decides between two nodes that both lead, one of which was put back to a copy of the time when it was the
// only voter. The one that has committed less gives way: it is an error that ends it there, and a message that is
// dropped at the other.
func (c *Core) checkRival(m *raftpb.Message, theirs, commit uint64, why string) error {
	switch {
	case m.GetType() == raftpb.MsgHeartbeat:
		// It does not say what it has committed: an answer makes it send that.
		c.after = append(c.after, &raftpb.Message{Type: raftpb.MsgHeartbeatResp.Enum(), From: new(c.cfg.ID),
			To: new(m.GetFrom()), Term: new(m.GetTerm())})
		return badMessage(m, "it %s", why)
	case theirs <= commit:
		return badMessage(m, "it %s, and has committed %d entries; this node has %d", why, theirs, commit)
	case c.last < theirs:
		return &ShortError{LastIndex: c.last, Promised: theirs,
			Witness: fmt.Sprintf("node %d, which %s,", m.GetFrom()>>32, why)}
	}
	return fmt.Errorf("%w: node %d %s, and has committed %d entries; this node has %d. Its data directory is an older "+
		"copy: remove it from "+
		"the cluster and join it again with an empty one", ErrSafety, m.GetFrom()>>32, why, theirs, commit)
}

// diverged is the answer to a leader that has another history from an index on; 0: from where it was found last.
func (c *Core) diverged(m *raftpb.Message, at, commit uint64) error {
	if at > 0 {
		c.differs = at
	}
	return &DivergedError{Peer: m.GetFrom(), Leads: true, Index: c.differs, Count: max(commit+1, c.differs) - c.differs}
}

// conflict is the index of the first entry of a leader that contradicts this log, 0 if none is known to: at or before
// the commit index an entry of another term does, and everywhere one of the same term with other bytes. The latter is
// of another leader of that term: a voter has voted in it twice. Entries that are not on the disk yet are not looked
// at: the log has others in their place, or none.
func (c *Core) conflict(m *raftpb.Message, commit uint64) uint64 {
	differs := func(index, term uint64, same func() bool) bool {
		own, err := c.log.Term(index)
		switch {
		case err != nil || c.unsettled > 0 && index >= c.unsettled:
			return false
		case own != term:
			return index <= commit
		}
		return !same()
	}
	if m.GetType() == raftpb.MsgSnap {
		meta := m.GetSnapshot().GetMetadata()
		if differs(meta.GetIndex(), meta.GetTerm(), func() bool { return true }) {
			return meta.GetIndex()
		}
		return 0
	}
	if m.GetType() != raftpb.MsgApp {
		return 0
	}
	if differs(m.GetIndex(), m.GetLogTerm(), func() bool { return c.samePrev(m) != no }) {
		return m.GetIndex()
	}
	for _, e := range m.GetEntries() {
		if differs(e.GetIndex(), e.GetTerm(), func() bool { return c.log.same(e) }) {
			return e.GetIndex()
		}
	}
	return 0
}

// samePrev compares the time of the last proposal before the entries of an append with that in this log.
func (c *Core) samePrev(m *raftpb.Message) answer {
	at, known := prevTime(m)
	own, ok := c.log.timeAt(m.GetIndex())
	switch {
	case !known || !ok:
		return unknown
	case at == own:
		return yes
	}
	return no
}

// answer is what a comparison finds.
type answer uint8

const (
	unknown answer = iota
	yes
	no
)

// signAppend adds to an append the time of the last proposal before its entries, if these follow what is on stable
// storage: index and term alone do not name an entry where a voter has voted twice in a term.
func (c *Core) signAppend(m *raftpb.Message) {
	if m.GetType() != raftpb.MsgApp {
		return
	}
	if term, err := c.log.Term(m.GetIndex()); err != nil || term != m.GetLogTerm() {
		return
	}
	if at, ok := c.log.timeAt(m.GetIndex()); ok {
		w := coder.Writer(nil, coder.Little)
		w.I64(&at)
		m.Context = w.Written()
	}
}

// prevTime is what signAppend has added.
func prevTime(m *raftpb.Message) (timeNanos int64, ok bool) {
	r := coder.Reader(m.GetContext(), coder.Little)
	r.I64(&timeNanos)
	return timeNanos, r.Finish() == nil
}

// share notes that a leader's log is this one's up to the entry before those of an append.
func (c *Core) share(m *raftpb.Message) {
	if m.GetType() != raftpb.MsgApp {
		return
	}
	if term, err := c.log.Term(m.GetIndex()); err == nil && term == m.GetLogTerm() && c.samePrev(m) == yes {
		c.shared = led{m.GetFrom(), m.GetTerm()}
	}
}

// onlyVoter reports whether this node is the only voter that it knows.
func (c *Core) onlyVoter() bool {
	conf := c.Conf()
	return len(conf.GetVoters()) == 1 && conf.GetVoters()[0] == c.cfg.ID && len(conf.GetVotersOutgoing()) == 0
}

func checkEntry(e *raftpb.Entry) error {
	switch e.GetType() {
	case raftpb.EntryNormal:
		if len(e.GetData()) > 0 {
			_, _, err := OpenEnvelope(e.GetData())
			return err
		}
		return nil
	case raftpb.EntryConfChangeV2:
		return proto.Unmarshal(e.GetData(), &raftpb.ConfChangeV2{})
	default:
		return fmt.Errorf("entry %d of type %v", e.GetIndex(), e.GetType())
	}
}

func (c *Core) checkSnap(m *raftpb.Message) error {
	meta := m.GetSnapshot().GetMetadata()
	if meta.GetIndex() == 0 || meta.GetTerm() == 0 || meta.GetTerm() > m.GetTerm() {
		return badMessage(m, "snapshot at %d of term %d", meta.GetIndex(), meta.GetTerm())
	}
	if err := CheckConf(meta.GetConfState()); err != nil {
		return badMessage(m, "%v", err)
	}
	return nil
}

// CheckConf refuses a configuration raft would panic on.
func CheckConf(conf *raftpb.ConfState) error {
	if conf == nil || proto.Size(conf) == 0 {
		return nil
	}
	ids := MembersOf(conf)
	if len(conf.GetVoters()) == 0 || len(ids) > MaxMembers || slices.Contains(ids, 0) {
		return fmt.Errorf("%w: configuration %v", ErrMessage, conf)
	}
	_, _, err := confchange.Restore(confchange.Changer{Tracker: tracker.MakeProgressTracker(1, 0), LastIndex: 1}, conf)
	if err != nil {
		return fmt.Errorf("%w: configuration %v: %w", ErrMessage, conf, err)
	}
	return nil
}

// confChangeOf decodes a change of the configuration; ok is false for other entries.
func confChangeOf(e *raftpb.Entry) (cc *raftpb.ConfChangeV2, ok bool) {
	if e.GetType() != raftpb.EntryConfChangeV2 {
		return nil, false
	}
	cc = &raftpb.ConfChangeV2{}
	if err := proto.Unmarshal(e.GetData(), cc); err != nil {
		return nil, false // refused by checkEntry on its way in
	}
	return cc, true
}

// SetSnapshotTime lets a snapshot message carry the time of its base, in Unix nanoseconds.
func SetSnapshotTime(s *raftpb.Snapshot, timeNanos int64) {
	c := coder.Writer(nil, coder.Little)
	c.I64(&timeNanos)
	s.Data = c.Written()
}

// snapshotTime is that time; 0 if the message has none.
func snapshotTime(s *raftpb.Snapshot) (timeNanos int64) {
	c := coder.Reader(s.GetData(), coder.Little)
	if c.I64(&timeNanos); c.Finish() != nil {
		return 0
	}
	return timeNanos
}

// Level says how much a line of the log matters.
type Level uint8

// Levels of lines.
const (
	Debug Level = iota
	Warning
	Fault
)

// raftLogger hands on raft's log lines: what raft calls information is for debugging, as raft is chatty.
type raftLogger struct {
	to func(level Level, line string)
}

func (l raftLogger) line(level Level, text string) {
	if l.to != nil {
		l.to(level, "raft: "+text)
	}
}

func (l raftLogger) Debug(v ...any)              {}
func (l raftLogger) Debugf(f string, v ...any)   {}
func (l raftLogger) Info(v ...any)               { l.line(Debug, fmt.Sprint(v...)) }
func (l raftLogger) Infof(f string, v ...any)    { l.line(Debug, fmt.Sprintf(f, v...)) }
func (l raftLogger) Warning(v ...any)            { l.line(Warning, fmt.Sprint(v...)) }
func (l raftLogger) Warningf(f string, v ...any) { l.line(Warning, fmt.Sprintf(f, v...)) }
func (l raftLogger) Error(v ...any)              { l.line(Fault, fmt.Sprint(v...)) }
func (l raftLogger) Errorf(f string, v ...any)   { l.line(Fault, fmt.Sprintf(f, v...)) }
func (l raftLogger) Fatal(v ...any)              { l.Panic(v...) }
func (l raftLogger) Fatalf(f string, v ...any)   { l.Panicf(f, v...) }
func (l raftLogger) Panic(v ...any) {
	panic("consensus: raft: " + fmt.Sprint(v...)) // tidy: raft's own invariant; going on would corrupt the log
}
func (l raftLogger) Panicf(f string, v ...any) {
	panic("consensus: raft: " + fmt.Sprintf(f, v...)) // tidy: raft's own invariant; going on would corrupt the log
}
