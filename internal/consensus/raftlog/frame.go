package raftlog

import (
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

const (
	frameMagic    = "RFL1"
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
	sectionMarks     = 8
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

func (h *header) code(c *coder.Coder) {
	mark := c.Mark()
	c.Magic(frameMagic)
	c.U8(&h.kind)
	c.Zeros(3)
	c.U32(&h.length)
	c.U32(&h.payload)
	c.U64(&h.number)
	c.U32(&h.segment)
	c.Sum(mark)
}

// appendFrame appends a whole frame to b.
func appendFrame(b []byte, kind uint8, segment uint32, number uint64, payload []byte) []byte {
	h := header{kind: kind, length: uint32(len(payload)), payload: crc32.Checksum(payload, castagnoli), number: number,
		segment: segment}
	c := coder.Writer(b, coder.Little)
	h.code(&c)
	c.Fixed(payload)
	c.Pad(int(h.frameBytes()) - headerBytes - len(payload))
	return c.Written()
}

var errHeader = errors.New("no frame header")

func decodeHeader(b []byte) (h header, err error) {
	c := coder.Reader(b[:min(len(b), headerBytes)], coder.Little)
	if h.code(&c); c.Finish() != nil || h.length > maxFrameBytes {
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
	marks     []Mark
	entries   []*raftpb.Entry
}

const markBytes = 3 * 8

func codeMark(c *coder.Coder, k *Mark) {
	c.U64(&k.ID)
	c.U64(&k.Index)
	c.U64(&k.Term)
}

// hardState is raft's, in the form of a section.
type hardState struct{ term, vote, commit uint64 }

func (h *hardState) code(c *coder.Coder) {
	c.U64(&h.term)
	c.U64(&h.vote)
	c.U64(&h.commit)
}

func codeIdentity(c *coder.Coder, id *Identity) {
	c.Fixed(id.Cluster[:])
	c.Fixed(id.Node[:])
	c.Fixed(id.Store[:])
	c.U64(&id.Generation)
	c.U64(&id.ID)
}

// codeBase lists the fields of a base; conf is its configuration as protobuf.
func codeBase(c *coder.Coder, b *Base, conf *[]byte) {
	c.U64(&b.Index)
	c.U64(&b.Term)
	c.I64(&b.Time)
	c.Rest(conf, maxFrameBytes)
}

// entry is raft's, in the form of a section.
type entry struct {
	kind        uint8
	term, index uint64
	data        []byte
}

const entryBytes = 1 + 8 + 8 // without the data

func (e *entry) code(c *coder.Coder) {
	c.U8(&e.kind)
	c.U64(&e.term)
	c.U64(&e.index)
	c.Rest(&e.data, maxFrameBytes)
}

// codeSection is the kind of a section and its length, whose bytes follow.
func codeSection(c *coder.Coder, kind *uint8, n int) int {
	c.U8(kind)
	return c.Count(n, maxFrameBytes, 1)
}

func (c *content) append(b []byte) ([]byte, error) {
	to := coder.Writer(b, coder.Little)
	section := func(kind uint8, n int) { codeSection(&to, &kind, n) }
	if c.identity != nil {
		section(sectionIdentity, 3*16+2*8)
		codeIdentity(&to, c.identity)
		section(sectionPrevFrame, 8)
		to.U64(&c.prevFrame)
	}
	if c.hard != nil {
		section(sectionHard, 3*8)
		hard := hardState{c.hard.GetTerm(), c.hard.GetVote(), c.hard.GetCommit()}
		hard.code(&to)
	}
	if c.reset {
		section(sectionReset, 0)
	}
	for _, base := range []struct {
		kind uint8
		at   *Base
	}{{sectionBase, c.base}, {sectionIntent, c.intent}} {
		if base.at == nil {
			continue
		}
		conf, err := proto.Marshal(base.at.Conf)
		if err != nil {
			return nil, fmt.Errorf("raftlog: encode voters: %w", err)
		}
		section(base.kind, 3*8+len(conf))
		codeBase(&to, base.at, &conf)
	}
	if c.marks != nil {
		section(sectionMarks, markBytes*len(c.marks))
		for i := range c.marks {
			codeMark(&to, &c.marks[i])
		}
	}
	for _, e := range c.entries {
		section(sectionEntry, entryBytes+len(e.GetData()))
		entry := entry{byte(e.GetType()), e.GetTerm(), e.GetIndex(), e.GetData()}
		entry.code(&to)
	}
	return to.Written(), nil
}

// decodeContent decodes a payload; the entries' data point into b.
func decodeContent(b []byte) (*content, error) {
	c := &content{}
	from := coder.Reader(b, coder.Little)
	for from.Left() > 0 {
		var kind uint8
		n := codeSection(&from, &kind, 0)
		at := from.Mark()
		if from.Pad(n); !from.OK() {
			return nil, fmt.Errorf("section runs over the end of its frame: %w", from.Err())
		}
		if err := c.section(kind, b[at:from.Mark()]); err != nil {
			return nil, fmt.Errorf("section %d: %w", kind, err)
		}
	}
	return c, from.Finish()
}

func (c *content) section(kind uint8, b []byte) (err error) {
	from := coder.Reader(b, coder.Little)
	switch kind {
	case sectionIdentity:
		c.identity = &Identity{}
		codeIdentity(&from, c.identity)
	case sectionPrevFrame:
		from.U64(&c.prevFrame)
	case sectionHard:
		var h hardState
		h.code(&from)
		c.hard = &raftpb.HardState{Term: &h.term, Vote: &h.vote, Commit: &h.commit}
	case sectionReset:
		c.reset = true
	case sectionBase:
		c.base, err = decodeBase(&from)
	case sectionIntent:
		c.intent, err = decodeBase(&from)
	case sectionMarks:
		c.marks = make([]Mark, len(b)/markBytes)
		for i := range c.marks {
			codeMark(&from, &c.marks[i])
		}
	case sectionEntry:
		c.entries = append(c.entries, decodeEntry(&from))
	default:
		return errors.New("unknown: written by a newer version")
	}
	return errors.Join(err, from.Finish())
}

func decodeBase(from *coder.Coder) (*Base, error) {
	base, conf := &Base{Conf: &raftpb.ConfState{}}, []byte(nil)
	codeBase(from, base, &conf)
	if err := proto.Unmarshal(conf, base.Conf); err != nil {
		return nil, fmt.Errorf("voters of base: %w", err)
	}
	if n := len(base.Conf.Voters) + len(base.Conf.Learners) + len(base.Conf.VotersOutgoing) +
		len(base.Conf.LearnersNext); n > maxConfIDs {
		return nil, fmt.Errorf("voters of base: %d ids", n)
	}
	return base, nil
}

func decodeEntry(from *coder.Coder) *raftpb.Entry {
	var e entry
	if e.code(from); e.kind > byte(raftpb.EntryConfChangeV2) {
		from.Fail("unknown entry type %d", e.kind)
	}
	return &raftpb.Entry{Type: raftpb.EntryType(e.kind).Enum(), Term: &e.term, Index: &e.index, Data: e.data}
}
