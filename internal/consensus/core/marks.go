package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/rdmcfs/rdmcfs/internal/consensus/logstate"
)

// A mark says that a member has had a committed entry on stable storage. That entry is never truncated, so the end of
// the member's log is never before it again. If it is, the member's data directory was put back to an older copy: it
// has forgotten entries, and perhaps a vote. It must not vote any more.
//
// The leader knows how far each member is, and tells the others. Each member keeps the marks in its log, so that they
// outlive the leader. They lag behind by about a second.

// marks are what is known of the members.
type marks struct {
	of      map[ID]logstate.Mark
	unsaved bool // they have changed since they were last handed out to be written
	waited  bool // SaveMarks has found them unsaved before
}

func newMarks(list []logstate.Mark) marks {
	m := marks{of: map[ID]logstate.Mark{}}
	for _, k := range list {
		m.of[k.ID] = k
	}
	return m
}

// note takes a mark if it says more than the one that is there.
func (m *marks) note(k logstate.Mark) {
	if k.ID != 0 && k.Index > m.of[k.ID].Index {
		m.of[k.ID] = k
		m.unsaved = true
	}
}

// keep forgets all that are no members from an index on: they may come back with a log that begins later. A mark behind
// that index was given by a leader that knew them as members again.
func (m *marks) keep(members []ID, index uint64) {
	maps.DeleteFunc(m.of, func(id ID, k logstate.Mark) bool {
		gone := k.Index < index && !slices.Contains(members, id)
		m.unsaved = m.unsaved || gone
		return gone
	})
}

// list has all marks, by id; it is not nil.
func (m *marks) list() []logstate.Mark {
	list := slices.AppendSeq(make([]logstate.Mark, 0, len(m.of)), maps.Values(m.of))
	slices.SortFunc(list, func(a, b logstate.Mark) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// save returns the marks to be written with the next append, nil if they are written.
func (m *marks) save() []logstate.Mark {
	if !m.unsaved {
		return nil
	}
	m.unsaved, m.waited = false, false
	return m.list()
}

// Marks is what this node knows of the members.
func (c *Core) Marks() []logstate.Mark { return c.marks.list() }

// NoteMarks takes what a leader knows of all members, and returns what it has to tell them, with its term. It returns
// nil for a node that does not lead.
func (c *Core) NoteMarks() (list []logstate.Mark, term uint64) {
	s := c.raft.BasicStatus()
	if s.RaftState != raft.StateLeader {
		return nil, 0
	}
	c.raft.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		index := min(pr.Match, s.HardState.GetCommit(), c.log.last())
		if at, err := c.log.Term(index); err == nil && index > 0 {
			c.marks.note(logstate.Mark{ID: id, Index: index, Term: at})
		}
	})
	return c.marks.list(), s.HardState.GetTerm()
}

// SaveMarks returns the marks to be written by themselves, if no append has taken them along since the last call.
func (c *Core) SaveMarks() []logstate.Mark {
	if !c.marks.unsaved || !c.marks.waited {
		c.marks.waited = c.marks.unsaved
		return nil
	}
	return c.marks.save()
}

// TakeMarks takes what another member says in a term. If it says that this node has lost entries, the error is
// ErrLogShort. Marks of others count if they come from the leader whose log this one follows.
func (c *Core) TakeMarks(from ID, term uint64, list []logstate.Mark) error {
	s := c.raft.BasicStatus()
	follows := s.RaftState == raft.StateFollower && c.shared == (led{from, term}) && term == s.HardState.GetTerm()
	for _, k := range list {
		switch {
		case k.ID == c.cfg.ID:
			if err := c.checkOwnMark(from, k); err != nil {
				return err
			}
		case follows && slices.Contains(MembersOf(c.Conf()), k.ID):
			c.marks.note(k)
		}
	}
	return nil
}

// checkOwnMark compares this node's log with what another one knows of it.
func (c *Core) checkOwnMark(from ID, k logstate.Mark) error {
	last := c.log.last()
	lastTerm, _ := c.log.Term(last)
	if k.Lost(last, lastTerm) {
		return &ShortError{LastIndex: last, Promised: k.Index, Witness: fmt.Sprintf("node %d", from>>32)}
	}
	return nil
}

// checkMark compares what a message says of the end of its sender's log with the mark of that member. A member that
// has lost entries is told, and what it says is dropped: its vote does not count, and it gets none.
func (c *Core) checkMark(m *raftpb.Message) error {
	k := c.marks.of[m.GetFrom()]
	lacks := false
	switch m.GetType() {
	case raftpb.MsgVote, raftpb.MsgPreVote, raftpb.MsgVoteResp, raftpb.MsgPreVoteResp:
		lacks = k.Lacks(m.GetIndex(), m.GetLogTerm())
	case raftpb.MsgAppResp: // with the entry, it would not refuse one up to there, and could name it
		lacks = m.GetReject() && min(m.GetIndex(), m.GetRejectHint()) < k.Index
	}
	if !lacks {
		return nil
	}
	if t := m.GetType(); t != raftpb.MsgAppResp && !k.Lost(m.GetIndex(), m.GetLogTerm()) {
		return &DivergedError{Peer: m.GetFrom(), Index: m.GetIndex() + 1, Count: k.Index - min(k.Index, m.GetIndex())}
	}
	c.short = append(c.short, k)
	return badMessage(m, "its log ends before entry %d, which it has acknowledged: it was put back to an older copy",
		k.Index)
}

// signVote adds the end of this node's log on stable storage to an answer to a candidate.
func (c *Core) signVote(m *raftpb.Message) {
	if t := m.GetType(); t == raftpb.MsgVoteResp || t == raftpb.MsgPreVoteResp {
		last := c.log.last()
		term, _ := c.log.Term(last)
		m.Index, m.LogTerm = new(last), new(term)
	}
}
