package content

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// A .stage file is a sequence of records: u32 CRC32C of the rest, u8 kind, u16 length, payload.
const (
	recordHead   = 1 // stageHead; of a later one only the origin counts
	recordOwn    = 2 // overlay: off, len: this range lies in the staging file now
	recordSize   = 3 // overlay: the size is this; ranges of the base behind it are gone
	recordReason = 4 // why it was not published

	recordHeadBytes = 7
	nameBytesMax    = 255
	reasonBytesMax  = 1024
	stageBytesMax   = 1 << 30
)

// stageHead is the first record.
type stageHead struct {
	origin   Origin
	created  time.Time
	base     ID // overlays only
	baseSize int64
}

func (h *stageHead) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, h.origin.Ino)
	b = binary.LittleEndian.AppendUint64(b, h.origin.Parent)
	b = binary.LittleEndian.AppendUint32(b, h.origin.Node)
	b = binary.LittleEndian.AppendUint32(b, h.origin.Incarnation)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.created.UnixNano()))
	b = append(b, h.base[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.baseSize))
	return append(b, h.origin.Name...)
}

const stageHeadBytes = 8 + 8 + 4 + 4 + 8 + 16 + 8

func decodeStageHead(b []byte) (h stageHead, ok bool) {
	if len(b) < stageHeadBytes || len(b) > stageHeadBytes+nameBytesMax {
		return h, false
	}
	h.origin = Origin{
		Ino: binary.LittleEndian.Uint64(b), Parent: binary.LittleEndian.Uint64(b[8:]),
		Node: binary.LittleEndian.Uint32(b[16:]), Incarnation: binary.LittleEndian.Uint32(b[20:]),
		Name: string(b[stageHeadBytes:]),
	}
	h.created = time.Unix(0, int64(binary.LittleEndian.Uint64(b[24:])))
	copy(h.base[:], b[32:])
	h.baseSize = int64(binary.LittleEndian.Uint64(b[48:]))
	return h, h.baseSize >= 0 && h.baseSize <= SizeMax
}

// appendTag encodes the description of a plain staged file as its tag: u8 version, u32 CRC32C of the rest, varints
// inode, parent, node, incarnation, i64 created, name.
func appendTag(b []byte, h *stageHead) []byte {
	b = append(b, tagVersion, 0, 0, 0, 0)
	b = binary.AppendUvarint(b, h.origin.Ino)
	b = binary.AppendUvarint(b, h.origin.Parent)
	b = binary.AppendUvarint(b, uint64(h.origin.Node))
	b = binary.AppendUvarint(b, uint64(h.origin.Incarnation))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.created.UnixNano()))
	b = append(b, h.origin.Name...)
	binary.LittleEndian.PutUint32(b[1:], Checksum(b[5:]))
	return b
}

const tagVersion = 1

// decodeTag undoes appendTag.
func decodeTag(b []byte) (h stageHead, err error) {
	bad := fmt.Errorf("content: staging tag: %w", ErrCorrupt)
	if len(b) < 5 || b[0] != tagVersion || binary.LittleEndian.Uint32(b[1:]) != Checksum(b[5:]) {
		return h, bad
	}
	d := decoder{rest: b[5:]}
	h.origin.Ino, h.origin.Parent = d.uvarint(), d.uvarint()
	node, incarnation := d.uvarint(), d.uvarint()
	var created [8]byte
	d.bytes(created[:])
	if d.err != nil || node > math.MaxUint32 || incarnation > math.MaxUint32 || len(d.rest) > nameBytesMax {
		return stageHead{}, bad
	}
	h.origin.Node, h.origin.Incarnation = uint32(node), uint32(incarnation)
	h.origin.Name = string(d.rest)
	h.created = time.Unix(0, int64(binary.LittleEndian.Uint64(created[:])))
	return h, nil
}

