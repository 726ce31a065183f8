package consensus

import (
	"encoding/binary"
	"errors"

	"go.etcd.io/raft/v3/raftpb"
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

// envelope wraps a proposal as a raft entry's data, stamped with the leader's time.
func (p *Proposal) envelope(timeNanos int64) []byte {
	b := make([]byte, 0, envelopeBytes+len(p.Data))
	b = append(b, envelopeVersion, p.Flags)
	b = binary.LittleEndian.AppendUint64(b, uint64(timeNanos))
	b = binary.LittleEndian.AppendUint64(b, p.Origin)
	b = binary.LittleEndian.AppendUint64(b, p.Run)
	b = binary.LittleEndian.AppendUint64(b, p.Seq)
	return append(b, p.Data...)
}

// openEnvelope undoes envelope. Data is not copied.
func openEnvelope(b []byte) (p Proposal, timeNanos int64, err error) {
	if len(b) < envelopeBytes || b[0] != envelopeVersion {
		return p, 0, errors.New("consensus: entry with an unknown envelope: written by a newer version")
	}
	p = Proposal{
		Flags:  b[1],
		Origin: binary.LittleEndian.Uint64(b[10:]),
		Run:    binary.LittleEndian.Uint64(b[18:]),
		Seq:    binary.LittleEndian.Uint64(b[26:]),
		Data:   b[envelopeBytes:len(b):len(b)],
	}
	return p, int64(binary.LittleEndian.Uint64(b[2:])), nil
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
		e.Conf, e.Voters = true, votersOf(c.Conf)
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
	return int64(binary.LittleEndian.Uint64(e.GetData()[2:]))
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

func contains(ids []ID, id ID) bool {
	for _, x := range ids {
		if x == id {
			return true
		}
	}
	return false
}
