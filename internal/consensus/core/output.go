package core

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/logstate"
)

// Append is what must be on stable storage before Persisted is called with it. Appends are persisted in the order they
// were handed out.
type Append struct {
	Entries []*raftpb.Entry
	Hard    *raftpb.HardState // nil: unchanged
	// Base, if not nil, replaces the whole log: a snapshot of the state machine at Base has been taken in.
	Base *logstate.Base
	// Marks, if not nil, are what is known of the members.
	Marks     []logstate.Mark
	responses []*raftpb.Message
}

// Batch is the append as the log takes it.
func (a *Append) Batch() *logstate.Batch {
	return &logstate.Batch{Entries: a.Entries, Hard: a.Hard, Base: a.Base, Reset: a.Base != nil, Marks: a.Marks}
}

// Output is what a core wants done. Messages go out at once, before Append is persisted; they may be lost.
type Output struct {
	Messages []*raftpb.Message
	Append   *Append
	// Apply must be applied in order; then Applied is called with the last index.
	Apply []Committed
	Reads []ReadState
	// Short are members that have lost entries, and what of them is known: each is to be told its mark.
	Short []logstate.Mark
}

// ReadState answers ReadIndex: all that was acknowledged before the request is at or below Index.
type ReadState struct {
	Index   uint64
	Request string
}

type applying struct {
	last uint64
	resp []*raftpb.Message
}

// Persisted notes that an append, and all before it, is on stable storage.
func (c *Core) Persisted(a *Append) {
	c.handed--
	if a.Hard != nil {
		c.log.hard = a.Hard
	}
	if a.Base != nil {
		c.log.reset(*a.Base)
		c.lastTime = max(c.lastTime, a.Base.Time)
	}
	c.log.append(a.Entries)
	for _, m := range a.responses {
		if m.GetTo() == c.cfg.ID {
			_ = c.raft.Step(m)
		} else {
			c.signVote(m)
			c.after = append(c.after, m)
		}
	}
}

// Unpersisted notes that an append which moves no more than the commit index was not written: it goes with the next
// one. What a node appends after it has applied a change of the voters must not be found without the knowledge that the
// change was committed, or a node could begin again, and elect itself, under voters that are no more.
func (c *Core) Unpersisted(a *Append) {
	if a.Hard != nil {
		c.unsaved = a.Hard
	}
	c.marks.unsaved = c.marks.unsaved || a.Marks != nil
	c.Persisted(a)
}

// OnlyCommit reports whether an append moves no more than the commit index.
func (c *Core) OnlyCommit(a *Append) bool {
	h := c.log.hard
	return len(a.Entries) == 0 && a.Base == nil &&
		(a.Hard == nil || h.GetTerm() == a.Hard.GetTerm() && h.GetVote() == a.Hard.GetVote())
}

// Applied notes that everything handed out up to index is applied.
func (c *Core) Applied(index uint64) {
	for len(c.applying) > 0 && c.applying[0].last <= index {
		for _, m := range c.applying[0].resp {
			_ = c.raft.Step(m)
		}
		c.log.applied = max(c.log.applied, c.applying[0].last)
		c.applying = c.applying[1:]
	}
	if m := c.snap; m != nil && len(c.applying) == 0 {
		c.snap = nil
		_ = c.step(m)
	}
}

// Compact drops the log up to index, as far as it is applied, and returns the new base to persist.
func (c *Core) Compact(index uint64) (logstate.Base, bool) {
	index = min(index, c.log.applied, c.log.last())
	if index <= c.log.base.Index {
		return c.log.base, false
	}
	return c.log.compact(index), true
}

// Ready returns what is to be done now; false if nothing.
func (c *Core) Ready() (Output, bool) {
	var out Output
	out.Messages, c.after = c.after, nil
	out.Short, c.short = c.short, nil
	if !c.raft.HasReady() {
		if c.handed == 0 {
			c.unsettled = 0
		}
		return out, len(out.Messages) > 0 || len(out.Short) > 0
	}
	rd := c.raft.Ready()
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			out.Append = appendOf(m)
			c.handed++
			if out.Append.Hard == nil {
				out.Append.Hard = c.unsaved
			}
			c.unsaved = nil
			out.Append.Marks = c.marks.save()
			c.noteLast(out.Append)
		case raft.LocalApplyThread:
			out.Apply = c.commit(m)
		default:
			c.signVote(m)
			c.signAppend(m)
			out.Messages = append(out.Messages, m)
		}
	}
	for _, r := range rd.ReadStates {
		out.Reads = append(out.Reads, ReadState{Index: r.Index, Request: string(r.RequestCtx)})
	}
	return out, true
}

func (c *Core) noteLast(a *Append) {
	if a.Base != nil {
		c.last = a.Base.Index
	}
	if n := len(a.Entries); n > 0 {
		c.last = a.Entries[n-1].GetIndex()
	}
}

func appendOf(m *raftpb.Message) *Append {
	a := &Append{Entries: m.GetEntries(), responses: m.GetResponses()}
	if hard := (&raftpb.HardState{Term: m.Term, Vote: m.Vote, Commit: m.Commit}); !raft.IsEmptyHardState(hard) {
		a.Hard = &raftpb.HardState{Term: new(m.GetTerm()), Vote: new(m.GetVote()), Commit: new(m.GetCommit())}
	}
	if !raft.IsEmptySnap(m.GetSnapshot()) {
		meta := m.GetSnapshot().GetMetadata()
		a.Base = &logstate.Base{Index: meta.GetIndex(), Term: meta.GetTerm(), Conf: meta.GetConfState(),
			Time: snapshotTime(m.GetSnapshot())}
	}
	return a
}

// commit turns raft's committed entries into ours, and changes raft's configuration where they say so.
func (c *Core) commit(m *raftpb.Message) []Committed {
	list := make([]Committed, 0, len(m.GetEntries()))
	for _, e := range m.GetEntries() {
		ce := Committed{Index: e.GetIndex(), Term: e.GetTerm(), Type: e.GetType(), Raw: e.GetData()}
		if cc, ok := confChangeOf(e); ok {
			ce.Conf = c.raft.ApplyConfChange(cc)
			c.log.confs = append(c.log.confs, confAt{ce.Index, ce.Conf})
			c.marks.keep(MembersOf(ce.Conf), ce.Index)
			c.confTerm = 0
		}
		list = append(list, ce)
	}
	c.applying = append(c.applying, applying{last: list[len(list)-1].Index, resp: m.GetResponses()})
	return list
}
