package core

import (
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

const (
	envelopeVersion = 1
	// EnvelopeBytes is what an envelope adds to the data of a proposal.
	EnvelopeBytes = 2 + 8 + 8 + 8 + 8
	// FlagAnnounce on an entry asks every node to report at once when it has made the entry visible.
	FlagAnnounce = 1
)

// Proposal is one proposal on its way to the log. Origin, Run and Seq name the waiting call: Run differs in each life
// of the origin's process.
type Proposal struct {
	Origin ID
	Run    uint64
	Seq    uint64
	Flags  uint8
	Data   []byte
}

// codeEnvelope lists the fields of a proposal as a raft entry's data, stamped with the leader's time.
func (p *Proposal) codeEnvelope(c *coder.Coder, timeNanos *int64) {
	c.Same8("envelope", envelopeVersion)
	c.U8(&p.Flags)
	c.I64(timeNanos)
	c.U64(&p.Origin)
	c.U64(&p.Run)
	c.U64(&p.Seq)
	c.Rest(&p.Data, coder.Unbounded)
}

// Envelope is the data of the raft entry that carries the proposal, stamped with the leader's time.
func (p *Proposal) Envelope(timeNanos int64) []byte {
	c := coder.Writer(make([]byte, 0, EnvelopeBytes+len(p.Data)), coder.Little)
	p.codeEnvelope(&c, &timeNanos)
	return c.Written()
}

// OpenEnvelope undoes envelope. Data is not copied.
func OpenEnvelope(b []byte) (p Proposal, timeNanos int64, err error) {
	c := coder.Reader(b, coder.Little)
	if p.codeEnvelope(&c, &timeNanos); c.Finish() != nil {
		return Proposal{}, 0, fmt.Errorf("consensus: entry with an unknown envelope: written by a newer version: %w", c.Err())
	}
	return p, timeNanos, nil
}

// Committed is an entry that is final: what the core hands out, and what followers are sent.
type Committed struct {
	Index uint64
	Term  uint64
	Type  raftpb.EntryType
	Raw   []byte
	// Conf is the configuration after the entry, if it changed it.
	Conf *raftpb.ConfState
}

// Bytes is about what the entry takes in memory.
func (c *Committed) Bytes() uint64 { return uint64(len(c.Raw)) + 64 }

// Entry decodes what the state machine gets, and whose proposal it was.
func (c *Committed) Entry() (Entry, Proposal, error) {
	e := Entry{Index: c.Index, Term: c.Term}
	if c.Conf != nil {
		e.Conf, e.Voters, e.Outgoing = true, c.Conf.GetVoters(), c.Conf.GetVotersOutgoing()
	}
	if c.Type != raftpb.EntryNormal || len(c.Raw) == 0 {
		return e, Proposal{}, nil
	}
	p, at, err := OpenEnvelope(c.Raw)
	e.Time, e.Data = at, p.Data
	return e, p, err
}

// TimeOf returns the stamp of a raft entry, 0 if it has none.
func TimeOf(e *raftpb.Entry) int64 {
	if e.GetType() != raftpb.EntryNormal || len(e.GetData()) < EnvelopeBytes {
		return 0
	}
	_, timeNanos, _ := OpenEnvelope(e.GetData())
	return timeNanos
}

// VotersOf returns all voters of a configuration, of both halves of a joint one.
func VotersOf(c *raftpb.ConfState) []ID {
	voters := append([]ID(nil), c.GetVoters()...)
	for _, id := range c.GetVotersOutgoing() {
		if !slices.Contains(voters, id) {
			voters = append(voters, id)
		}
	}
	return voters
}

// MembersOf returns all that take part in raft: voters and learners.
func MembersOf(c *raftpb.ConfState) []ID {
	members := VotersOf(c)
	for _, id := range append(append([]ID(nil), c.GetLearners()...), c.GetLearnersNext()...) {
		if !slices.Contains(members, id) {
			members = append(members, id)
		}
	}
	return members
}

// SameConf reports whether two configurations have the same voters and learners.
func SameConf(a, b *raftpb.ConfState) bool {
	same := func(a, b []ID) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	}
	return same(a.GetVoters(), b.GetVoters()) && same(a.GetVotersOutgoing(), b.GetVotersOutgoing()) &&
		same(a.GetLearners(), b.GetLearners()) && same(a.GetLearnersNext(), b.GetLearnersNext())
}
