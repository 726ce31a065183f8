package content

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// A .stage file is a sequence of records: u32 CRC32C of the rest, u8 kind, u16 length, payload.
const (
	recordHead    = 1 // stageHead; of a later one only the origin counts
	recordOwn     = 2 // overlay: off, len: this range lies in the staging file now
	recordSize    = 3 // overlay: the size is this; ranges of the base behind it are gone
	recordReason  = 4 // why it was not published
	recordRefused = 5 // what the disk said when it did not take bytes of the file
	recordOver    = 6 // a content: what the bytes were published as, or made from; without it, the base

	recordHeadBytes = 7
	nameBytesMax    = 255
	reasonBytesMax  = 1024
	recordBytesMax  = recordHeadBytes + 1<<16
)

// stageHead is the first record.
type stageHead struct {
	origin   Origin
	created  time.Time
	base     ID // overlays only
	baseSize int64
}

func (h *stageHead) code(c *coder.Coder) {
	created := h.created.UnixNano()
	c.U64(&h.origin.Ino)
	c.U64(&h.origin.Parent)
	c.U32(&h.origin.Node)
	c.U32(&h.origin.Incarnation)
	c.I64(&created)
	c.Fixed(h.base[:])
	c.I64(&h.baseSize)
	c.RestText(&h.origin.Name, nameBytesMax)
	if c.Reading() {
		h.created = time.Unix(0, created)
	}
	if c.OK() && (h.baseSize < 0 || h.baseSize > SizeMax) {
		c.Fail("base of %d bytes", h.baseSize)
	}
}

func (h *stageHead) append(b []byte) []byte {
	c := coder.Writer(b, coder.Little)
	h.code(&c)
	return c.Written()
}

const stageHeadBytes = 8 + 8 + 4 + 4 + 8 + 16 + 8

func decodeStageHead(b []byte) (h stageHead, ok bool) {
	c := coder.Reader(b, coder.Little)
	h.code(&c)
	return h, c.Finish() == nil
}

const (
	tagVersion   = 2
	tagHeadBytes = 1 + 4
)

// codeTagHead is what stands before a tag: u8 version, u32 CRC32C of the rest.
func codeTagHead(c *coder.Coder, sum *uint32) {
	c.Same8("version", tagVersion)
	c.U32(sum)
}

// codeTag lists the fields of a plain staged file's tag: varints inode, parent, node, incarnation, i64 created, what it
// was written over, name.
func (h *stageHead) codeTag(c *coder.Coder) {
	created := h.created.UnixNano()
	c.V64(&h.origin.Ino)
	c.V64(&h.origin.Parent)
	c.V32(&h.origin.Node)
	c.V32(&h.origin.Incarnation)
	c.I64(&created)
	codeShortID(c, &h.origin.Over)
	c.RestText(&h.origin.Name, nameBytesMax)
	if c.Reading() {
		h.created = time.Unix(0, created)
	}
}

// codeShortID is an id whose numbers are varints: a tag should fit into its inode.
func codeShortID(c *coder.Coder, id *ID) {
	var node, incarnation uint32
	var sequence uint64
	numbers := func(c *coder.Coder) {
		c.U32(&node)
		c.U32(&incarnation)
		c.U64(&sequence)
	}
	whole := coder.Reader(id[:], coder.Big)
	numbers(&whole)
	c.V32(&node)
	c.V32(&incarnation)
	c.V64(&sequence)
	if c.Reading() {
		whole = coder.Writer(id[:0], coder.Big)
		numbers(&whole)
	}
}

// appendTag encodes the description of a plain staged file as its tag.
func appendTag(b []byte, h *stageHead) []byte {
	c := coder.Writer(append(b, make([]byte, tagHeadBytes)...), coder.Little)
	h.codeTag(&c)
	out := c.Written()
	sum := Checksum(out[len(b)+tagHeadBytes:])
	head := coder.Writer(out[:len(b)], coder.Little)
	codeTagHead(&head, &sum)
	return out
}

// decodeTag undoes appendTag.
func decodeTag(b []byte) (h stageHead, err error) {
	var sum uint32
	c := coder.Reader(b, coder.Little)
	codeTagHead(&c, &sum)
	if c.OK() && sum != Checksum(b[tagHeadBytes:]) {
		c.Fail("checksum")
	}
	if h.codeTag(&c); c.Finish() != nil {
		return stageHead{}, fmt.Errorf("content: staging tag: %w: %w", ErrCorrupt, c.Err())
	}
	return h, nil
}

// record is what stands before a record's payload.
type record struct {
	sum    uint32
	kind   byte
	length uint16
}

func (r *record) code(c *coder.Coder) {
	c.U32(&r.sum)
	c.U8(&r.kind)
	c.U16(&r.length)
}

// appendRecord encodes a record; the payload must be below 64 KiB.
func appendRecord(b []byte, kind byte, payload []byte) []byte {
	r := record{kind: kind, length: uint16(len(payload))}
	c := coder.Writer(b, coder.Little)
	r.code(&c)
	c.Fixed(payload)
	out := c.Written()
	r.sum = Checksum(out[len(b)+4:])
	head := coder.Writer(out[:len(b)], coder.Little)
	r.code(&head)
	return out
}

