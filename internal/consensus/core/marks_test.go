package core

import (
	"errors"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/logstate"
)

// One of three voters is put back to an older copy, and all start again, under a network that loses and delays: the one
// that was put back is refused, whoever leads, and the other two go on with all that was chosen before. While one of
// these is away, the other one and the one that was put back choose nothing.
func TestSimulatedVoterIsPutBack(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 12
	}
	for seed := range seeds {
		s := newSim(t, seed, 3)
		put := s.nodes[1+seed%3]
		s.lossy = true
		for range 1500 {
			s.step()
		}
		s.settle()
		older, had := put.disk.PowerLoss(func(int) int { return 1 }), len(s.chosen)
		s.lossy = true
		for range 1500 {
			s.step()
		}
		s.settle()
		if len(s.chosen) == had {
			continue
		}
		s.net, s.told = nil, nil
		put.disk, s.back = older, put.id
		for _, n := range s.nodes {
			n.disk = n.disk.PowerLoss(func(int) int { return 1 })
			s.boot(n)
		}
		chosen := len(s.chosen)
		if seed%2 == 0 {
			s.down = 1 + put.id%3
			s.lossy = true
			for range 3000 {
				s.step()
			}
			if s.down = 0; len(s.chosen) != chosen {
				s.fatalf("%d entries were chosen without those that were lost", len(s.chosen)-chosen)
			}
		}
		s.settle()
		if !s.ended || len(s.chosen) == chosen {
			s.fatalf("node %d was put back: it has ended: %t; %d entries more", put.id, s.ended, len(s.chosen)-chosen)
		}
	}
}

