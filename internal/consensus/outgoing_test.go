package consensus

import (
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
)

func appendMessage(to ID, commit uint64, entries ...*raftpb.Entry) *raftpb.Message {
	return &raftpb.Message{Type: raftpb.MsgApp.Enum(), To: new(to), Term: new(uint64(1)), Commit: new(commit),
		Entries: entries}
}

func ackMessage(to ID, index uint64, reject bool) *raftpb.Message {
	return &raftpb.Message{Type: raftpb.MsgAppResp.Enum(), To: new(to), Term: new(uint64(1)), Index: new(index),
		Reject: new(reject)}
}

func entryAt(index uint64, origin ID, flags uint8) *raftpb.Entry {
	p := core.Proposal{Origin: origin, Flags: flags, Data: []byte("x")}
	return &raftpb.Entry{Type: raftpb.EntryNormal.Enum(), Index: new(index), Data: p.Envelope(1)}
}

// News of a commit that nobody waits for rides with the next message.
func TestCommitNewsIsHeldBack(t *testing.T) {
	now := time.Unix(1, 0)
	o := newOutgoing(1, 10)
	send := func(m *raftpb.Message) bool { return o.pass(now, m) != nil }
	if !send(appendMessage(2, 10)) {
		t.Error("news of entries from before the start was held back")
	}
	e := entryAt(11, 1, 0)
	o.note([]*raftpb.Entry{e})
	if !send(appendMessage(2, 10, e)) {
		t.Error("entries were held back")
	}
	if send(appendMessage(2, 11)) {
		t.Error("news of an entry of this node's own went out at once")
	}
	if len(o.held) != 1 {
		t.Fatalf("%d messages held", len(o.held))
	}
	e = entryAt(12, 1, core.FlagAnnounce)
	o.note([]*raftpb.Entry{e})
	if !send(appendMessage(2, 11, e)) || len(o.held) != 0 {
		t.Error("the next entries did not take the news along")
	}
	if !send(appendMessage(2, 12)) {
		t.Error("news that a barrier waits for was held back")
	}
	o.note([]*raftpb.Entry{entryAt(13, 3, 0)})
	if send(appendMessage(2, 13)) || !send(appendMessage(3, 13)) {
		t.Error("only the node that proposed waits")
	}
	if list := o.release(); len(list) != 1 || list[0].GetTo() != 2 || list[0].GetCommit() != 13 {
		t.Errorf("released %v", list)
	}
	if !send(appendMessage(2, 13)) {
		t.Error("a message without news is a probe and was held back")
	}
}

// An acknowledgement is not repeated, except for a leader that did not hear it.
func TestAcksAreNotRepeated(t *testing.T) {
	now := time.Unix(1, 0)
	o := newOutgoing(1, 0)
	steps := []struct {
		m    *raftpb.Message
		wait time.Duration
		sent bool
	}{
		{ackMessage(2, 5, false), 0, true},
		{ackMessage(2, 5, false), time.Millisecond, false},
		{ackMessage(2, 6, false), time.Millisecond, true},
		{ackMessage(2, 6, false), ackAgain, true},
		{ackMessage(2, 6, true), 0, true},
		{ackMessage(2, 6, false), 0, true},
		{ackMessage(3, 6, false), 0, true},
		{ackMessage(3, 4, false), 0, false},
	}
	for i, s := range steps {
		now = now.Add(s.wait)
		if sent := o.pass(now, s.m) != nil; sent != s.sent {
			t.Errorf("step %d: sent %v, want %v", i, sent, s.sent)
		}
	}
}
