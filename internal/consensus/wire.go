package consensus

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// A connection carries frames: u32 length of the body, u8 type, 3 zero bytes, u32 CRC32C of type and body, body.
// All integers are little-endian, and lengths are u32.
const (
	wireVersion     = 5
	frameHeader     = 12
	maxFrame        = 16 << 20
	maxHello        = 4 << 10
	snapshotChunk   = 1 << 20
	maxBatchBytes   = 1 << 20
	maxReports      = 8192
	maxBarrierNodes = 8192
	maxEntries      = 1 << 20 // of a frame
	maxNackText     = 1000
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
	frameMarks      = 17 // what members are known to have had
	frameFollow     = 20 // follower: send entries from this index; proof of what it has
	frameEntries    = 21 // committed entries
	frameState      = 22 // leader, term, commit, voters
	frameTruncated  = 23 // the index asked for is not in the log any more
	frameDiverged   = 24 // sender and receiver have different histories: why
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

// head is what stands before the body of a frame.
type head struct {
	length uint32
	kind   uint8
	sum    uint32
}

func (h *head) code(c *coder.Coder) {
	c.U32(&h.length)
	c.U8(&h.kind)
	c.Zeros(3)
	c.U32(&h.sum)
}

// frameSum is the checksum of a frame whose head is b.
func frameSum(b, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[4:8], castagnoli), castagnoli, body)
}

// appendFrame appends a frame to b; the body is what fill appends.
func appendFrame(b []byte, kind uint8, fill func([]byte) []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, frameHeader)...)
	if fill != nil {
		b = fill(b)
	}
	b[start+4] = kind
	body := b[start+frameHeader:]
	h := head{uint32(len(body)), kind, frameSum(b[start:], body)}
	c := coder.Writer(b[start:start:start+frameHeader], coder.Little)
	h.code(&c)
	return b
}

// readFrame reads one frame whose body is at most limit bytes. The body belongs to the caller.
func readFrame(r io.Reader, limit uint32) (kind uint8, body []byte, err error) {
	var raw [frameHeader]byte
	if _, err := io.ReadFull(r, raw[:]); err != nil {
		return 0, nil, err
	}
	var h head
	c := coder.Reader(raw[:], coder.Little)
	if h.code(&c); c.Finish() != nil {
		return 0, nil, fmt.Errorf("%w: head: %w", errFrame, c.Err())
	}
	if h.length > limit {
		return 0, nil, fmt.Errorf("%w: %d bytes", errFrame, h.length)
	}
	body = make([]byte, h.length)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, fmt.Errorf("consensus: read frame: %w", err)
	}
	if frameSum(raw[:], body) != h.sum {
		return 0, nil, fmt.Errorf("%w: checksum", errFrame)
	}
	return h.kind, body, nil
}

// message is the body of a frame or of a call. One method of each kind lists its fields.
type message interface{ code(*fields) }

// fields is a coder that knows raft's types. What is read of bytes is a part of the body.
type fields struct{ coder.Coder }

// appendMessage appends a body to b.
func appendBody(b []byte, m message) []byte {
	c := fields{coder.Writer(b, coder.Little)}
	m.code(&c)
	return c.Written()
}

// decode reads a body.
func decode[T any, P interface {
	*T
	message
}](b []byte) (m T, err error) {
	c := fields{coder.Reader(b, coder.Little)}
	P(&m).code(&c)
	if err = c.Finish(); err != nil {
		err = fmt.Errorf("%w: %w", errFrame, err)
	}
	return m, err
}

// number is a body that is one number.
type number uint64

func (n *number) code(c *fields) { c.U64((*uint64)(n)) }

func appendNumber(b []byte, v uint64) []byte { return appendBody(b, (*number)(&v)) }

func (c *fields) ids(p *[]ID, max int) {
	for i := range coder.Slice32(&c.Coder, p, max, 8) {
		c.U64(&(*p)[i])
	}
}

// conf is a configuration as protobuf, with its length; nil is empty.
func (c *fields) conf(p **raftpb.ConfState) {
	if !c.Reading() {
		body := encodeConf(*p)
		c.View32(&body, maxFrame)
		return
	}
	var body []byte
	c.View32(&body, maxFrame)
	*p = nil
	if len(body) == 0 {
		return
	}
	conf := &raftpb.ConfState{}
	if err := proto.Unmarshal(body, conf); err != nil {
		c.Fail("configuration: %v", err)
	} else if err := core.CheckConf(conf); err != nil {
		c.Fail("%v", err)
	} else {
		*p = conf
	}
}

func encodeConf(c *raftpb.ConfState) []byte {
	if c == nil {
		return nil
	}
	body, err := proto.Marshal(c)
	if err != nil {
		panic("consensus: encode configuration: " + err.Error()) // tidy: of plain numbers: can't fail
	}
	return body
}

// hello opens a connection.
type hello struct {
	purpose    uint8
	cluster    [16]byte
	generation uint64
	from, to   ID
}

func (h *hello) code(c *fields) {
	c.Magic("rdmcraft")
	c.Same8("protocol version", wireVersion)
	c.U8(&h.purpose)
	c.Fixed(h.cluster[:])
	c.U64(&h.generation)
	c.U64(&h.from)
	c.U64(&h.to)
}

func (h *hello) append(b []byte) []byte { return appendBody(b, h) }

// forward is a proposal on its way to the leader; the origin is the peer of the connection.
type forward core.Proposal

func (p *forward) code(c *fields) {
	c.U8(&p.Flags)
	c.U64(&p.Run)
	c.U64(&p.Seq)
	c.Rest(&p.Data, maxFrame)
}

func appendForward(b []byte, p *core.Proposal) []byte {
	c := fields{coder.Writer(b, coder.Little)}
	(*forward)(p).code(&c)
	return c.Written()
}

