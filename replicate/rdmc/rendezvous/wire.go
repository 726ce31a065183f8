package rendezvous

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// Bounds of a session's frames.
const (
	sessionVersion = 2
	sessionMagic   = 0x6d724453
	maxText        = 1 << 10
	// maxRuns bounds the runs of blocks that a member tells of.
	maxRuns = 1 << 16
	// maxHello bounds what a stranger can have us allocate.
	maxHello = 64
)

// frameKind says what a frame of a session is.
type frameKind uint8

const (
	kindHello     frameKind = iota + 1 // member: who it is
	kindWelcome                        // root: it is in, and what all have in common
	kindOut                            // root: it is out, with the reason
	kindEnd                            // root: the session has ended, with the reason if it is no good one
	kindCall                           // root: who is called; each ends what there is of earlier epochs and tells what it has
	kindMeet                           // member: the blocks of the message that it has
	kindForm                           // root: the members of the epoch's group by rank, and its algorithm
	kindAddresses                      // member: its addresses; root: those for the member
	kindConnected                      // member: its end is connected, or why it is not
	kindBegin                          // root: a message, or what is left of it, moves in this epoch's group
	kindDelivered                      // root: all members of the epoch's group have the message
)

// frame is what root and members say to each other on their connection. On the wire, little endian, behind its length
// of 4 bytes:
//
//	0  kind 1
//	1  epoch 4
//	5  number of the message 8
//	13 hello: magic 4, version 4, rank 4
//	   welcome: members 4, block size 4, detection bound in ns 8
//	   out, end, connected: text
//	   meet: blocks, as rdmc.Ranges
//	   call, form: algorithm 1 (0 in a call), members of 4 each
//	   addresses: parts of rank 4, length 4, bytes
//	   begin: an rdmc.Announcement
type frame struct {
	kind   frameKind
	epoch  uint32
	number uint64

	rank      int
	welcome   welcome
	text      string
	have      rdmc.Ranges
	algorithm schedule.Algorithm
	members   []int
	parts     map[int][]byte
	message   rdmc.Announcement
}

// welcome is what the root decides for all.
type welcome struct {
	members   int
	blockSize int
	detect    time.Duration
}

const frameHeader = 13

func (f *frame) appendBinary(b []byte) []byte {
	b = append(b, byte(f.kind))
	b = binary.LittleEndian.AppendUint32(b, f.epoch)
	b = binary.LittleEndian.AppendUint64(b, f.number)
	switch f.kind {
	case kindHello:
		b = binary.LittleEndian.AppendUint32(b, sessionMagic)
		b = binary.LittleEndian.AppendUint32(b, sessionVersion)
		b = binary.LittleEndian.AppendUint32(b, uint32(f.rank))
	case kindWelcome:
		b = binary.LittleEndian.AppendUint32(b, uint32(f.welcome.members))
		b = binary.LittleEndian.AppendUint32(b, uint32(f.welcome.blockSize))
		b = binary.LittleEndian.AppendUint64(b, uint64(f.welcome.detect))
	case kindOut, kindEnd, kindConnected:
		b = append(b, f.text[:min(len(f.text), maxText)]...)
	case kindMeet:
		b = f.have.AppendBinary(b)
	case kindCall, kindForm:
		b = append(b, byte(f.algorithm))
		for _, id := range f.members {
			b = binary.LittleEndian.AppendUint32(b, uint32(id))
		}
	case kindAddresses:
		b = append(b, encodeParts(f.parts)...)
	case kindBegin:
		b = f.message.AppendBinary(b)
	}
	return b
}

