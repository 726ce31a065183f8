package consensus

import (
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// What a caller other than [Node] needs to drive a [Core]: a simulator.

// Entry decodes what the state machine gets of a committed entry, and whose proposal it was.
func (c *Committed) Entry() (Entry, Proposal, error) { return c.entry() }

// Time is the stamp of a committed entry, 0 if it has none.
func (c *Committed) Time() int64 {
	e, _, err := c.entry()
	if err != nil {
		return 0
	}
	return e.Time
}

// Members are all that take part in raft under a configuration: voters and learners.
func Members(c *raftpb.ConfState) []ID { return raftMembersOf(c) }

// Voters are those that vote under a configuration: both halves of a joint one, each once.
func Voters(c *raftpb.ConfState) []ID { return votersOf(c) }

// WithBase is raft's snapshot message for a state that was fetched on its own and may be newer than the one that the
// message spoke of.
func WithBase(m *raftpb.Message, base raftlog.Base) *raftpb.Message {
	m = proto.Clone(m).(*raftpb.Message)
	m.Snapshot = &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(base.Index), Term: new(base.Term), ConfState: base.Conf}}
	setSnapshotTime(m.Snapshot, base.Time)
	return m
}

// Hard is the hard state that is on stable storage.
func (c *Core) Hard() *raftpb.HardState { return c.log.hard }

// Check tells what Step would refuse a message for.
func (c *Core) Check(m *raftpb.Message) error { return c.check(m) }
