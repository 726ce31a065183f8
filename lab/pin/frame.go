package pin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// ErrProtocol is returned when the peer sends what it may not.
var ErrProtocol = errors.New("pin: protocol error")

// kind is what a message of the link says.
type kind uint8

const (
	kindMatch kind = iota + 1 // sender: a message comes, here is its beginning
	// receiver: where the first fragment begins and ends, and the fragments that may be written at once
	kindAck
	kindData  // sender: bytes by send/receive
	kindReady // receiver: more fragments may be written
	kindDone  // receiver: all is there
	kindTaken // receiver: data was taken, more may come
	kindError // both: the link ends, with the reason
)

const (
	// headBytes is the size of a frame on the wire; a payload may follow.
	headBytes = 64
	// frameVersion is of all frames: ends of another are refused.
	frameVersion = 2
	// keyBytes is the size of a fragment's place in the payload of ACK and READY: key u64, address u64.
	keyBytes = 16
	// announcedMax bounds the fragments that are announced and not yet there.
	announcedMax = 256
)

// frame is the head of each message of a link, little endian. Unused fields are zero.
type frame struct {
	kind     kind
	strategy Strategy
	depth    uint16 // match
	seq      uint32 // of the message
	length   uint32 // of the payload
	taken    uint32 // data frames that the receiver has taken of this message
	size     int64  // match: of the message; ack: where the first fragment begins; ready: bytes of the fragments together
	// match: where the first fragment begins at the latest; ack: bytes of it; data: of the payload; ready: first fragment
	at       int64
	fragment int64 // match: bytes of a fragment; ack: the same or fewer
}

// place is where a fragment is to be written.
type place struct {
	key  rdma.RegionKey
	addr uint64
}

// putPlaces writes the payload of ACK and READY.
func putPlaces(b []byte, places []place) {
	for i, p := range places {
		binary.LittleEndian.PutUint64(b[i*keyBytes:], uint64(p.key))
		binary.LittleEndian.PutUint64(b[i*keyBytes+8:], p.addr)
	}
}

// appendPlaces reads it.
func appendPlaces(places []place, b []byte) ([]place, error) {
	if n := len(b) / keyBytes; len(b)%keyBytes != 0 || len(places)+n > announcedMax {
		return places, fmt.Errorf("%w: %d bytes of places after %d", ErrProtocol, len(b), len(places))
	}
	for ; len(b) > 0; b = b[keyBytes:] {
		places = append(places, place{rdma.RegionKey(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint64(b[8:])})
	}
	return places, nil
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
	b[40] = frameVersion
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
	}
	if b[40] != frameVersion {
		return f, nil, fmt.Errorf("%w: frames of version %d, these are %d", ErrProtocol, b[40], frameVersion)
	}
	if f.kind < kindMatch || f.kind > kindError || int(f.length) != len(b)-headBytes || f.size < 0 || f.at < 0 {
		return f, nil, fmt.Errorf("%w: message of kind %d with %d bytes", ErrProtocol, f.kind, len(b))
	}
	return f, b[headBytes:], nil
}

// checkMatch bounds what a sender proposes.
func (f *frame) checkMatch() error {
	switch {
	case f.strategy > CachedPipeline, f.at > f.size, f.fragment > math.MaxInt64-f.size, int64(f.length) > f.at,
		f.depth > depthMax,
		f.at < f.size && (f.fragment < fragmentMin || f.depth == 0):
		return fmt.Errorf("%w: %v of %d bytes, written from %d on in %d fragments of %d",
			ErrProtocol, f.strategy, f.size, f.at, f.depth, f.fragment)
	}
	return nil
}
