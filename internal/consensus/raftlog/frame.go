package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

const (
	frameMagic    = 0x314c4652 // "RFL1"
	headerBytes   = 32
	frameAlign    = 8
	sectorBytes   = 512
	maxFrameBytes = 256 << 20
	maxConfIDs    = 1024

	kindHead  = 1
	kindBatch = 2
)

// Sections of a frame's payload.
const (
	sectionIdentity  = 1
	sectionHard      = 2
	sectionBase      = 3
	sectionReset     = 4
	sectionIntent    = 5
	sectionEntry     = 6
	sectionPrevFrame = 7
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the head of a frame, decoded.
type header struct {
	kind    uint8
	length  uint32
	payload uint32 // CRC32C
	number  uint64
	segment uint32
}

func (h header) frameBytes() int64 { return align(headerBytes + int64(h.length)) }

func align(n int64) int64 { return (n + frameAlign - 1) &^ (frameAlign - 1) }

// appendFrame appends a whole frame to b.
func appendFrame(b []byte, kind uint8, segment uint32, number uint64, payload []byte) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, frameMagic)
	b = append(b, kind, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, castagnoli))
	b = binary.LittleEndian.AppendUint64(b, number)
	b = binary.LittleEndian.AppendUint32(b, segment)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:start+28], castagnoli))
	b = append(b, payload...)
	for (len(b)-start)%frameAlign != 0 {
		b = append(b, 0)
	}
	return b
}

var errHeader = errors.New("no frame header")

func decodeHeader(b []byte) (header, error) {
	if len(b) < headerBytes || binary.LittleEndian.Uint32(b) != frameMagic {
		return header{}, errHeader
	}
	if crc32.Checksum(b[:28], castagnoli) != binary.LittleEndian.Uint32(b[28:]) {
		return header{}, errHeader
	}
	h := header{
		kind:    b[4],
		length:  binary.LittleEndian.Uint32(b[8:]),
		payload: binary.LittleEndian.Uint32(b[12:]),
		number:  binary.LittleEndian.Uint64(b[16:]),
		segment: binary.LittleEndian.Uint32(b[24:]),
	}
	if h.length > maxFrameBytes {
		return header{}, errHeader
	}
	return h, nil
}

// content is a frame's payload, decoded.
type content struct {
	identity  *Identity
	prevFrame uint64
	hard      *raftpb.HardState
	base      *Base
	reset     bool
	intent    *Base
	entries   []*raftpb.Entry
}

func appendSection(b []byte, kind uint8, body []byte) []byte {
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(len(body)))
	return append(b, body...)
}

func (c *content) append(b []byte) ([]byte, error) {
	if c.identity != nil {
		b = appendSection(b, sectionIdentity, encodeIdentity(c.identity))
		b = appendSection(b, sectionPrevFrame, binary.LittleEndian.AppendUint64(nil, c.prevFrame))
	}
	if c.hard != nil {
		body := binary.LittleEndian.AppendUint64(nil, c.hard.GetTerm())
		body = binary.LittleEndian.AppendUint64(body, c.hard.GetVote())
		b = appendSection(b, sectionHard, binary.LittleEndian.AppendUint64(body, c.hard.GetCommit()))
	}
	var err error
	if c.reset {
		b = appendSection(b, sectionReset, nil)
	}
	if b, err = appendBase(b, sectionBase, c.base); err != nil {
		return nil, err
	}
	if b, err = appendBase(b, sectionIntent, c.intent); err != nil {
		return nil, err
	}
	for _, e := range c.entries {
		b = appendEntry(b, e)
	}
	return b, nil
}

func appendBase(b []byte, kind uint8, base *Base) ([]byte, error) {
	if base == nil {
		return b, nil
	}
	body := binary.LittleEndian.AppendUint64(nil, base.Index)
	body = binary.LittleEndian.AppendUint64(body, base.Term)
	body = binary.LittleEndian.AppendUint64(body, uint64(base.Time))
	conf := base.Conf
	if conf == nil {
		conf = &raftpb.ConfState{}
	}
	body, err := proto.MarshalOptions{}.MarshalAppend(body, conf)
	if err != nil {
		return nil, fmt.Errorf("raftlog: encode voters: %w", err)
	}
	return appendSection(b, kind, body), nil
}

