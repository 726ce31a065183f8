// Package rendezvous brings the members of an rdmc group together over TCP, for programs that have no control
// channel of their own.
//
// A [Session] does all of it, over TCP unless told otherwise, and goes on with the survivors when a member fails:
//
//	session, err := rendezvous.Open(ctx, rendezvous.Config{Rank: rank, Members: 4, Room: "root:7400", Listen: "10.0.0.1:0"})
//	delivery, err := session.Send(ctx, size, source)   // at the root
//	message, err := session.Next(ctx)                  // at the others
//	err = message.Receive(ctx, sink)
//
// A [Room] is for one group of the caller's own: the root hosts it, the others join it; it carries the fabric addresses of the
// group and the announcements of messages, and knows nothing of failures.
//
//	room, err := rendezvous.Host(ctx, listener, 4)   // at the root
//	room, err := rendezvous.Join(ctx, "root:7400", rank)
//	err = room.Connect(ctx, group)
//
// Both neither encrypt nor know whom they talk to: use them in networks that are trusted.
package rendezvous

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// ErrProtocol is returned when the other side says something that makes no sense.
var ErrProtocol = errors.New("rendezvous: protocol error")

// maxFrame bounds a frame.
const maxFrame = 16 << 20

// retryInterval is how long Join waits before it dials again a root that is not there yet.
const retryInterval = 50 * time.Millisecond

// Room is one member's place in a room. Calls of it are made by one goroutine at a time, and at all members in the
// same order.
type Room struct {
	rank  int
	conns []net.Conn // at the root by rank, nil for itself; else the root's alone
}

// Host waits at the listener until all other members of a group of the given size have joined. The listener
// stays the caller's.
func Host(ctx context.Context, listener net.Listener, members int) (*Room, error) {
	r := &Room{conns: make([]net.Conn, members)}
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	for joined := 1; joined < members; {
		conn, err := listener.Accept()
		if err != nil {
			r.Close()
			return nil, errors.Join(ctx.Err(), fmt.Errorf("rendezvous: host: %w", err))
		}
		if r.admit(conn) {
			joined++
		} else {
			conn.Close()
		}
	}
	return r, nil
}

// admit takes a member in whose rank is free.
func (r *Room) admit(conn net.Conn) bool {
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	defer conn.SetReadDeadline(time.Time{})
	frame, err := readFrame(conn)
	if err != nil || len(frame) != 4 {
		return false
	}
	rank := binary.LittleEndian.Uint32(frame)
	if rank == 0 || int64(rank) >= int64(len(r.conns)) || r.conns[rank] != nil {
		return false
	}
	r.conns[rank] = conn
	return true
}

// Join joins the room that the root hosts at an address, and waits for it to be there.
func Join(ctx context.Context, addr string, rank int) (*Room, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			r := &Room{rank: rank, conns: []net.Conn{conn}}
			return r, writeFrame(conn, binary.LittleEndian.AppendUint32(nil, uint32(rank)))
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("rendezvous: join: %w", errors.Join(ctx.Err(), err))
		case <-time.After(retryInterval):
		}
	}
}

// Connect exchanges the fabric addresses of a new group and connects it. It returns when all members are
// connected.
func (r *Room) Connect(ctx context.Context, g *rdmc.Group) error {
	remote, err := r.exchange(ctx, g.Addresses())
	if err != nil {
		return err
	}
	if err := g.Connect(ctx, remote); err != nil {
		return err
	}
	return r.Barrier(ctx)
}

// Barrier returns when all members have called it.
func (r *Room) Barrier(ctx context.Context) error {
	_, err := r.exchange(ctx, nil)
	return err
}

// Announce tells all members of a message; the root calls it.
func (r *Room) Announce(ctx context.Context, a rdmc.Announcement) error {
	frame := a.AppendBinary(nil)
	return r.within(ctx, "announce", func() error {
		return r.each(func(_ int, conn net.Conn) error { return writeFrame(conn, frame) })
	})
}

// Next waits for the root's next announcement. It returns io.EOF when the root has closed the room.
func (r *Room) Next(ctx context.Context) (a rdmc.Announcement, err error) {
	err = r.within(ctx, "next announcement", func() error {
		frame, err := readFrame(r.conns[0])
		if err != nil {
			return err
		}
		a, err = rdmc.DecodeAnnouncement(frame)
		return err
	})
	return a, err
}

// Close leaves the room.
func (r *Room) Close() {
	for _, conn := range r.conns {
		if conn != nil {
			conn.Close()
		}
	}
}

// exchange carries to each member what every other addressed to it, through the root. All call it.
func (r *Room) exchange(ctx context.Context, out map[int][]byte) (in map[int][]byte, err error) {
	err = r.within(ctx, "exchange", func() error {
		if r.rank == 0 {
			in, err = r.gather(out)
			return err
		}
		if err := writeFrame(r.conns[0], encodeParts(out)); err != nil {
			return err
		}
		frame, err := readFrame(r.conns[0])
		if err != nil {
			return err
		}
		in, err = decodeParts(frame)
		return err
	})
	return in, err
}

// gather is the root's side of exchange.
func (r *Room) gather(own map[int][]byte) (map[int][]byte, error) {
	inbox := make([]map[int][]byte, len(r.conns))
	for rank := range inbox {
		inbox[rank] = make(map[int][]byte)
	}
	var mu sync.Mutex
	post := func(from int, parts map[int][]byte) error {
		mu.Lock()
		defer mu.Unlock()
		for to, b := range parts {
			if to < 0 || to >= len(inbox) {
				return fmt.Errorf("%w: member %d addresses member %d", ErrProtocol, from, to)
			}
			inbox[to][from] = b
		}
		return nil
	}
	if err := post(0, own); err != nil {
		return nil, err
	}
	err := r.each(func(rank int, conn net.Conn) error {
		frame, err := readFrame(conn)
		if err != nil {
			return fmt.Errorf("member %d: %w", rank, err)
		}
		parts, err := decodeParts(frame)
		if err != nil {
			return fmt.Errorf("member %d: %w", rank, err)
		}
		return post(rank, parts)
	})
	if err != nil {
		return nil, err
	}
	return inbox[0], r.each(func(rank int, conn net.Conn) error { return writeFrame(conn, encodeParts(inbox[rank])) })
}

// each runs f for all connections at once.
func (r *Room) each(f func(rank int, conn net.Conn) error) error {
	errs := make([]error, len(r.conns))
	var wg sync.WaitGroup
	for rank, conn := range r.conns {
		if conn != nil {
			wg.Go(func() { errs[rank] = f(rank, conn) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// within runs f, cutting its I/O short when ctx is done.
func (r *Room) within(ctx context.Context, what string, f func() error) error {
	past := time.Unix(1, 0)
	stop := context.AfterFunc(ctx, func() {
		for _, conn := range r.conns {
			if conn != nil {
				conn.SetDeadline(past)
			}
		}
	})
	defer stop()
	if err := f(); err != nil {
		return fmt.Errorf("rendezvous: %s: %w", what, errors.Join(ctx.Err(), err))
	}
	return nil
}

func writeFrame(w io.Writer, b []byte) error {
	frame := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b)))
	_, err := w.Write(append(frame, b...))
	return err
}

func readFrame(r io.Reader) ([]byte, error) { return readFrameUpTo(r, maxFrame) }

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
		if uint64(n) > uint64(len(b)) || rank > rdmc.MaxMembers {
			return nil, fmt.Errorf("%w: part of %d bytes for %d", ErrProtocol, n, rank)
		}
		parts[int(rank)] = b[:n:n]
		b = b[n:]
	}
	return parts, nil
}