// appendRecord encodes a record; the payload must be below 64 KiB.
func appendRecord(b []byte, kind byte, payload []byte) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0, kind)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(payload)))
	b = append(b, payload...)
	binary.LittleEndian.PutUint32(b[start:], Checksum(b[start+4:]))
	return b
}

// nextRecord takes the first record off b; ok is false at the end and at a torn or damaged one.
func nextRecord(b []byte) (kind byte, payload, rest []byte, ok bool) {
	if len(b) < recordHeadBytes {
		return 0, nil, nil, false
	}
	end := recordHeadBytes + int(binary.LittleEndian.Uint16(b[5:]))
	if len(b) < end || Checksum(b[4:end]) != binary.LittleEndian.Uint32(b) {
		return 0, nil, nil, false
	}
	return b[4], b[recordHeadBytes:end], b[end:], true
}

// stageLog is a replayed .stage file.
type stageLog struct {
	head   stageHead
	reason string
	size   int64
	cut    int64   // the smallest size there was
	limit  int64   // the base counts below this only
	own    pageMap // pages that lie in the staging file
	whole  int64   // bytes of whole records
	tagged bool    // there is no usable .stage file: the tag says all
}

// readStage reads and replays a .stage file.
func readStage(path string) (stageLog, error) {
	b, err := readBounded(path, stageBytesMax)
	if err != nil {
		return stageLog{}, err
	}
	return decodeStage(b)
}

// readBase reads of a .stage file what an overlay is over; zero if it is none, or can't be read.
func readBase(path string) ID {
	b, err := readBounded(path, recordHeadBytes+stageHeadBytes+nameBytesMax)
	if err != nil {
		return ID{}
	}
	kind, payload, _, ok := nextRecord(b)
	if !ok || kind != recordHead {
		return ID{}
	}
	h, _ := decodeStageHead(payload)
	return h.base
}

// decodeStage replays records; what follows the first torn one is ignored.
func decodeStage(b []byte) (stageLog, error) {
	kind, payload, rest, ok := nextRecord(b)
	if !ok || kind != recordHead {
		return stageLog{}, fmt.Errorf("content: staging description: %w", ErrCorrupt)
	}
	var log stageLog
	if log.head, ok = decodeStageHead(payload); !ok {
		return stageLog{}, fmt.Errorf("content: staging description: %w", ErrCorrupt)
	}
	log.size, log.limit, log.cut = log.head.baseSize, log.head.baseSize, log.head.baseSize
	for {
		kind, payload, next, ok := nextRecord(rest)
		if !ok || !log.apply(kind, payload) {
			log.whole = int64(len(b) - len(rest))
			return log, nil
		}
		rest = next
	}
}

// apply replays one record; it is false for one that makes no sense.
func (l *stageLog) apply(kind byte, p []byte) bool {
	switch kind {
	case recordHead:
		head, ok := decodeStageHead(p)
		l.head.origin = head.origin
		return ok
	case recordReason:
		l.reason = string(p)
		return true
	case recordSize:
		if len(p) != 8 || binary.LittleEndian.Uint64(p) > SizeMax {
			return false
		}
		l.size = int64(binary.LittleEndian.Uint64(p))
		l.limit = min(l.limit, pageEnd(l.size))
		l.cut = min(l.cut, l.size)
		return true
	case recordOwn:
		if len(p) != 16 {
			return false
		}
		off, n := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
		if off > SizeMax || n > SizeMax-off {
			return false
		}
		l.own.set(int64(off), int64(n))
		return true
	}
	return true // of a later version
}

func ownRecord(off, n int64) []byte {
	p := binary.LittleEndian.AppendUint64(nil, uint64(off))
	return appendRecord(nil, recordOwn, binary.LittleEndian.AppendUint64(p, uint64(n)))
}

func sizeRecord(size int64) []byte {
	return appendRecord(nil, recordSize, binary.LittleEndian.AppendUint64(nil, uint64(size)))
}