// voter is a core with a log of n entries of a term, all of them committed, among three voters.
func voter(t *testing.T, id ID, term uint64, n int, marks ...logstate.Mark) *Core {
	t.Helper()
	state := &logstate.State{Base: logstate.Base{Conf: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}}, Marks: marks,
		Hard: &raftpb.HardState{Term: new(term), Commit: new(uint64(n))}}
	for i := range n {
		p := Proposal{Origin: id, Run: uint64(id), Seq: uint64(i)}
		state.Entries = append(state.Entries, &raftpb.Entry{Index: new(uint64(i + 1)), Term: new(term),
			Type: raftpb.EntryNormal.Enum(), Data: p.Envelope(int64(100*id) + int64(i))})
	}
	c, err := New(Config{ID: id, State: state, ElectionTicks: 10, HeartbeatTicks: 2, Intn: func(int) int { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shortOf steps a message, and returns whom the core then tells that it has lost entries.
func shortOf(c *Core, m *raftpb.Message) (list []logstate.Mark, messages []*raftpb.Message, err error) {
	err = c.Step(m)
	for {
		out, ok := c.Ready()
		if !ok {
			return list, messages, err
		}
		if out.Append != nil {
			c.Persisted(out.Append)
		}
		list, messages = append(list, out.Short...), append(messages, out.Messages...)
	}
}

// A candidate whose log ends before its mark gets no vote, and is told. With the entry of the mark it gets one. The
// vote of one that has lost entries does not count.
func TestMarksAtElections(t *testing.T) {
	ask := func(kind raftpb.MessageType, index, logTerm uint64) *raftpb.Message {
		return &raftpb.Message{Type: kind.Enum(), From: new(ID(2)), To: new(ID(1)), Term: new(uint64(9)), Index: new(index),
			LogTerm: new(logTerm)}
	}
	for _, c := range []struct {
		index, term    uint64
		told, diverged bool
	}{{4, 3, true, false}, {5, 3, false, false}, {7, 3, false, false}, {7, 2, true, false}, {4, 4, false, true}} {
		for _, kind := range []raftpb.MessageType{raftpb.MsgVote, raftpb.MsgPreVote, raftpb.MsgVoteResp,
			raftpb.MsgPreVoteResp} {
			list, _, err := shortOf(voter(t, 1, 1, 2, logstate.Mark{ID: 2, Index: 5, Term: 3}), ask(kind, c.index, c.term))
			var diverged *DivergedError
			if told := len(list) == 1 && errors.Is(err, ErrMessage); told != c.told || errors.As(err, &diverged) != c.diverged {
				t.Errorf("%v with a log up to %d of term %d: %v %v", kind, c.index, c.term, list, err)
			}
		}
	}
	lost := voter(t, 2, 3, 4)
	if err := lost.TakeMarks(1, 9, []logstate.Mark{{ID: 2, Index: 5, Term: 3}}); !errors.Is(err, ErrLogShort) {
		t.Errorf("the voter that has lost an entry is told: %v", err)
	}
	for _, k := range []logstate.Mark{{ID: 2, Index: 4, Term: 3}, {ID: 3, Index: 5, Term: 3}, {ID: 2, Index: 5, Term: 2}} {
		if err := lost.TakeMarks(1, 9, []logstate.Mark{k}); err != nil {
			t.Errorf("a voter that has lost nothing is told %+v: %v", k, err)
		}
	}
	_, out, _ := shortOf(voter(t, 1, 1, 2), ask(raftpb.MsgVote, 7, 3))
	if len(out) != 1 || out[0].GetReject() || out[0].GetIndex() != 2 || out[0].GetLogTerm() != 1 {
		t.Errorf("a vote says where the voter's log ends: %v", out)
	}
}

// A follower that refuses an append at or before its mark, or names an entry before it, has lost entries.
func TestMarksAtAppends(t *testing.T) {
	for _, c := range []struct {
		index, hint uint64
		told        bool
	}{{9, 5, false}, {9, 4, true}, {4, 3, true}, {9, 8, false}} {
		m := &raftpb.Message{Type: raftpb.MsgAppResp.Enum(), From: new(ID(2)), To: new(ID(1)), Term: new(uint64(1)),
			Index: new(c.index), RejectHint: new(c.hint), Reject: new(true)}
		list, _, _ := shortOf(voter(t, 1, 1, 9, logstate.Mark{ID: 2, Index: 5, Term: 1}), m)
		if told := len(list) == 1; told != c.told {
			t.Errorf("entry %d refused, hint %d: %v", c.index, c.hint, list)
		}
	}
}

// Marks come from the leader whose log is this one's, go to the log with the next append, and stay for members only.
func TestMarksAreKept(t *testing.T) {
	c := voter(t, 1, 2, 3)
	list := []logstate.Mark{{ID: 2, Index: 3, Term: 2}, {ID: 3, Index: 2, Term: 2}, {ID: 9, Index: 3, Term: 2}}
	if err := c.TakeMarks(2, 2, list); err != nil || len(c.Marks()) != 0 {
		t.Fatalf("of one whose log is not known: %v %v", c.Marks(), err)
	}
	leads, at := voter(t, 2, 2, 3), int64(102)
	app := &raftpb.Message{Type: raftpb.MsgApp.Enum(), From: new(ID(2)), To: new(ID(1)), Term: new(uint64(2)),
		Index: new(uint64(3)), LogTerm: new(uint64(2)), Commit: new(uint64(3))}
	leads.log.entries = c.log.entries
	leads.signAppend(app)
	if got, ok := prevTime(app); !ok || got != at {
		t.Fatalf("the append has the time %d of the entry before it, want %d", got, at)
	}
	if _, _, err := shortOf(c, app); err != nil {
		t.Fatal(err)
	}
	if err := c.TakeMarks(2, 1, list); err != nil || len(c.Marks()) != 0 {
		t.Fatalf("of an earlier term: %v %v", c.Marks(), err)
	}
	if err := c.TakeMarks(2, 2, list); err != nil || len(c.Marks()) != 2 {
		t.Fatalf("of the leader: %v %v", c.Marks(), err)
	}
	if c.SaveMarks() != nil || len(c.SaveMarks()) != 2 || c.SaveMarks() != nil {
		t.Fatal("they are not written once, after a while")
	}
	c.marks.keep([]ID{1, 2}, 2)
	if len(c.Marks()) != 2 {
		t.Fatal("a mark that is newer than the change of members is forgotten")
	}
	if c.marks.keep([]ID{1, 2}, 4); len(c.Marks()) != 1 {
		t.Fatal("a node that has left has a mark")
	}
	later := voter(t, 1, 2, 3, logstate.Mark{ID: 2, Index: 3, Term: 2})
	if later.Status().Commit != 3 {
		t.Fatal("commit index")
	}
}

// A sound voter takes nothing of a leader with another history: neither where an entry of its own is committed, nor
// where both are of one term, in which a voter has voted twice. It goes on to refuse that leader, also its heartbeats.
func TestSoundVoterRefusesAnotherHistory(t *testing.T) {
	app := func(from *Core, id ID, term, index uint64, n int) *raftpb.Message {
		m := &raftpb.Message{Type: raftpb.MsgApp.Enum(), From: new(id), To: new(ID(1)), Term: new(term), Index: new(index),
			Commit: new(index + uint64(n)), Entries: from.log.entries[index:][:n]}
		if index > 0 {
			m.LogTerm = new(from.log.entries[index-1].GetTerm())
		}
		from.signAppend(m)
		return m
	}
	for name, m := range map[string]*raftpb.Message{
		"entries of another term": app(voter(t, 2, 5, 4), 2, 5, 0, 4),
		"the entry before":        app(voter(t, 2, 5, 4), 2, 5, 2, 0),
		"entries of the term":     app(voter(t, 2, 3, 4), 2, 3, 0, 4),
		"the entry before, of it": app(voter(t, 2, 3, 9), 2, 3, 6, 1),
		"a snapshot": {Type: raftpb.MsgSnap.Enum(), From: new(ID(2)), To: new(ID(1)), Term: new(uint64(5)),
			Snapshot: &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(3)), Term: new(uint64(5)),
				ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}}}},
	} {
		c := voter(t, 1, 3, 6)
		var diverged *DivergedError
		if _, _, err := shortOf(c, m); !errors.As(err, &diverged) || isFatal(err) || !diverged.Leads {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want := 7 - diverged.Index; diverged.Count != want || diverged.Index == 0 {
			t.Errorf("%s: %+v", name, diverged)
		}
		beat := &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: new(ID(2)), To: new(ID(1)), Term: m.Term}
		if _, _, err := shortOf(c, beat); !errors.As(err, &diverged) || c.Status().Leader != 0 {
			t.Errorf("%s: then a heartbeat: %v", name, err)
		}
		if got := c.Status(); got.Commit != 6 || got.Last != 6 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	same := voter(t, 1, 3, 6)
	if _, _, err := shortOf(same, app(voter(t, 1, 3, 9), 2, 3, 6, 3)); err != nil || same.Status().Commit != 9 {
		t.Errorf("the same history: %v %+v", err, same.Status())
	}
}
