package replicate

import (
	"errors"
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

const (
	maxAddressBytes = 4096
	maxNeighbours   = 256
)

// refusalCode says what to make of a refusal.
type refusalCode uint8

const (
	notRefused    refusalCode = iota // yes
	refusedPlain                     // for what the text says
	refusedMemory                    // for want of registered memory, which others may give back: worth asking again
)

// refusal is a member's no, or yes. It is an answer of a member that lives.
type refusal struct {
	Code refusalCode
	Text string
}

// refusalOf is the answer to what err says; nil is yes.
func refusalOf(err error) refusal {
	switch {
	case err == nil:
		return refusal{}
	case errors.Is(err, rdmc.ErrMemory):
		return refusal{refusedMemory, err.Error()}
	}
	return refusal{refusedPlain, err.Error()}
}

// asError returns a refusal as the caller sees it, nil if it is none: it matches errRefused, and rdmc.ErrMemory where
// it is for that.
func (f refusal) asError(node meta.NodeID, kind Kind) error {
	switch f.Code {
	case notRefused:
		return nil
	case refusedMemory:
		return fmt.Errorf("node %d %w %v: %w: %s", node, errRefused, kind, rdmc.ErrMemory, f.Text)
	}
	return fmt.Errorf("node %d %w %v: %s", node, errRefused, kind, f.Text)
}

func (f *refusal) code(c *fields) {
	c.U8((*uint8)(&f.Code))
	c.text(&f.Text)
	if c.OK() && (f.Code > refusedMemory || (f.Code == notRefused) != (f.Text == "")) {
		c.Fail("refusal %d", f.Code)
	}
}

// groupOpen asks a member to make its end of a group. Its rank is its place in Members, the root first.
type groupOpen struct {
	Number  uint64
	Members []meta.NodeID
	Form    groupForm
}

func (m *groupOpen) code(c *fields) {
	c.U64(&m.Number)
	c.nodes(&m.Members, maxMembers)
	block := uint32(m.Form.BlockBytes)
	c.U32(&block)
	c.U8((*uint8)(&m.Form.Algorithm))
	if c.Reading() {
		m.Form.BlockBytes = int64(block)
	}
	if c.OK() && (len(m.Members) < 2 || block == 0 || block > maxSmallBytes) {
		c.Fail("group of %d members, blocks of %d bytes", len(m.Members), block)
	}
	c.V64(&m.Form.SendRate)
	c.V64((*uint64)(&m.Form.Priority))
	if rate := m.Form.SendRate; c.OK() && (m.Form.Priority > meta.PriorityHigh || rate != 0 && rate < meta.SendRateMin) {
		c.Fail("priority %d, at most %d bytes a second", m.Form.Priority, rate)
	}
	if m.Form.Algorithm != schedule.Hybrid || !c.OK() {
		return
	}
	if c.Reading() {
		m.Form.Racks = make([]int, len(m.Members))
	}
	for i := range m.Form.Racks {
		c.Int(&m.Form.Racks[i], maxMembers-1)
	}
}

func (m *groupOpen) encode() []byte { return encode(m, 32+4*len(m.Members)) }

func decodeGroupOpen(b []byte) (groupOpen, error) { return decode[groupOpen](b) }

// groupAddresses carries fabric addresses by rank: in the answer to KindGroup, the addresses of a member's end; in
// KindConnect, the addresses of its neighbours for it. They are secrets.
type groupAddresses struct {
	Number  uint64
	Refused refusal // in the answer: why there is no group
	ByRank  map[int][]byte
}

func (m *groupAddresses) code(c *fields) {
	c.U64(&m.Number)
	m.Refused.code(c)
	coder.Map(&c.Coder, &m.ByRank, c.Count(len(m.ByRank), maxNeighbours, 2), func(rank *int, address *[]byte) {
		c.Int(rank, maxMembers-1)
		c.View(address, maxAddressBytes)
	})
}

func (m *groupAddresses) encode() []byte {
	return encode(m, 32+len(m.Refused.Text)+len(m.ByRank)*(maxAddressBytes+8))
}

func decodeGroupAddresses(b []byte) (groupAddresses, error) { return decode[groupAddresses](b) }

// groupEnd names a group, to be closed or, with Abort, to be dropped at once.
type groupEnd struct {
	Number uint64
	Abort  bool
}

func (m *groupEnd) code(c *fields) {
	c.U64(&m.Number)
	c.Flag(&m.Abort)
}

func (m *groupEnd) encode() []byte { return encode(m, 16) }

func decodeGroupEnd(b []byte) (groupEnd, error) { return decode[groupEnd](b) }

// encodeOutcome answers messages that need no more than yes or a reason why not.
func encodeOutcome(refused refusal) []byte { return encode(&refused, 8+len(refused.Text)) }

func decodeOutcome(b []byte) (refusal, error) { return decode[refusal](b) }