func decodeFrame(b []byte) (f frame, err error) {
	if len(b) < frameHeader {
		return f, fmt.Errorf("%w: frame of %d bytes", ErrProtocol, len(b))
	}
	f.kind = frameKind(b[0])
	f.epoch, f.number = binary.LittleEndian.Uint32(b[1:]), binary.LittleEndian.Uint64(b[5:])
	body := b[frameHeader:]
	switch f.kind {
	case kindHello:
		f.rank, err = decodeHello(body)
	case kindWelcome:
		f.welcome, err = decodeWelcome(body)
	case kindOut, kindEnd, kindConnected:
		if len(body) > maxText {
			return f, fmt.Errorf("%w: a text of %d bytes", ErrProtocol, len(body))
		}
		f.text = string(body)
	case kindMeet:
		f.have, err = decodeHave(body)
	case kindCall, kindForm:
		err = f.decodeMembers(body)
	case kindAddresses:
		f.parts, err = decodeParts(body)
	case kindBegin:
		f.message, err = rdmc.DecodeAnnouncement(body)
	case kindDelivered:
	default:
		err = fmt.Errorf("%w: frame of kind %d", ErrProtocol, f.kind)
	}
	return f, err
}

func decodeHello(b []byte) (rank int, err error) {
	if len(b) != 12 || binary.LittleEndian.Uint32(b) != sessionMagic {
		return 0, fmt.Errorf("%w: no member of a session", ErrProtocol)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != sessionVersion {
		return 0, fmt.Errorf("%w: version %d of sessions, want %d: run the same program on all hosts", ErrProtocol, v, sessionVersion)
	}
	return int(binary.LittleEndian.Uint32(b[8:])), nil
}

func decodeWelcome(b []byte) (w welcome, err error) {
	if len(b) != 16 {
		return w, fmt.Errorf("%w: welcome of %d bytes", ErrProtocol, len(b))
	}
	w.members, w.blockSize = int(binary.LittleEndian.Uint32(b)), int(binary.LittleEndian.Uint32(b[4:]))
	w.detect = time.Duration(binary.LittleEndian.Uint64(b[8:]))
	if w.members < 2 || w.members > rdmc.MaxMembers || w.blockSize < 1 || w.blockSize > rdmc.MaxBlockSize ||
		w.detect < MinDetect || w.detect > MaxDetect {
		return w, fmt.Errorf("%w: welcome to %+v", ErrProtocol, w)
	}
	return w, nil
}

// decodeHave decodes blocks; the caller knows how many the message has, and checks that.
func decodeHave(b []byte) (rdmc.Ranges, error) {
	have, rest, err := rdmc.DecodeRanges(b, rdmc.MaxMessageBlocks)
	if err == nil && (len(rest) > 0 || len(have) > maxRuns) {
		err = fmt.Errorf("%w: %d runs, %d bytes behind them", ErrProtocol, len(have), len(rest))
	}
	return have, err
}

// decodeMembers wants the root first, and each member once.
func (f *frame) decodeMembers(b []byte) error {
	if len(b) < 1+2*4 || (len(b)-1)%4 != 0 || (len(b)-1)/4 > rdmc.MaxMembers {
		return fmt.Errorf("%w: group in %d bytes", ErrProtocol, len(b))
	}
	f.algorithm = schedule.Algorithm(b[0])
	for b = b[1:]; len(b) > 0; b = b[4:] {
		id := int(binary.LittleEndian.Uint32(b))
		if n := len(f.members); id >= rdmc.MaxMembers || n == 0 && id != 0 || n > 0 && id <= f.members[n-1] {
			return fmt.Errorf("%w: member %d behind %v", ErrProtocol, id, f.members)
		}
		f.members = append(f.members, id)
	}
	return nil
}

// send writes a frame, within the bound.
func send(conn net.Conn, f frame, within time.Duration) error {
	conn.SetWriteDeadline(time.Now().Add(within)) // if it fails, so does the write
	return writeFrame(conn, f.appendBinary(nil))
}

// receive reads a frame of at most limit bytes.
func receive(r io.Reader, limit int) (frame, error) {
	b, err := readFrameUpTo(r, limit)
	if err != nil {
		return frame{}, err
	}
	return decodeFrame(b)
}
