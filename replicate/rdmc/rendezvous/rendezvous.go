// Package rendezvous brings the members of an rdmc group together over TCP, for programs that have no control
// channel of their own.
//
// A [Session] does all of it, over TCP unless told otherwise, and goes on with the survivors when a member fails:
//
//	cfg := rendezvous.Config{Rank: rank, Members: 4, Room: "root:7400", Listen: "10.0.0.1:0"}
//	session, err := rendezvous.Open(ctx, cfg)
//	delivery, err := session.Send(ctx, size, source)   // at the root
//	message, err := session.Next(ctx)                  // at the others
//	err = message.Receive(ctx, sink)
//
// It neither encrypts nor knows whom it talks to: use it in networks that are trusted.
package rendezvous

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// ErrProtocol is returned when the other side says something that makes no sense.
var ErrProtocol = errors.New("rendezvous: protocol error")

const (
	// maxFrame bounds a frame.
	maxFrame = 16 << 20
	// maxPart bounds what a member has handed on to another: the addresses of two queue pairs, of up to 256 bytes each.
	maxPart = 1 << 10
)

func writeFrame(w io.Writer, b []byte) error {
	frame := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b)))
	_, err := w.Write(append(frame, b...))
	return err
}

func readFrameUpTo(r io.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if uint64(n) > uint64(limit) {
		return nil, fmt.Errorf("%w: frame of %d bytes", ErrProtocol, n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

func encodeParts(parts map[int][]byte) []byte {
	var b []byte
	for rank, part := range parts {
		b = binary.LittleEndian.AppendUint32(b, uint32(rank))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
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