// nextRecord gives the record that r is at, and its length; that is 0 at the end and at a torn or damaged one. The
// payload is valid until r is read. An error says that what is there could not be read.
func nextRecord(r *bufio.Reader) (kind byte, payload []byte, length int, err error) {
	var h record
	b, err := r.Peek(recordHeadBytes)
	if err == nil {
		c := coder.Reader(b, coder.Little)
		h.code(&c)
		b, err = r.Peek(recordHeadBytes + int(h.length))
	}
	if errors.Is(err, io.EOF) {
		return 0, nil, 0, nil
	}
	if err != nil || Checksum(b[4:]) != h.sum {
		return 0, nil, 0, err
	}
	return h.kind, b[recordHeadBytes:], len(b), nil
}

// codeOwn is the payload of recordOwn: n bytes at off.
func codeOwn(c *coder.Coder, off, n *int64) {
	c.I64(off)
	c.I64(n)
	if c.OK() && (*off < 0 || *off > SizeMax || *n < 0 || *n > SizeMax-*off) {
		c.Fail("range of %d bytes at %d", *n, *off)
	}
}

// codeSize is the payload of recordSize.
func codeSize(c *coder.Coder, size *int64) {
	if c.I64(size); c.OK() && (*size < 0 || *size > SizeMax) {
		c.Fail("size %d", *size)
	}
}

// stageLog is a replayed .stage file.
type stageLog struct {
	head    stageHead
	over    ID
	reason  string
	refused string // what the disk said when it did not take bytes; "" if it took them, as far as is known
	size    int64
	cut     int64   // the smallest size there was
	limit   int64   // the base counts below this only
	own     pageMap // pages that lie in the staging file
	whole   int64   // bytes of whole records
	tagged  bool    // there is no usable .stage file: the tag says all
}

// readStage reads and replays a .stage file, which may be large: each write to a file that grows is a record.
func readStage(path string) (stageLog, error) {
	f, err := os.Open(path)
	if err != nil {
		return stageLog{}, err
	}
	defer f.Close()
	return replayStage(f)
}

func recordReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, recordBytesMax) }

// readBase reads from a .stage file what an overlay is over; zero if it is no overlay, or can't be read.
func readBase(path string) ID {
	f, err := os.Open(path)
	if err != nil {
		return ID{}
	}
	defer f.Close()
	kind, payload, _, err := nextRecord(recordReader(f))
	if err != nil || kind != recordHead {
		return ID{}
	}
	h, _ := decodeStageHead(payload)
	return h.base
}

// replayStage replays records; what follows the first torn one is ignored.
func replayStage(from io.Reader) (stageLog, error) {
	r := recordReader(from)
	kind, payload, n, err := nextRecord(r)
	if err != nil {
		return stageLog{}, err
	}
	var log stageLog
	ok := kind == recordHead
	if ok {
		log.head, ok = decodeStageHead(payload)
	}
	if !ok {
		return stageLog{}, fmt.Errorf("content: staging description: %w", ErrCorrupt)
	}
	log.over = log.head.base
	log.size, log.limit, log.cut = log.head.baseSize, log.head.baseSize, log.head.baseSize
	for {
		log.whole += int64(n)
		if _, err := r.Discard(n); err != nil {
			return log, err
		}
		if kind, payload, n, err = nextRecord(r); err != nil || n == 0 || !log.apply(kind, payload) {
			return log, err
		}
	}
}

// apply replays one record; it is false for one that makes no sense.
func (l *stageLog) apply(kind byte, p []byte) bool {
	c := coder.Reader(p, coder.Little)
	switch kind {
	case recordHead:
		head, ok := decodeStageHead(p)
		l.head.origin = head.origin
		return ok
	case recordReason:
		l.reason = string(p)
		return true
	case recordRefused:
		l.refused = string(p)
		return true
	case recordOver:
		var over ID
		c.Fixed(over[:])
		if c.Finish() != nil {
			return false
		}
		l.over = over
		return true
	case recordSize:
		var size int64
		if codeSize(&c, &size); c.Finish() != nil {
			return false
		}
		l.size = size
		l.limit = min(l.limit, pageEnd(l.size))
		l.cut = min(l.cut, l.size)
		return true
	case recordOwn:
		var off, n int64
		if codeOwn(&c, &off, &n); c.Finish() != nil {
			return false
		}
		l.own.set(off, n)
		return true
	}
	return true // of a later version
}

// origin is what the bytes belong to, as far as the records say.
func (l *stageLog) origin() Origin {
	out := l.head.origin
	out.Over = l.over
	return out
}

func overRecord(over ID) []byte { return appendRecord(nil, recordOver, over[:]) }

func ownRecord(off, n int64) []byte {
	c := coder.Writer(nil, coder.Little)
	codeOwn(&c, &off, &n)
	return appendRecord(nil, recordOwn, c.Written())
}

func sizeRecord(size int64) []byte {
	c := coder.Writer(nil, coder.Little)
	codeSize(&c, &size)
	return appendRecord(nil, recordSize, c.Written())
}
