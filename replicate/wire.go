package replicate

import (
	"slices"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/internal/coder"
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

	wireVersion = 6
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
	KindRoom                     // a node -> all: it has no room for a content, or has room again for what it refused
)

// String names the kind as logs and metrics do.
func (k Kind) String() string {
	names := [...]string{"?", "announce", "finish", "stop", "put", "leaves", "fetch", "work", "group",
		"connect", "begin", "group-end", "room"}
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

func (m *announce) code(c *fields) {
	c.id(&m.Content)
	c.U64((*uint64)(&m.Ino))
	c.U32(&m.Epoch)
	c.Flag(&m.Published)
	c.Fixed(m.Root[:])
	c.View(&m.Shape, maxShapeBytes)
	c.id(&m.Follows)
}

func (m *announce) encode() []byte { return encode(m, 112+len(m.Shape)) }

func decodeAnnounce(b []byte) (announce, error) { return decode[announce](b) }

// standing is a member's answer to announce, finish and, per content, to put.
type standing struct {
	Content meta.ContentID
	session.Standing
}

func (m *standing) code(c *fields) {
	c.id(&m.Content)
	c.U32(&m.Epoch)
	c.U8((*uint8)(&m.Status))
	c.U8((*uint8)(&m.Reason))
	c.text(&m.Text)
	c.U32(&m.Held)
	blockset.CodeBitmap(&c.Coder, &m.Have, maxBlocks)
	if c.OK() && (!m.Status.Known() || m.Reason > meta.OwedJoined) {
		c.Fail("status %d, reason %d", m.Status, m.Reason)
	}
}

func (m *standing) encode() []byte { return encode(m, 48+len(m.Text)+int(m.Have.Blocks()/8)) }

func decodeStanding(b []byte) (standing, error) { return decode[standing](b) }

// begin says which message of which group carries the blocks of a session's epoch.
type begin struct {
	Content      meta.ContentID
	Epoch        uint32
	Group        uint64
	Announcement []byte // rdmc.Announcement, encoded
}

func (m *begin) code(c *fields) {
	c.id(&m.Content)
	c.U32(&m.Epoch)
	c.U64(&m.Group)
	c.View(&m.Announcement, maxShapeBytes)
}

func (m *begin) encode() []byte { return encode(m, 48+len(m.Announcement)) }

func decodeBegin(b []byte) (begin, error) { return decode[begin](b) }

// finish asks a member how far it is; with a root it asks for the vote.
type finish struct {
	Content meta.ContentID
	Epoch   uint32
	WaitMs  uint32 // answer at the latest after this time, earlier when voted or refused
	HasRoot bool
	Root    [32]byte
}

func (m *finish) code(c *fields) {
	c.id(&m.Content)
	c.U32(&m.Epoch)
	c.U32(&m.WaitMs)
	c.Flag(&m.HasRoot)
	c.Fixed(m.Root[:])
}

func (m *finish) encode() []byte { return encode(m, 64) }

func decodeFinish(b []byte) (finish, error) { return decode[finish](b) }

// stop ends the flow of blocks of one epoch. The bytes stay until the log decides; when Drop is set and the
// member has not voted, the root does not come back to them.
type stop struct {
	Content meta.ContentID
	Epoch   uint32
	Drop    bool
}

func (m *stop) code(c *fields) {
	c.id(&m.Content)
	c.U32(&m.Epoch)
	c.Flag(&m.Drop)
}

func (m *stop) encode() []byte { return encode(m, 24) }

func decodeStop(b []byte) (stop, error) { return decode[stop](b) }

// putItem is one small content with all its bytes.
type putItem struct {
	Content   meta.ContentID
	Ino       meta.Ino
	Published bool
	Root      [32]byte
	Bytes     []byte // the stream
	Shape     []byte // encoded; empty: plain, with Bytes as all of it
}

func (it *putItem) code(c *fields) {
	c.id(&it.Content)
	c.U64((*uint64)(&it.Ino))
	c.Flag(&it.Published)
	c.Fixed(it.Root[:])
	c.View(&it.Bytes, maxSmallBytes)
	c.View(&it.Shape, maxPutShapeBytes)
}

type putItems []putItem

func (l *putItems) code(c *fields) {
	for i := range coder.Slice(&c.Coder, (*[]putItem)(l), maxPutItems, 59) {
		(*l)[i].code(c)
	}
}

func encodePut(items []putItem) []byte {
	n := 8
	for i := range items {
		n += 80 + len(items[i].Bytes) + len(items[i].Shape)
	}
	return encode((*putItems)(&items), n)
}

// decodePut returns items whose bytes lie in the message.
func decodePut(b []byte) ([]putItem, error) { return decode[putItems](b) }

type standings []standing

func (l *standings) code(c *fields) {
	for i := range coder.Slice(&c.Coder, (*[]standing)(l), maxPutItems, 28) {
		(*l)[i].code(c)
	}
}

func encodeStandings(list []standing) []byte { return encode((*standings)(&list), 8+48*len(list)) }

func decodeStandings(b []byte) ([]standing, error) { return decode[standings](b) }

// fetch asks for bytes of a committed content, or for its leaves when used with KindLeaves: then Offset and
// Length count leaves.
type fetch struct {
	Content meta.ContentID
	Offset  int64
	Length  uint32
}

func (m *fetch) code(c *fields) {
	c.id(&m.Content)
	c.Size(&m.Offset, maxFileBytes)
	c.U32(&m.Length)
}

func (m *fetch) encode() []byte { return encode(m, 40) }

func decodeFetch(b []byte) (fetch, error) { return decode[fetch](b) }

// fetchReply carries bytes with their CRC32C, or leaves of 32 bytes each.
type fetchReply struct {
	Status session.Status // voted (held here) or refused
	Text   string
	CRC    uint32
	Bytes  []byte
}

func (m *fetchReply) code(c *fields) {
	c.U8((*uint8)(&m.Status))
	c.text(&m.Text)
	c.U32(&m.CRC)
	c.View(&m.Bytes, max(maxFetchBytes, 32*maxLeavesReply))
	if c.OK() && m.Status != session.StatusVoted && m.Status != session.StatusRefused {
		c.Fail("status %d", m.Status)
	}
}

func (m *fetchReply) encode() []byte { return encode(m, 24+len(m.Text)+len(m.Bytes)) }

func decodeFetchReply(b []byte) (fetchReply, error) { return decode[fetchReply](b) }

// work asks a holder to push contents to nodes that are owed them.
type work struct {
	WaitMs uint32 // answer at the latest after this time; what runs then goes on
	// View is what the leader went by, and Index the publish of the newest content of the order. The holder begins when
	// it has applied both.
	View, Index uint64
	// Elsewhere says that another holder has no more to push: what this one is already sending to other nodes, that one
	// can send.
	Elsewhere bool
	Targets   []meta.NodeID
	Contents  []meta.ContentID
}

func (m *work) code(c *fields) {
	c.U32(&m.WaitMs)
	c.U64(&m.View)
	c.U64(&m.Index)
	c.Flag(&m.Elsewhere)
	c.nodes(&m.Targets, maxMembers)
	c.ids(&m.Contents, maxWorkItems)
}

func (m *work) encode() []byte { return encode(m, 32+4*len(m.Targets)+16*len(m.Contents)) }

func decodeWork(b []byte) (work, error) { return decode[work](b) }

// workReply says for each content of the order what became of it. Targets report to the log themselves.
type workReply struct {
	Done    []meta.ContentID // every target has it or answered why not
	Running []meta.ContentID // ask again
	Absent  []meta.ContentID // not held here: choose another source
	Begun   []meta.ContentID // sent to other nodes already, and another holder has no more to push: choose that one
	Failed  []meta.NodeID    // targets that could not be reached or did not take all
	// Progress counts the bytes that moved since the last answer: 0 says that the order is stuck.
	Progress uint64
}

func (m *workReply) code(c *fields) {
	c.ids(&m.Done, maxWorkItems)
	c.ids(&m.Running, maxWorkItems)
	c.ids(&m.Absent, maxWorkItems)
	c.ids(&m.Begun, maxWorkItems)
	c.nodes(&m.Failed, maxMembers)
	c.U64(&m.Progress)
}

func (m *workReply) encode() []byte {
	return encode(m, 16+16*(len(m.Done)+len(m.Running)+len(m.Absent)+len(m.Begun))+4*len(m.Failed))
}

// unnamed are the contents that were asked for and of which the reply says nothing.
func (m *workReply) unnamed(asked []meta.ContentID) []meta.ContentID {
	return without(asked, slices.Concat(m.Done, m.Running, m.Absent, m.Begun))
}

// without returns the contents of a list that are not in another one.
func without(list, other []meta.ContentID) []meta.ContentID {
	named := make(map[meta.ContentID]bool, len(other))
	for _, id := range other {
		named[id] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(id meta.ContentID) bool { return named[id] })
}

func decodeWorkReply(b []byte) (workReply, error) { return decode[workReply](b) }
