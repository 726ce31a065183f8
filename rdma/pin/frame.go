package pin

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrProtocol is returned when the peer sends what it may not.
var ErrProtocol = errors.New("pin: protocol error")

// kind is what a message of the link says.
type kind uint8

const (
	kindMatch kind = iota + 1 // sender: a message comes, here is its beginning
	kindAck                   // receiver: where the first fragment ends
	kindData                  // sender: bytes by send/receive
	kindReady                 // receiver: a fragment may be written
	kindDone                  // receiver: all is there
	kindTaken                 // receiver: data was taken, more may come
	kindError                 // both: the link ends, with the reason
)

// headBytes is the size of a frame on the wire; a payload may follow.
const headBytes = 64

// frame is the head of each message of a link, little endian. Unused fields are zero.
type frame struct {
	kind     kind
	strategy Strategy
	depth    uint16 // match
	seq      uint32 // of the message
	length   uint32 // of the payload
	taken    uint32 // data frames that the receiver has taken of this message
	size     int64  // match: of the message; ready: of the fragment
	at       int64  // match: of the first fragment; ack: length of it; data: of the payload in the message; ready: number of the fragment
	fragment int64  // match
	key      uint64 // ready
	addr     uint64 // ready
}

// put writes the head into b.
func (f *frame) put(b []byte) {
	clear(b[:headBytes])
	b[0], b[1] = byte(f.kind), byte(f.strategy)
	binary.LittleEndian.PutUint16(b[2:], f.depth)
	binary.LittleEndian.PutUint32(b[4:], f.seq)
	binary.LittleEndian.PutUint32(b[8:], f.length)
	binary.LittleEndian.PutUint32(b[12:], f.taken)
	binary.LittleEndian.PutUint64(b[16:], uint64(f.size))
	binary.LittleEndian.PutUint64(b[24:], uint64(f.at))
	binary.LittleEndian.PutUint64(b[32:], uint64(f.fragment))
	binary.LittleEndian.PutUint64(b[40:], f.key)
	binary.LittleEndian.PutUint64(b[48:], f.addr)
}

// decodeFrame reads a head and what follows it.
func decodeFrame(b []byte) (f frame, payload []byte, err error) {
	if len(b) < headBytes {
		return f, nil, fmt.Errorf("%w: %d bytes", ErrProtocol, len(b))
	}
	f = frame{
		kind: kind(b[0]), strategy: Strategy(b[1]),
		depth: binary.LittleEndian.Uint16(b[2:]), seq: binary.LittleEndian.Uint32(b[4:]),
		length: binary.LittleEndian.Uint32(b[8:]), taken: binary.LittleEndian.Uint32(b[12:]),
		size: int64(binary.LittleEndian.Uint64(b[16:])), at: int64(binary.LittleEndian.Uint64(b[24:])),
		fragment: int64(binary.LittleEndian.Uint64(b[32:])),
		key:      binary.LittleEndian.Uint64(b[40:]), addr: binary.LittleEndian.Uint64(b[48:]),
	}
	if f.kind < kindMatch || f.kind > kindError || int(f.length) != len(b)-headBytes || f.size < 0 || f.at < 0 {
		return f, nil, fmt.Errorf("%w: message of kind %d with %d bytes", ErrProtocol, f.kind, len(b))
	}
	return f, b[headBytes:], nil
}

// checkMatch bounds what a sender proposes.
func (f *frame) checkMatch() error {
	switch {
	case f.strategy > CachedPipeline, f.at > f.size, int64(f.length) > f.at,
		f.at < f.size && (f.fragment < fragmentMin || f.depth == 0 || f.depth > depthMax):
		return fmt.Errorf("%w: %v of %d bytes, written from %d on in %d fragments of %d", ErrProtocol, f.strategy, f.size, f.at, f.depth, f.fragment)
	}
	return nil
}
