package replicate

import (
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// Limits of messages. Every decoder holds what it reads to them before it allocates.
const (
	// MaxMessageBytes bounds a request and an answer.
	MaxMessageBytes = 8 << 20

	maxFileBytes     = content.SizeMax
	maxBlocks        = 1 << 24 // of a stream: 16 TiB
	maxMembers       = 4096
	maxTextBytes     = 1 << 10
	maxShapeBytes    = 2 << 20
	maxPutShapeBytes = 64 << 10
	maxSmallBytes    = 1 << 20 // bytes of one content, and of all contents of a put
	maxPutItems      = 512
	maxWorkItems     = 4096
	maxLeavesReply   = 1 << 15
	maxFetchBytes    = content.BlockBytes

	wireVersion = 3
)

// Kinds of messages. Numbers are part of the wire format.
const (
	KindAnnounce Kind = iota + 1 // root -> member: a session, or the next epoch of one
	KindFinish                   // root -> member: how far are you; with the root, vote when you can
	KindStop                     // root -> member: no more blocks come in this epoch
	KindPut                      // root -> member: whole small contents
	KindLeaves                   // reader -> holder: leaf hashes of a content
	KindFetch                    // reader -> holder: a range of a content
	KindWork                     // leader -> holder: push these contents to these nodes
	KindGroup                    // root -> member: make your end of a multicast group
	KindConnect                  // root -> member: join that end with its neighbours
	KindBegin                    // root -> member: a session's blocks come as this message of a group
	KindGroupEnd                 // root -> member: the group is closed when its messages are through
)

// String names the kind as logs and metrics do.
func (k Kind) String() string {
	names := [...]string{"?", "announce", "finish", "stop", "put", "leaves", "fetch", "work", "group",
		"connect", "begin", "group-end"}
	if int(k) < len(names) {
		return names[k]
	}
	return names[0]
}

// announce opens a session at a member, or moves it to a new epoch.
type announce struct {
	Content   meta.ContentID
	Ino       meta.Ino
	Epoch     uint32
	Published bool // catch-up: the log holds the publish, Root is known
	Root      [32]byte
	Shape     []byte // content.Shape, encoded
	// Follows is the session before of the same push, which ended with its root's incarnation; zero if there is none.
	// The root sends the bytes that it sent there.
	Follows meta.ContentID
}

func (m *announce) encode() []byte {
	w := writer{make([]byte, 0, 112+len(m.Shape))}
	w.u8(wireVersion)
	w.id(m.Content)
	w.u64(uint64(m.Ino))
	w.u32(m.Epoch)
	w.flag(m.Published)
	w.fixed(m.Root[:])
	w.bytes(m.Shape)
	w.id(m.Follows)
	return w.b
}

func open(b []byte) *reader {
	r := &reader{b: b}
	if v := r.u8(); r.err == nil && v != wireVersion {
		r.fail("version %d", v)
	}
	return r
}

func decodeAnnounce(b []byte) (m announce, err error) {
	r := open(b)
	m.Content = r.id()
	m.Ino = meta.Ino(r.u64())
	m.Epoch = r.u32()
	m.Published = r.flag()
	m.Root = r.root()
	m.Shape = r.bytes(maxShapeBytes)
	m.Follows = r.id()
	return m, r.done()
}

// standing is a member's answer to announce, finish and, per content, to put.
type standing struct {
	Content meta.ContentID
	session.Standing
}

func (m *standing) put(w *writer) {
	w.id(m.Content)
	w.u32(m.Epoch)
	w.u8(uint8(m.Status))
	w.u8(uint8(m.Reason))
	w.str(clipText(m.Text))
	w.u32(m.Held)
	w.bytes(m.Have)
}

func (m *standing) get(r *reader) {
	m.Content = r.id()
	m.Epoch = r.u32()
	m.Status = session.Status(r.u8())
	m.Reason = meta.OwedReason(r.u8())
	m.Text = r.str(maxTextBytes)
	m.Held = r.u32()
	m.Have = content.Bitmap(r.bytes(maxBlocks / 8))
	if r.err == nil && !m.Status.Known() {
		r.fail("status %d", m.Status)
	}
	if r.err == nil && m.Reason > meta.OwedJoined {
		r.fail("reason %d", m.Reason)
	}
}

func (m *standing) encode() []byte {
	w := writer{make([]byte, 0, 48+len(m.Text)+len(m.Have))}
	w.u8(wireVersion)
	m.put(&w)
	return w.b
}

func decodeStanding(b []byte) (m standing, err error) {
	r := open(b)
	m.get(r)
	return m, r.done()
}

func clipText(s string) string { return s[:min(len(s), maxTextBytes)] }

// begin tells a member which message of which group carries the blocks of a session's epoch.
type begin struct {
	Content      meta.ContentID
	Epoch        uint32
	Group        uint64
	Announcement []byte // rdmc.Announcement, encoded
}

func (m *begin) encode() []byte {
	w := writer{make([]byte, 0, 48+len(m.Announcement))}
	w.u8(wireVersion)
	w.id(m.Content)
	w.u32(m.Epoch)
	w.u64(m.Group)
	w.bytes(m.Announcement)
	return w.b
}

func decodeBegin(b []byte) (m begin, err error) {
	r := open(b)
	m.Content, m.Epoch, m.Group = r.id(), r.u32(), r.u64()
	m.Announcement = r.bytes(maxShapeBytes)
	return m, r.done()
}

// finish asks a member how far it is; with a root it asks for the vote.
type finish struct {
	Content meta.ContentID
	Epoch   uint32
	WaitMs  uint32 // answer at the latest after this time, earlier when voted or refused
	HasRoot bool
	Root    [32]byte
}

func (m *finish) encode() []byte {
	w := writer{make([]byte, 0, 64)}
	w.u8(wireVersion)
	w.id(m.Content)
	w.u32(m.Epoch)
	w.u32(m.WaitMs)
	w.flag(m.HasRoot)
	w.fixed(m.Root[:])
	return w.b
}

func decodeFinish(b []byte) (m finish, err error) {
	r := open(b)
	m.Content, m.Epoch, m.WaitMs, m.HasRoot, m.Root = r.id(), r.u32(), r.u32(), r.flag(), r.root()
	return m, r.done()
}

// stop ends the flow of blocks of one epoch. The bytes stay until the log decides; when Drop is set and the
// member has not voted, the root does not come back to them.
type stop struct {
	Content meta.ContentID
	Epoch   uint32
	Drop    bool
}

func (m *stop) encode() []byte {
	w := writer{make([]byte, 0, 24)}
	w.u8(wireVersion)
	w.id(m.Content)
	w.u32(m.Epoch)
	w.flag(m.Drop)
	return w.b
}

func decodeStop(b []byte) (m stop, err error) {
	r := open(b)
	m.Content, m.Epoch, m.Drop = r.id(), r.u32(), r.flag()
	return m, r.done()
}

// putItem is one small content with all its bytes.
type putItem struct {
	Content   meta.ContentID
	Ino       meta.Ino
	Published bool
	Root      [32]byte
	Bytes     []byte // the stream
	Shape     []byte // encoded; empty: plain, with Bytes as all of it
}

func encodePut(items []putItem) []byte {
	n := 8
	for i := range items {
		n += 80 + len(items[i].Bytes) + len(items[i].Shape)
	}
	w := writer{make([]byte, 0, n)}
	w.u8(wireVersion)
	w.varint(uint64(len(items)))
	for i := range items {
		it := &items[i]
		w.id(it.Content)
		w.u64(uint64(it.Ino))
		w.flag(it.Published)
		w.fixed(it.Root[:])
		w.bytes(it.Bytes)
		w.bytes(it.Shape)
	}
	return w.b
}

// decodePut returns items whose bytes lie in the message.
func decodePut(b []byte) ([]putItem, error) {
	r := open(b)
	n := r.count(maxPutItems, 59)
	items := make([]putItem, n)
	for i := range items {
		it := &items[i]
		it.Content = r.id()
		it.Ino = meta.Ino(r.u64())
		it.Published = r.flag()
		it.Root = r.root()
		it.Bytes = r.bytes(maxSmallBytes)
		it.Shape = r.bytes(maxPutShapeBytes)
	}
	return items, r.done()
}

func encodeStandings(list []standing) []byte {
	w := writer{make([]byte, 0, 8+48*len(list))}
	w.u8(wireVersion)
	w.varint(uint64(len(list)))
	for i := range list {
		list[i].put(&w)
	}
	return w.b
}

func decodeStandings(b []byte) ([]standing, error) {
	r := open(b)
	list := make([]standing, r.count(maxPutItems, 28))
	for i := range list {
		list[i].get(r)
	}
	return list, r.done()
}

// fetch asks for bytes of a committed content, or for its leaves when used with KindLeaves: then Offset and
// Length count leaves.
type fetch struct {
	Content meta.ContentID
	Offset  int64
	Length  uint32
}

func (m *fetch) encode() []byte {
	w := writer{make([]byte, 0, 40)}
	w.u8(wireVersion)
	w.id(m.Content)
	w.varint(uint64(m.Offset))
	w.u32(m.Length)
	return w.b
}

func decodeFetch(b []byte) (m fetch, err error) {
	r := open(b)
	m.Content, m.Offset, m.Length = r.id(), r.size(), r.u32()
	return m, r.done()
}

// fetchReply carries bytes with their CRC32C, or leaves of 32 bytes each.
type fetchReply struct {
	Status session.Status // voted (held here) or refused
	Text   string
	CRC    uint32
	Bytes  []byte
}

func (m *fetchReply) encode() []byte {
	w := writer{make([]byte, 0, 24+len(m.Text)+len(m.Bytes))}
	w.u8(wireVersion)
	w.u8(uint8(m.Status))
	w.str(clipText(m.Text))
	w.u32(m.CRC)
	w.bytes(m.Bytes)
	return w.b
}

func decodeFetchReply(b []byte) (m fetchReply, err error) {
	r := open(b)
	m.Status, m.Text, m.CRC = session.Status(r.u8()), r.str(maxTextBytes), r.u32()
	m.Bytes = r.bytes(max(maxFetchBytes, 32*maxLeavesReply))
	if r.err == nil && m.Status != session.StatusVoted && m.Status != session.StatusRefused {
		r.fail("status %d", m.Status)
	}
	return m, r.done()
}

// work asks a holder to push contents to nodes that are owed them.
type work struct {
	WaitMs   uint32 // answer at the latest after this time; what runs then goes on
	View     uint64 // by which the leader gave the order; the holder begins when it has applied that
	Targets  []meta.NodeID
	Contents []meta.ContentID
}

func (m *work) encode() []byte {
	w := writer{make([]byte, 0, 32+4*len(m.Targets)+16*len(m.Contents))}
	w.u8(wireVersion)
	w.u32(m.WaitMs)
	w.u64(m.View)
	w.nodes(m.Targets)
	w.ids(m.Contents)
	return w.b
}

func decodeWork(b []byte) (m work, err error) {
	r := open(b)
	m.WaitMs, m.View, m.Targets, m.Contents = r.u32(), r.u64(), r.nodes(maxMembers), r.ids(maxWorkItems)
	return m, r.done()
}

// workReply says for each content of the order what became of it. Targets report to the log themselves.
type workReply struct {
	Done    []meta.ContentID // every target has it or answered why not
	Running []meta.ContentID // ask again
	Absent  []meta.ContentID // not held here: choose another source
	Failed  []meta.NodeID    // targets that could not be reached or did not take all
	// Progress counts the bytes that moved since the last answer: 0 says that the order is stuck.
	Progress uint64
}

func (m *workReply) encode() []byte {
	w := writer{make([]byte, 0, 16+16*(len(m.Done)+len(m.Running)+len(m.Absent))+4*len(m.Failed))}
	w.u8(wireVersion)
	w.ids(m.Done)
	w.ids(m.Running)
	w.ids(m.Absent)
	w.nodes(m.Failed)
	w.u64(m.Progress)
	return w.b
}

func decodeWorkReply(b []byte) (m workReply, err error) {
	r := open(b)
	m.Done, m.Running, m.Absent = r.ids(maxWorkItems), r.ids(maxWorkItems), r.ids(maxWorkItems)
	m.Failed = r.nodes(maxMembers)
	m.Progress = r.u64()
	return m, r.done()
}