func decodeForward(b []byte, origin ID) (core.Proposal, error) {
	p, err := decode[forward](b)
	p.Origin = origin
	return core.Proposal(p), err
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

func (n *nack) code(c *fields) {
	c.U64(&n.run)
	c.U64(&n.seq)
	c.U8(&n.reason)
	c.RestText(&n.text, maxFrame)
	if c.Reading() {
		n.text = n.text[:min(len(n.text), maxNackText)]
	}
}

func (n *nack) append(b []byte) []byte { return appendBody(b, n) }

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

func (a *call) code(c *fields) {
	c.U64(&a.id)
	c.U8(&a.op)
	c.Rest(&a.body, maxFrame)
}

func (a *call) append(b []byte) []byte { return appendBody(b, a) }

// barrierCall is what callBarrier carries; the answer is an idList of the nodes that are behind.
type barrierCall struct {
	index     uint64
	timeoutMs uint64
	flags     uint8
	nodes     []ID
}

// Flags of a barrierCall.
const (
	barrierAnnounced = 1 // the entry at the index asks for reports
	barrierAllUp     = 2 // nodes does not count: all that are up
)

func (b *barrierCall) code(c *fields) {
	c.U64(&b.index)
	c.U64(&b.timeoutMs)
	c.U8(&b.flags)
	c.ids(&b.nodes, maxBarrierNodes)
}

type idList []ID

func (l *idList) code(c *fields) { c.ids((*[]ID)(l), maxBarrierNodes) }

// votersCall is what callVoters carries.
type votersCall struct{ add, remove []ID }

func (v *votersCall) code(c *fields) {
	c.ids(&v.add, core.MaxMembers)
	c.ids(&v.remove, core.MaxMembers)
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

func (p *report) code(c *fields) {
	c.U64(&p.id)
	c.U64(&p.applied)
	c.U64(&p.synced)
	c.U64(&p.visible)
	c.U8(&p.flags)
	c.U32(&p.ageMillis)
}

type reportList []report

func (l *reportList) code(c *fields) {
	for i := range coder.Slice32(&c.Coder, (*[]report)(l), maxReports, reportBytes) {
		(*l)[i].code(c)
	}
}

func appendReports(b []byte, list []report) []byte { return appendBody(b, (*reportList)(&list)) }

// markList is what members are known to have had on stable storage, as one says that is in a term.
type markList struct {
	term uint64
	list []raftlog.Mark
}

func (l *markList) code(c *fields) {
	c.U64(&l.term)
	for i := range coder.Slice32(&c.Coder, &l.list, core.MaxMembers, 3*8) {
		k := &l.list[i]
		c.U64(&k.ID)
		c.U64(&k.Index)
		c.U64(&k.Term)
	}
}

func (l *markList) append(b []byte) []byte { return appendBody(b, l) }

// clusterState is what a voter sends its followers.
type clusterState struct {
	leader       ID
	term, commit uint64
	confIndex    uint64
	conf         *raftpb.ConfState
}

func (s *clusterState) code(c *fields) {
	c.U64(&s.leader)
	c.U64(&s.term)
	c.U64(&s.commit)
	c.U64(&s.confIndex)
	c.conf(&s.conf)
}

func (s *clusterState) append(b []byte) []byte { return appendBody(b, s) }

// followCall asks for entries from an index on.
type followCall struct {
	next  uint64
	proof proof
}

func (f *followCall) code(c *fields) {
	c.U64(&f.next)
	f.proof.code(c)
}

// entryList is what a follow stream sends.
type entryList []core.Committed

func codeCommitted(c *fields, e *core.Committed) {
	kind := uint8(e.Type)
	c.U64(&e.Index)
	c.U64(&e.Term)
	c.U8(&kind)
	c.conf(&e.Conf)
	c.View32(&e.Raw, maxFrame)
	if c.Reading() {
		e.Type = raftpb.EntryType(kind)
	}
}

func (l *entryList) code(c *fields) {
	list := coder.Slice32(&c.Coder, (*[]core.Committed)(l), maxEntries, 8+8+1+4+4)
	for i := range list {
		codeCommitted(c, &list[i])
		if !c.Reading() {
			continue
		}
		if i > 0 && list[i].Index != list[i-1].Index+1 {
			c.Fail("entry %d behind %d", list[i].Index, list[i-1].Index)
		}
		if c.OK() {
			checkCommitted(c, &list[i])
		}
	}
}

// checkCommitted holds an entry that was read to what a log can have.
func checkCommitted(c *fields, e *core.Committed) {
	if e.Index == 0 || e.Type > raftpb.EntryConfChangeV2 {
		c.Fail("entry %d of type %d", e.Index, e.Type)
	} else if e.Type == raftpb.EntryNormal && len(e.Raw) > 0 {
		if _, _, err := core.OpenEnvelope(e.Raw); err != nil {
			c.Fail("entry %d: %v", e.Index, err)
		}
	}
}

func appendEntries(b []byte, list []core.Committed) []byte {
	return appendBody(b, (*entryList)(&list))
}

// snapHead says what a snapshot holds. With term 0 neither the term nor conf is known: only a node that has the entry
// in its own log can use that, see rebuilder.take.
type snapHead struct {
	index, term uint64
	timeNanos   int64
	conf        *raftpb.ConfState
}

func (s *snapHead) code(c *fields) {
	c.U64(&s.index)
	c.U64(&s.term)
	c.I64(&s.timeNanos)
	c.conf(&s.conf)
	if c.OK() && (s.index == 0 || s.term > 0 && s.conf == nil) {
		c.Fail("snapshot at %d of term %d", s.index, s.term)
	}
}

func (s *snapHead) append(b []byte) []byte { return appendBody(b, s) }
