package replicate

import (
	"errors"
	"fmt"
	"maps"
	"slices"

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

// asError is a refusal as the one who asked sees it, nil if it is none: it matches errRefused, and rdmc.ErrMemory
// where it is for that.
func (f refusal) asError(node meta.NodeID, kind Kind) error {
	switch f.Code {
	case notRefused:
		return nil
	case refusedMemory:
		return fmt.Errorf("node %d %w %v: %w: %s", node, errRefused, kind, rdmc.ErrMemory, f.Text)
	}
	return fmt.Errorf("node %d %w %v: %s", node, errRefused, kind, f.Text)
}

func (f refusal) put(w *writer) {
	w.u8(uint8(f.Code))
	w.str(clipText(f.Text))
}

func (f *refusal) get(r *reader) {
	f.Code, f.Text = refusalCode(r.u8()), r.str(maxTextBytes)
	if r.err == nil && (f.Code > refusedMemory || (f.Code == notRefused) != (f.Text == "")) {
		r.fail("refusal %d", f.Code)
	}
}

// groupOpen asks a member to make its end of a group. Its rank is its place in Members, the root first.
type groupOpen struct {
	Number  uint64
	Members []meta.NodeID
	Form    groupForm
}

func (m *groupOpen) encode() []byte {
	w := writer{make([]byte, 0, 32+4*len(m.Members))}
	w.u8(wireVersion)
	w.u64(m.Number)
	w.nodes(m.Members)
	w.u32(uint32(m.Form.BlockBytes))
	w.u8(uint8(m.Form.Algorithm))
	for _, rack := range m.Form.Racks {
		w.varint(uint64(rack))
	}
	return w.b
}

func decodeGroupOpen(b []byte) (m groupOpen, err error) {
	r := open(b)
	m.Number, m.Members = r.u64(), r.nodes(maxMembers)
	m.Form.BlockBytes, m.Form.Algorithm = int64(r.u32()), schedule.Algorithm(r.u8())
	if r.err == nil && (len(m.Members) < 2 || m.Form.BlockBytes == 0 || m.Form.BlockBytes > maxSmallBytes) {
		r.fail("group of %d members, blocks of %d bytes", len(m.Members), m.Form.BlockBytes)
	}
	if m.Form.Algorithm != schedule.Hybrid || r.err != nil {
		return m, r.done()
	}
	for range m.Members {
		rack := r.varint()
		if r.err == nil && rack >= maxMembers {
			r.fail("rack %d", rack)
		}
		if r.err != nil {
			break
		}
		m.Form.Racks = append(m.Form.Racks, int(rack))
	}
	return m, r.done()
}

// groupAddresses carries fabric addresses by rank: those of a member's end in the answer to KindGroup, those
// of its neighbours for it in KindConnect. They are secrets.
type groupAddresses struct {
	Number  uint64
	Refused refusal // in the answer: why there is no group
	ByRank  map[int][]byte
}

func (m *groupAddresses) encode() []byte {
	w := writer{make([]byte, 0, 32+len(m.Refused.Text)+len(m.ByRank)*(maxAddressBytes+8))}
	w.u8(wireVersion)
	w.u64(m.Number)
	m.Refused.put(&w)
	w.varint(uint64(len(m.ByRank)))
	for _, rank := range slices.Sorted(maps.Keys(m.ByRank)) {
		w.varint(uint64(rank))
		w.bytes(m.ByRank[rank])
	}
	return w.b
}

func decodeGroupAddresses(b []byte) (m groupAddresses, err error) {
	r := open(b)
	m.Number = r.u64()
	m.Refused.get(r)
	n := r.count(maxNeighbours, 2)
	m.ByRank = make(map[int][]byte, n)
	last := -1
	for range n {
		rank := r.varint()
		addr := r.bytes(maxAddressBytes)
		if r.err == nil && (rank >= maxMembers || int(rank) <= last) {
			r.fail("rank %d", rank)
		}
		if r.err != nil {
			break
		}
		last = int(rank)
		m.ByRank[last] = addr
	}
	return m, r.done()
}

// groupEnd names a group, to be closed or, with Abort, to be dropped at once.
type groupEnd struct {
	Number uint64
	Abort  bool
}

func (m *groupEnd) encode() []byte {
	w := writer{make([]byte, 0, 16)}
	w.u8(wireVersion)
	w.u64(m.Number)
	w.flag(m.Abort)
	return w.b
}

func decodeGroupEnd(b []byte) (m groupEnd, err error) {
	r := open(b)
	m.Number, m.Abort = r.u64(), r.flag()
	return m, r.done()
}

// encodeOutcome answers messages that need no more than yes or a reason why not.
func encodeOutcome(refused refusal) []byte {
	w := writer{make([]byte, 0, 8+len(refused.Text))}
	w.u8(wireVersion)
	refused.put(&w)
	return w.b
}

func decodeOutcome(b []byte) (refused refusal, err error) {
	r := open(b)
	refused.get(r)
	return refused, r.done()
}