func appendEntry(b []byte, e *raftpb.Entry) []byte {
	b = append(b, sectionEntry)
	b = binary.AppendUvarint(b, uint64(17+len(e.GetData())))
	b = append(b, byte(e.GetType()))
	b = binary.LittleEndian.AppendUint64(b, e.GetTerm())
	b = binary.LittleEndian.AppendUint64(b, e.GetIndex())
	return append(b, e.GetData()...)
}

func encodeIdentity(id *Identity) []byte {
	b := append([]byte(nil), id.Cluster[:]...)
	b = append(b, id.Node[:]...)
	b = append(b, id.Store[:]...)
	b = binary.LittleEndian.AppendUint64(b, id.Generation)
	return binary.LittleEndian.AppendUint64(b, id.ID)
}

// decodeContent decodes a payload; the entries' data point into b.
func decodeContent(b []byte) (*content, error) {
	c := &content{}
	for len(b) > 0 {
		kind := b[0]
		n, used := binary.Uvarint(b[1:])
		if used <= 0 || n > uint64(len(b)-1-used) {
			return nil, errors.New("section runs over the end of its frame")
		}
		body := b[1+used : 1+used+int(n)]
		if err := c.section(kind, body); err != nil {
			return nil, err
		}
		b = b[1+used+int(n):]
	}
	return c, nil
}

func (c *content) section(kind uint8, b []byte) (err error) {
	switch kind {
	case sectionIdentity:
		c.identity, err = decodeIdentity(b)
	case sectionPrevFrame:
		if len(b) != 8 {
			return errors.New("bad length of previous frame number")
		}
		c.prevFrame = binary.LittleEndian.Uint64(b)
	case sectionHard:
		if len(b) != 24 {
			return errors.New("bad length of hard state")
		}
		c.hard = &raftpb.HardState{
			Term:   new(binary.LittleEndian.Uint64(b)),
			Vote:   new(binary.LittleEndian.Uint64(b[8:])),
			Commit: new(binary.LittleEndian.Uint64(b[16:])),
		}
	case sectionReset:
		c.reset = true
	case sectionBase:
		c.base, err = decodeBase(b)
	case sectionIntent:
		c.intent, err = decodeBase(b)
	case sectionEntry:
		var e *raftpb.Entry
		e, err = decodeEntry(b)
		c.entries = append(c.entries, e)
	default:
		err = fmt.Errorf("unknown section %d: written by a newer version", kind)
	}
	return err
}

func decodeIdentity(b []byte) (*Identity, error) {
	if len(b) != 64 {
		return nil, errors.New("bad length of identity")
	}
	id := &Identity{Generation: binary.LittleEndian.Uint64(b[48:]), ID: binary.LittleEndian.Uint64(b[56:])}
	copy(id.Cluster[:], b)
	copy(id.Node[:], b[16:])
	copy(id.Store[:], b[32:])
	return id, nil
}

func decodeBase(b []byte) (*Base, error) {
	if len(b) < 24 {
		return nil, errors.New("bad length of base")
	}
	base := &Base{Index: binary.LittleEndian.Uint64(b), Term: binary.LittleEndian.Uint64(b[8:]),
		Time: int64(binary.LittleEndian.Uint64(b[16:])), Conf: &raftpb.ConfState{}}
	if err := proto.Unmarshal(b[24:], base.Conf); err != nil {
		return nil, fmt.Errorf("voters of base: %w", err)
	}
	if n := len(base.Conf.Voters) + len(base.Conf.Learners) + len(base.Conf.VotersOutgoing) + len(base.Conf.LearnersNext); n > maxConfIDs {
		return nil, fmt.Errorf("voters of base: %d ids", n)
	}
	return base, nil
}

func decodeEntry(b []byte) (*raftpb.Entry, error) {
	if len(b) < 17 {
		return nil, errors.New("bad length of entry")
	}
	if b[0] > byte(raftpb.EntryConfChangeV2) {
		return nil, fmt.Errorf("unknown entry type %d", b[0])
	}
	e := &raftpb.Entry{
		Type:  raftpb.EntryType(b[0]).Enum(),
		Term:  new(binary.LittleEndian.Uint64(b[1:])),
		Index: new(binary.LittleEndian.Uint64(b[9:])),
	}
	if len(b) > 17 {
		e.Data = b[17:len(b):len(b)]
	}
	return e, nil
}
