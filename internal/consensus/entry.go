package consensus

import (
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

const (
	envelopeVersion = 1
	envelopeBytes   = 2 + 8 + 8 + 8 + 8

	// flagAnnounce on an entry asks every node to report at once when it has made the entry visible.
	flagAnnounce = 1
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

func (p *Proposal) envelope(timeNanos int64) []byte {
	c := coder.Writer(make([]byte, 0, envelopeBytes+len(p.Data)), coder.Little)
	p.codeEnvelope(&c, &timeNanos)
	return c.Written()
}

// openEnvelope undoes envelope. Data is not copied.
func openEnvelope(b []byte) (p Proposal, timeNanos int64, err error) {
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

func (c *Committed) bytes() uint64 { return uint64(len(c.Raw)) + 64 }

// entry decodes what the state machine gets, and whose proposal it was.
func (c *Committed) entry() (Entry, Proposal, error) {
	e := Entry{Index: c.Index, Term: c.Term}
	if c.Conf != nil {
		e.Conf, e.Voters, e.Outgoing = true, c.Conf.GetVoters(), c.Conf.GetVotersOutgoing()
	}
	if c.Type != raftpb.EntryNormal || len(c.Raw) == 0 {
		return e, Proposal{}, nil
	}
	p, at, err := openEnvelope(c.Raw)
	e.Time, e.Data = at, p.Data
	return e, p, err
}

// timeOf returns the stamp of a raft entry, 0 if it has none.
func timeOf(e *raftpb.Entry) int64 {
	if e.GetType() != raftpb.EntryNormal || len(e.GetData()) < envelopeBytes {
		return 0
	}
	_, timeNanos, _ := openEnvelope(e.GetData())
	return timeNanos
}

// votersOf returns all voters of a configuration, of both halves of a joint one.
func votersOf(c *raftpb.ConfState) []ID {
	voters := append([]ID(nil), c.GetVoters()...)
	for _, id := range c.GetVotersOutgoing() {
		if !contains(voters, id) {
			voters = append(voters, id)
		}
	}
	return voters
}

// raftMembersOf returns all that take part in raft: voters and learners.
func raftMembersOf(c *raftpb.ConfState) []ID {
	members := votersOf(c)
	for _, id := range append(append([]ID(nil), c.GetLearners()...), c.GetLearnersNext()...) {
		if !contains(members, id) {
			members = append(members, id)
		}
	}
	return members
}

// sameConf reports whether two configurations have the same voters and learners.
func sameConf(a, b *raftpb.ConfState) bool {
	same := func(a, b []ID) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	}
	return same(a.GetVoters(), b.GetVoters()) && same(a.GetVotersOutgoing(), b.GetVotersOutgoing()) &&
		same(a.GetLearners(), b.GetLearners()) && same(a.GetLearnersNext(), b.GetLearnersNext())
}

func contains(ids []ID, id ID) bool {
	for _, x := range ids {
		if x == id {
			return true
		}
	}
	return false
}
