package rendezvous

import (
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// Bounds of frames.
const (
	wireVersion = 3
	wireMagic   = 0x6d724453
	// maxFrame bounds a frame.
	maxFrame = 16 << 20
	// maxHello bounds what a stranger can make us allocate.
	maxHello = 64
	maxText  = 1 << 10
	// maxPart bounds what a member passes on to another: the addresses of two queue pairs, of up to 256 bytes each.
	maxPart = 1 << 10
)

// frameKind says what a frame is.
type frameKind uint8

const (
	kindHello     frameKind = iota + 1 // member: its rank
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

func (f *frame) code(c *coder.Coder) {
	c.U8((*uint8)(&f.kind))
	switch f.kind {
	case kindHello:
		f.codeHello(c)
	case kindWelcome:
		f.welcome.code(c)
	case kindRefused, kindConnected:
		text := f.text[:min(len(f.text), maxText)]
		if c.RestText(&text, maxText); c.Reading() {
			f.text = text
		}
	case kindAddresses:
		f.codeParts(c)
	case kindAllHere, kindBegun:
	default:
		c.Fail("frame of kind %d", f.kind)
	}
}

func (f *frame) codeHello(c *coder.Coder) {
	magic, version := uint32(wireMagic), uint32(wireVersion)
	c.U32(&magic)
	c.U32(&version)
	codeNumber(c, &f.rank)
	if magic != wireMagic {
		c.Fail("no member of a group")
	} else if version != wireVersion {
		c.Fail("version %d of meetings, want %d: run the same program on all hosts", version, wireVersion)
	}
}

func (w *welcome) code(c *coder.Coder) {
	codeNumber(c, &w.members)
	c.U64(&w.number)
	codeNumber(c, &w.blockSize)
	c.U8((*uint8)(&w.algorithm))
	if w.members < 2 || w.members > rdmc.MaxMembers || w.blockSize < 1 || w.blockSize > rdmc.MaxBlockSize {
		c.Fail("welcome to %+v", *w)
	}
}

// codeNumber is a number in four bytes.
func codeNumber(c *coder.Coder, p *int) {
	v := uint32(*p)
	if c.U32(&v); c.Reading() {
		*p = int(v)
	}
}

func (f *frame) codeParts(c *coder.Coder) {
	if !c.Reading() {
		for _, rank := range slices.Sorted(maps.Keys(f.parts)) {
			part := f.parts[rank]
			codePart(c, &rank, &part)
		}
		return
	}
	f.parts = make(map[int][]byte)
	for c.Left() > 0 {
		var rank int
		var part []byte
		if codePart(c, &rank, &part); rank >= rdmc.MaxMembers {
			c.Fail("part for %d", rank)
		}
		if c.OK() {
			f.parts[rank] = part
		}
	}
}

func codePart(c *coder.Coder, rank *int, part *[]byte) {
	codeNumber(c, rank)
	c.View32(part, maxPart)
}

func (f *frame) appendBinary(b []byte) []byte {
	c := coder.Writer(b, coder.Little)
	f.code(&c)
	return c.Written()
}

func decodeFrame(b []byte) (f frame, err error) {
	c := coder.Reader(b, coder.Little)
	if f.code(&c); c.Finish() != nil {
		return frame{}, fmt.Errorf("%w: %w", ErrProtocol, c.Err())
	}
	return f, nil
}

// send writes a frame, within the time of a step.
func send(conn net.Conn, f frame) error {
	conn.SetWriteDeadline(time.Now().Add(stepTimeout)) // if it fails, so does the write
	b := f.appendBinary(make([]byte, 4))
	length := uint32(len(b) - 4)
	c := coder.Writer(b[:0], coder.Little)
	c.U32(&length)
	_, err := conn.Write(b)
	return err
}

// receive reads a frame of at most limit bytes.
func receive(r io.Reader, limit int) (frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	var n uint32
	c := coder.Reader(head[:], coder.Little)
	c.U32(&n)
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
