package tcp

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

// frameKind says what a frame is.
type frameKind uint8

const (
	frameSend     frameKind = iota + 1 // length bytes follow
	frameWrite                         // length bytes follow
	frameWriteImm                      // length bytes follow
	frameRead                          // asks for length bytes
	frameReadData                      // length bytes follow, for the oldest unanswered read
	frameAck                           // only ack and credit
	frameNak                           // the request after ack failed with status; the last frame
	frameKindEnd
)

// Limits of this provider. Everything a frame says is bounded by them.
const (
	frameBytes    = soft.HeaderBytes
	maxQueueDepth = 1 << 14
	maxSGE        = 8
	maxInline     = 256
	maxMessage    = 1 << 30
	maxReads      = 16 // reads outstanding per direction
)

// frame is a decoded header:
//
//	0 kind | 1 status | 2 zero (2) | 4 length | 8 imm | 12 ack | 16 key (8) | 24 addr (8) | 32 credit |
//	36 CRC32C of 0..35
//
// All numbers are little endian. ack counts the requests of the receiver of this frame that its sender
// has executed, credit the receives its sender has posted, both since the connection began, modulo 2^32.
type frame struct {
	kind   frameKind
	status rdma.Status
	length uint32
	imm    uint32
	ack    uint32
	key    uint64
	addr   uint64
	credit uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (f *frame) encode(b *[frameBytes]byte) {
	b[0], b[1], b[2], b[3] = byte(f.kind), byte(f.status), 0, 0
	le := binary.LittleEndian
	le.PutUint32(b[4:], f.length)
	le.PutUint32(b[8:], f.imm)
	le.PutUint32(b[12:], f.ack)
	le.PutUint64(b[16:], f.key)
	le.PutUint64(b[24:], f.addr)
	le.PutUint32(b[32:], f.credit)
	le.PutUint32(b[36:], crc32.Checksum(b[:36], castagnoli))
}

// decodeFrame reads a header from the first frameBytes of b and checks what can be checked without the
// state of the connection.
func decodeFrame(b []byte) (frame, error) {
	if len(b) < frameBytes {
		return frame{}, fmt.Errorf("tcp: header of %d bytes: %w", len(b), errProtocol)
	}
	le := binary.LittleEndian
	if crc32.Checksum(b[:36], castagnoli) != le.Uint32(b[36:]) {
		return frame{}, fmt.Errorf("tcp: header checksum: %w", errProtocol)
	}
	f := frame{
		kind: frameKind(b[0]), status: rdma.Status(b[1]),
		length: le.Uint32(b[4:]), imm: le.Uint32(b[8:]), ack: le.Uint32(b[12:]),
		key: le.Uint64(b[16:]), addr: le.Uint64(b[24:]), credit: le.Uint32(b[32:]),
	}
	if f.kind == 0 || f.kind >= frameKindEnd || b[2] != 0 || b[3] != 0 {
		return frame{}, fmt.Errorf("tcp: frame kind %d: %w", f.kind, errProtocol)
	}
	if f.length > maxMessage || f.status > rdma.StatusLocal || (f.kind == frameNak) != (f.status != rdma.StatusOK) {
		return frame{}, fmt.Errorf("tcp: frame kind %d, %d bytes, %v: %w", f.kind, f.length, f.status, errProtocol)
	}
	return f, nil
}

// consumes reports whether the frame uses up a receive of its receiver.
func (k frameKind) consumes() bool { return k == frameSend || k == frameWriteImm }

// carries reports whether length bytes follow the frame.
func (k frameKind) carries() bool {
	return k == frameSend || k == frameWrite || k == frameWriteImm || k == frameReadData
}

// kindOf is the request frame of a send-queue operation.
func kindOf(op rdma.Opcode) frameKind {
	switch op {
	case rdma.OpSend:
		return frameSend
	case rdma.OpWrite:
		return frameWrite
	case rdma.OpWriteImm:
		return frameWriteImm
	}
	return frameRead
}
