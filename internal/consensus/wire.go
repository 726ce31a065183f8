package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// A connection carries frames: u32 length of the body, u8 type, 3 zero bytes, u32 CRC32C of type and body, body.
// All integers are little-endian.
const (
	wireVersion     = 3
	frameHeader     = 12
	maxFrame        = 16 << 20
	maxHello        = 4 << 10
	snapshotChunk   = 1 << 20
	maxBatchBytes   = 1 << 20
	maxReports      = 8192
	maxBarrierNodes = 8192
)

// Frame types.
const (
	frameHello      = 1  // dialler: who, and what the connection is for
	frameWelcome    = 2  // acceptor: empty, or why not
	framePing       = 3  // nothing to say
	frameRaft       = 10 // one raft message
	framePropose    = 11 // proposals forwarded to the leader
	frameNack       = 12 // a forwarded proposal was not taken
	frameRequest    = 13 // a call
	frameResponse   = 14 // its answer
	frameReports    = 15 // progress of nodes
	frameWant       = 16 // progress up to an index is wanted at once
	frameFollow     = 20 // follower: send entries from this index; proof of what it has
	frameEntries    = 21 // committed entries
	frameState      = 22 // leader, term, commit, voters
	frameTruncated  = 23 // the index asked for is not in the log any more
	frameDiverged   = 24 // the follower has another history: why
	frameSnapBegin  = 31 // what the snapshot holds
	frameSnapChunk  = 32
	frameSnapEnd    = 33 // length of all chunks
	frameSnapFailed = 34
)

// What a connection is for.
const (
	purposePeer   = 1 // raft messages, forwarded proposals, calls, reports
	purposeFollow = 2 // a follow stream
	purposeBulk   = 3 // one snapshot
)

var (
	errFrame   = errors.New("consensus: bad frame")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// appendFrame appends a frame to b; the body is what fill appends.
func appendFrame(b []byte, kind uint8, fill func([]byte) []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, frameHeader)...)
	b[start+4] = kind
	if fill != nil {
		b = fill(b)
	}
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start-frameHeader))
	sum := crc32.Update(crc32.Checksum(b[start+4:start+8], castagnoli), castagnoli, b[start+frameHeader:])
	binary.LittleEndian.PutUint32(b[start+8:], sum)
	return b
}

// readFrame reads one frame whose body is at most limit bytes. The body belongs to the caller.
func readFrame(r io.Reader, limit uint32) (kind uint8, body []byte, err error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > limit {
		return 0, nil, fmt.Errorf("%w: %d bytes", errFrame, n)
	}
	body = make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, fmt.Errorf("consensus: read frame: %w", err)
	}
	sum := crc32.Update(crc32.Checksum(head[4:8], castagnoli), castagnoli, body)
	if sum != binary.LittleEndian.Uint32(head[8:]) {
		return 0, nil, fmt.Errorf("%w: checksum", errFrame)
	}
	return head[4], body, nil
}

// reader takes values off a body; the first shortage makes err stick.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.b) {
		r.err = fmt.Errorf("%w: too short", errFrame)
		return nil
	}
	part := r.b[:n:n]
	r.b = r.b[n:]
	return part
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) bytes() []byte { return r.take(int(min(r.u32(), math.MaxInt32))) }

// count reads a number of items that take at least size bytes each.
func (r *reader) count(size, limit int) int {
	n := int(min(r.u32(), math.MaxInt32))
	if n > limit || n*size > len(r.b) {
		r.err = fmt.Errorf("%w: %d items", errFrame, n)
		return 0
	}
	return n
}

func (r *reader) done() error {
	if r.err == nil && len(r.b) > 0 {
		r.err = fmt.Errorf("%w: %d bytes too many", errFrame, len(r.b))
	}
	return r.err
}

func appendBytes(b, p []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(p))), p...)
}

