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

// Bounds of frames.
const (
	wireVersion = 3
	wireMagic   = 0x6d724453
	// maxFrame bounds a frame.
	maxFrame = 16 << 20
	// maxHello bounds what a stranger can have us allocate.
	maxHello = 64
	maxText  = 1 << 10
	// maxPart bounds what a member has handed on to another: the addresses of two queue pairs, of up to 256 bytes each.
	maxPart = 1 << 10
)

// frameKind says what a frame is.
type frameKind uint8

const (
	kindHello     frameKind = iota + 1 // member: who it is
	kindWelcome                        // root: it is in, and what all have in common
	kindRefused                        // root: there is no meeting with it, with the reason
	kindAllHere                        // root: all members are there
	kindAddresses                      // member: its addresses; root: those for the member
	kindConnected                      // member: its end is connected, or why it is not
	kindBegun                          // root: all are connected
)

// frame is what root and members say to each other on their connection. On the wire, little endian, behind its length
// of 4 bytes:
//
//	0  kind 1
//	1  hello: magic 4, version 4, rank 4
//	   welcome: members 4, number of the group 8, block size 4, algorithm 1
//	   refused, connected: text
//	   addresses: parts of rank 4, length 4, bytes
type frame struct {
	kind    frameKind
	rank    int
	welcome welcome
	text    string
	parts   map[int][]byte
}

// welcome is what the root decides for all.
type welcome struct {
	members   int
	number    uint64
	blockSize int
	algorithm schedule.Algorithm
}

func (f *frame) appendBinary(b []byte) []byte {
	b = append(b, byte(f.kind))
	switch f.kind {
	case kindHello:
		b = binary.LittleEndian.AppendUint32(b, wireMagic)
		b = binary.LittleEndian.AppendUint32(b, wireVersion)
		b = binary.LittleEndian.AppendUint32(b, uint32(f.rank))
	case kindWelcome:
		b = binary.LittleEndian.AppendUint32(b, uint32(f.welcome.members))
		b = binary.LittleEndian.AppendUint64(b, f.welcome.number)
		b = binary.LittleEndian.AppendUint32(b, uint32(f.welcome.blockSize))
		b = append(b, byte(f.welcome.algorithm))
	case kindRefused, kindConnected:
		b = append(b, f.text[:min(len(f.text), maxText)]...)
	case kindAddresses:
		for rank, part := range f.parts {
			b = binary.LittleEndian.AppendUint32(b, uint32(rank))
			b = binary.LittleEndian.AppendUint32(b, uint32(len(part)))
			b = append(b, part...)
		}
	}
	return b
}

func decodeFrame(b []byte) (f frame, err error) {
	if len(b) < 1 {
		return f, fmt.Errorf("%w: an empty frame", ErrProtocol)
	}
	f.kind = frameKind(b[0])
	body := b[1:]
	switch f.kind {
	case kindHello:
		f.rank, err = decodeHello(body)
	case kindWelcome:
		f.welcome, err = decodeWelcome(body)
	case kindRefused, kindConnected:
		if len(body) > maxText {
			return f, fmt.Errorf("%w: a text of %d bytes", ErrProtocol, len(body))
		}
		f.text = string(body)
	case kindAddresses:
		f.parts, err = decodeParts(body)
	case kindAllHere, kindBegun:
	default:
		err = fmt.Errorf("%w: frame of kind %d", ErrProtocol, f.kind)
	}
	return f, err
}

func decodeHello(b []byte) (rank int, err error) {
	if len(b) != 12 || binary.LittleEndian.Uint32(b) != wireMagic {
		return 0, fmt.Errorf("%w: no member of a group", ErrProtocol)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != wireVersion {
		return 0, fmt.Errorf("%w: version %d of meetings, want %d: run the same program on all hosts", ErrProtocol, v, wireVersion)
	}
	return int(binary.LittleEndian.Uint32(b[8:])), nil
}

func decodeWelcome(b []byte) (w welcome, err error) {
	if len(b) != 17 {
		return w, fmt.Errorf("%w: welcome of %d bytes", ErrProtocol, len(b))
	}
	w.members, w.number = int(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint64(b[4:])
	w.blockSize, w.algorithm = int(binary.LittleEndian.Uint32(b[12:])), schedule.Algorithm(b[16])
	if w.members < 2 || w.members > rdmc.MaxMembers || w.blockSize < 1 || w.blockSize > rdmc.MaxBlockSize {
		return w, fmt.Errorf("%w: welcome to %+v", ErrProtocol, w)
	}
	return w, nil
}

func decodeParts(b []byte) (map[int][]byte, error) {
	parts := make(map[int][]byte)
	for len(b) > 0 {
		if len(b) < 8 {
			return nil, fmt.Errorf("%w: truncated part", ErrProtocol)
		}
		rank, n := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
		b = b[8:]
		if uint64(n) > uint64(min(len(b), maxPart)) || rank >= rdmc.MaxMembers {
			return nil, fmt.Errorf("%w: part of %d bytes for %d", ErrProtocol, n, rank)
		}
		parts[int(rank)] = b[:n:n]
		b = b[n:]
	}
	return parts, nil
}

// send writes a frame, within the time of a step.
func send(conn net.Conn, f frame) error {
	conn.SetWriteDeadline(time.Now().Add(stepTimeout)) // if it fails, so does the write
	b := f.appendBinary(make([]byte, 4))
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	_, err := conn.Write(b)
	return err
}

// receive reads a frame of at most limit bytes.
func receive(r io.Reader, limit int) (frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if uint64(n) > uint64(limit) {
		return frame{}, fmt.Errorf("%w: frame of %d bytes", ErrProtocol, n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return frame{}, err
	}
	return decodeFrame(b)
}

// expect reads a frame of a kind.
func expect(conn net.Conn, kind frameKind) (frame, error) {
	f, err := receive(conn, maxFrame)
	switch {
	case err != nil:
		return f, err
	case f.kind == kindRefused:
		return f, fmt.Errorf("%w: %s", ErrRefused, f.text)
	case f.kind != kind:
		return f, fmt.Errorf("%w: frame of kind %d, want %d", ErrProtocol, f.kind, kind)
	}
	return f, nil
}

// exchange sends a frame and reads the one that follows it.
func exchange(conn net.Conn, f frame, want frameKind) (frame, error) {
	if err := send(conn, f); err != nil {
		return frame{}, err
	}
	return expect(conn, want)
}
