package consensus

import (
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
)

const (
	// commitGather is how long news of the commit index is held back where nobody waits for it: most often the next
	// entry takes it along, and a message, its answer and two wake-ups are saved at each voter.
	commitGather = 5 * time.Millisecond
	// ackAgain is how soon the same acknowledgement is not sent again. A leader that lost it and asks gets it after
	// that.
	ackAgain = 100 * time.Millisecond
)

// outgoing decides which of raft's messages go out now. It belongs to the loop.
type outgoing struct {
	self ID
	// prompt is the highest index whose commit everyone is to hear of at once, promptFor the same for single peers:
	// those whose callers wait for it.
	prompt    uint64
	promptFor map[ID]uint64
	told      map[ID]uint64          // commit index that was sent to a peer
	held      map[ID]*raftpb.Message // at most one for a peer, without entries

	ackTo               ID // the last acknowledgement
	ackTerm, ackedIndex uint64
	ackAt               time.Time
}

func newOutgoing(self ID, last uint64) *outgoing {
	return &outgoing{self: self, prompt: last, promptFor: map[ID]uint64{}, told: map[ID]uint64{},
		held: map[ID]*raftpb.Message{}}
}

// note takes the wishes of entries that are being appended.
func (o *outgoing) note(entries []*raftpb.Entry) {
	for _, e := range entries {
		all, origin := promptOf(e.GetType(), e.GetData())
		switch {
		case all:
			o.prompt = max(o.prompt, e.GetIndex())
		case origin != 0 && origin != o.self:
			o.promptFor[origin] = max(o.promptFor[origin], e.GetIndex())
		}
	}
}

// promptOf returns who waits for an entry to be applied: everyone, or the node it came from.
func promptOf(kind raftpb.EntryType, data []byte) (all bool, origin ID) {
	if kind != raftpb.EntryNormal {
		return true, 0
	}
	if len(data) < core.EnvelopeBytes {
		return false, 0
	}
	p, _, _ := core.OpenEnvelope(data)
	return p.Flags&core.FlagAnnounce != 0, p.Origin
}

// pass returns the message if it is to be sent now.
func (o *outgoing) pass(now time.Time, m *raftpb.Message) *raftpb.Message {
	switch m.GetType() {
	case raftpb.MsgApp:
		return o.passAppend(m)
	case raftpb.MsgAppResp:
		return o.passAck(now, m)
	case raftpb.MsgSnap:
		delete(o.held, m.GetTo())
	}
	return m
}

func (o *outgoing) passAppend(m *raftpb.Message) *raftpb.Message {
	to := m.GetTo()
	delete(o.held, to) // m says more
	waits := max(o.prompt, o.promptFor[to])
	if len(m.GetEntries()) == 0 && m.GetCommit() > o.told[to] && o.told[to] >= waits {
		o.held[to] = m
		return nil
	}
	o.told[to] = max(o.told[to], m.GetCommit())
	return m
}

// passAck drops an acknowledgement that only says again what was said just now.
func (o *outgoing) passAck(now time.Time, m *raftpb.Message) *raftpb.Message {
	if m.GetReject() {
		o.ackTo = 0
		return m
	}
	same := m.GetTo() == o.ackTo && m.GetTerm() == o.ackTerm
	if same && m.GetIndex() <= o.ackedIndex && now.Sub(o.ackAt) < ackAgain {
		return nil
	}
	if !same {
		o.ackedIndex = 0
	}
	o.ackTo, o.ackTerm, o.ackedIndex, o.ackAt = m.GetTo(), m.GetTerm(), max(o.ackedIndex, m.GetIndex()), now
	return m
}

// release returns all that was held back.
func (o *outgoing) release() []*raftpb.Message {
	if len(o.held) == 0 {
		return nil
	}
	list := make([]*raftpb.Message, 0, len(o.held))
	for to, m := range o.held {
		o.told[to] = max(o.told[to], m.GetCommit())
		list = append(list, m)
	}
	clear(o.held)
	return list
}