func appendU64s(b []byte, list ...uint64) []byte {
	for _, v := range list {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func appendIDs(b []byte, ids []ID) []byte {
	return appendU64s(binary.LittleEndian.AppendUint32(b, uint32(len(ids))), ids...)
}

func (r *reader) ids(limit int) []ID {
	n := r.count(8, limit)
	var ids []ID
	for range n {
		ids = append(ids, r.u64())
	}
	return ids
}

func appendConf(b []byte, c *raftpb.ConfState) []byte {
	if c == nil {
		return appendBytes(b, nil)
	}
	body, err := proto.Marshal(c)
	if err != nil {
		panic("consensus: encode configuration: " + err.Error()) // tidy: of plain numbers: can't fail
	}
	return appendBytes(b, body)
}

func (r *reader) conf() *raftpb.ConfState {
	body := r.bytes()
	if len(body) == 0 {
		return nil
	}
	c := &raftpb.ConfState{}
	if err := proto.Unmarshal(body, c); err != nil {
		r.err = fmt.Errorf("%w: configuration: %w", errFrame, err)
		return nil
	}
	if err := checkConf(c); err != nil {
		r.err = err
		return nil
	}
	return c
}

// hello opens a connection.
type hello struct {
	purpose    uint8
	cluster    [16]byte
	generation uint64
	from, to   ID
}

func (h *hello) append(b []byte) []byte {
	b = append(b, "rdmcraft"...)
	b = append(b, wireVersion, h.purpose)
	b = append(b, h.cluster[:]...)
	return appendU64s(b, h.generation, h.from, h.to)
}

func decodeHello(b []byte) (hello, error) {
	r := reader{b: b}
	var h hello
	if string(r.take(8)) != "rdmcraft" {
		return h, fmt.Errorf("%w: not a hello", errFrame)
	}
	if v := r.u8(); v != wireVersion {
		return h, fmt.Errorf("%w: protocol version %d, this node speaks %d", errFrame, v, wireVersion)
	}
	h.purpose = r.u8()
	copy(h.cluster[:], r.take(16))
	h.generation, h.from, h.to = r.u64(), r.u64(), r.u64()
	return h, r.done()
}

// forward is a proposal on its way to the leader; the origin is the peer of the connection.
func appendForward(b []byte, p *Proposal) []byte {
	b = append(b, p.Flags)
	b = appendU64s(b, p.Run, p.Seq)
	return append(b, p.Data...)
}

func decodeForward(b []byte, origin ID) (Proposal, error) {
	r := reader{b: b}
	p := Proposal{Origin: origin, Flags: r.u8(), Run: r.u64(), Seq: r.u64()}
	p.Data = r.b
	return p, r.err
}

// Reasons of a nack.
const (
	nackNotLeader = 1
	nackReadOnly  = 2
	nackDropped   = 3
)

type nack struct {
	run, seq uint64
	reason   uint8
	text     string
}

func (n *nack) append(b []byte) []byte {
	return append(append(appendU64s(b, n.run, n.seq), n.reason), n.text...)
}

func decodeNack(b []byte) (nack, error) {
	r := reader{b: b}
	n := nack{run: r.u64(), seq: r.u64(), reason: r.u8()}
	n.text = string(r.b[:min(len(r.b), 1000)])
	return n, r.err
}

// Calls.
const (
	callBarrier   = 1
	callReadIndex = 2
	callVoters    = 3
	callState     = 4
	callClock     = 5
)

type call struct {
	id   uint64
	op   uint8
	body []byte
}

func (c *call) append(b []byte) []byte {
	return append(append(appendU64s(b, c.id), c.op), c.body...)
}

func decodeCall(b []byte) (call, error) {
	r := reader{b: b}
	c := call{id: r.u64(), op: r.u8()}
	c.body = r.b
	return c, r.err
}

// report is the progress of one node.
type report struct {
	id                       ID
	applied, synced, visible uint64
	flags                    uint8
	ageMillis                uint32 // since the sender heard of the node
}

const (
	reportReadOnly = 1
	reportUrgent   = 2
	reportBytes    = 8*4 + 1 + 4
)

func appendReports(b []byte, list []report) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
	for _, p := range list {
		b = append(appendU64s(b, p.id, p.applied, p.synced, p.visible), p.flags)
		b = binary.LittleEndian.AppendUint32(b, p.ageMillis)
	}
	return b
}

func decodeReports(b []byte) ([]report, error) {
	r := reader{b: b}
	n := r.count(reportBytes, maxReports)
	list := make([]report, 0, n)
	for range n {
		list = append(list, report{id: r.u64(), applied: r.u64(), synced: r.u64(), visible: r.u64(), flags: r.u8(), ageMillis: r.u32()})
	}
	return list, r.done()
}

// clusterState is what a voter tells its followers.
type clusterState struct {
	leader       ID
	term, commit uint64
	confIndex    uint64
	conf         *raftpb.ConfState
}

func (s *clusterState) append(b []byte) []byte {
	return appendConf(appendU64s(b, s.leader, s.term, s.commit, s.confIndex), s.conf)
}

func decodeState(b []byte) (clusterState, error) {
	r := reader{b: b}
	s := clusterState{leader: r.u64(), term: r.u64(), commit: r.u64(), confIndex: r.u64(), conf: r.conf()}
	return s, r.done()
}

// Entries of a follow stream.
func appendEntries(b []byte, list []Committed) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
	for i := range list {
		e := &list[i]
		b = append(appendU64s(b, e.Index, e.Term), byte(e.Type))
		b = appendConf(b, e.Conf)
		b = appendBytes(b, e.Raw)
	}
	return b
}

func decodeEntries(b []byte) ([]Committed, error) {
	r := reader{b: b}
	n := r.count(8+8+1+4+4, 1<<20)
	list := make([]Committed, 0, n)
	for range n {
		e := Committed{Index: r.u64(), Term: r.u64(), Type: raftpb.EntryType(r.u8()), Conf: r.conf()}
		if e.Raw = r.bytes(); len(e.Raw) == 0 {
			e.Raw = nil
		}
		if r.err != nil {
			return nil, r.err
		}
		if len(list) > 0 && e.Index != list[len(list)-1].Index+1 || e.Index == 0 || e.Type > raftpb.EntryConfChangeV2 {
			return nil, fmt.Errorf("%w: entry %d", errFrame, e.Index)
		}
		if e.Type == raftpb.EntryNormal && len(e.Raw) > 0 {
			if _, _, err := openEnvelope(e.Raw); err != nil {
				return nil, err
			}
		}
		list = append(list, e)
	}
	return list, r.done()
}

// snapHead says what a snapshot holds. With term 0 neither the term nor conf is known: only who has the entry in its
// own log can use that, see rebuilder.take.
type snapHead struct {
	index, term uint64
	timeNanos   int64
	conf        *raftpb.ConfState
}

func (s *snapHead) append(b []byte) []byte {
	return appendConf(appendU64s(b, s.index, s.term, uint64(s.timeNanos)), s.conf)
}

func decodeSnapHead(b []byte) (snapHead, error) {
	r := reader{b: b}
	s := snapHead{index: r.u64(), term: r.u64(), timeNanos: int64(r.u64()), conf: r.conf()}
	if err := r.done(); err != nil {
		return s, err
	}
	if s.index == 0 || s.term > 0 && s.conf == nil {
		return s, fmt.Errorf("%w: snapshot at %d of term %d", errFrame, s.index, s.term)
	}
	return s, nil
}
