package consensus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	pingInterval   = time.Second
	silenceMax     = 4 * time.Second // a peer that says nothing for this long is gone
	followPing     = 250 * time.Millisecond
	followSilence  = 1500 * time.Millisecond // the same for a peer that is followed: there are others to follow
	writeTimeout   = 4 * time.Second
	writePiece     = 64 << 10 // even a slow link takes this much within writeTimeout
	helloTimeout   = 4 * time.Second
	streamBufBytes = 64 << 20 // of frames waiting to be written
)

// stream is one connection with a goroutine that writes. Frames are queued by send and written together.
type stream struct {
	conn    net.Conn
	peer    ID
	ping    time.Duration // how often a frame is sent if there was none for half as long
	silence time.Duration // how long read waits for the next bytes; changed by the reader, between reads
	got     atomic.Uint64 // bytes that were read, without pings

	mu     sync.Mutex // protects buf, closed
	buf    []byte
	closed bool

	wake chan struct{} // buffered 1; sent on by send
	gone chan struct{} // closed by close
	done chan struct{} // closed by the writer
}

func newStream(conn net.Conn, peer ID) *stream { return newStreamPinging(conn, peer, pingInterval) }

func newStreamPinging(conn net.Conn, peer ID, ping time.Duration) *stream {
	s := &stream{conn: conn, peer: peer, ping: ping, silence: silenceMax, wake: make(chan struct{}, 1),
		gone: make(chan struct{}), done: make(chan struct{})}
	go s.write()
	return s
}

// send queues a frame; false if the stream is closed or too far behind.
func (s *stream) send(kind uint8, fill func([]byte) []byte) bool {
	s.mu.Lock()
	if s.closed || len(s.buf) > streamBufBytes {
		s.mu.Unlock()
		return false
	}
	s.buf = appendFrame(s.buf, kind, fill)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return true
}

// queued is the number of bytes that wait to be written.
func (s *stream) queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.buf)
}

// write is the writer: it ends when the stream is closed or the connection fails.
func (s *stream) write() {
	defer close(s.done)
	ping := time.NewTimer(untilPing(s.ping, time.Now()))
	defer ping.Stop()
	var wrote time.Time
	var spare []byte
	for {
		idle := false
		select {
		case <-s.gone:
			return
		case <-s.wake:
		case now := <-ping.C:
			ping.Reset(untilPing(s.ping, now))
			idle = now.Sub(wrote) >= s.ping/2
		}
		s.mu.Lock()
		if idle && len(s.buf) == 0 {
			s.buf = appendFrame(s.buf, framePing, nil)
		}
		out := s.buf
		if len(out) == 0 {
			s.mu.Unlock()
			continue
		}
		wrote = time.Now()
		s.buf, spare = spare[:0], nil // two buffers take turns: one is filled while the other is written
		s.mu.Unlock()
		if err := s.writeOut(out); err != nil {
			_ = s.conn.Close() // the reader notices
			return
		}
		if spare = out; cap(spare) > 1<<20 {
			spare = nil
		}
	}
}

// untilPing is the time until the next moment of pings. All streams have the same moments: an idle node wakes up once
// for all of them.
func untilPing(every time.Duration, now time.Time) time.Duration {
	return every - time.Duration(now.UnixNano())%every
}

// writeOut writes bytes to the connection. It fails when a piece is not taken in writeTimeout, however many there are.
func (s *stream) writeOut(out []byte) error {
	for len(out) > 0 {
		piece := out[:min(len(out), writePiece)]
		_ = s.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := s.conn.Write(piece); err != nil {
			return err
		}
		out = out[len(piece):]
	}
	return nil
}

// read returns the next frame that is no ping.
func (s *stream) read() (kind uint8, body []byte, err error) {
	for {
		kind, body, err = readFrame((*patientReader)(s), maxFrame)
		if err != nil || kind != framePing {
			return kind, body, err
		}
		s.got.Add(^uint64(frameHeader - 1)) // less the ping
	}
}

// patientReader reads a stream's connection. It fails when nothing comes for a while, however long a frame takes.
type patientReader stream

func (s *patientReader) Read(b []byte) (int, error) {
	_ = s.conn.SetReadDeadline(time.Now().Add(s.silence))
	n, err := s.conn.Read(b)
	s.got.Add(uint64(n))
	return n, err
}

// close ends the stream and waits for the writer.
func (s *stream) close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.gone)
	}
	s.mu.Unlock()
	_ = s.conn.Close()
	<-s.done
}

// greeter begins connections: each side says who it is, and to what cluster it belongs, before anything else.
type greeter struct {
	cfg *Config
	id  ID

	mu      sync.Mutex
	refused map[ID]time.Time // when peers said that this node's number has another store
}

// refusedFor is how long the word of a peer counts that this node's number has another store. A node that is cut off
// asks again within seconds.
const refusedFor = time.Minute

// notAuthentic begins the refusal of a peer that knows another store under the caller's number.
const notAuthentic = "the connection is not authenticated as "

// noteAnswer notes whether a peer knows this node's store.
func (g *greeter) noteAnswer(peer ID, refused bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !refused {
		delete(g.refused, peer)
		return
	}
	if g.refused == nil {
		g.refused = map[ID]time.Time{}
	}
	g.refused[peer] = time.Now()
}

// refusedBy lists the peers that said last, and of late, that this node's number has another store, ascending.
func (g *greeter) refusedBy() []ID {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.refused, func(_ ID, at time.Time) bool { return time.Since(at) > refusedFor })
	return slices.Sorted(maps.Keys(g.refused))
}

// dial dials a peer for a purpose and says hello.
func (g *greeter) dial(ctx context.Context, peer ID, purpose uint8) (net.Conn, error) {
	return g.dialAs(ctx, peer, peer, purpose)
}

// anyStore names a node by its number alone: it may have been replaced, and have another store.
func anyStore(id ID) ID { return id >> 32 << 32 }

// dialAs is dial with the name that the hello gives the peer.
func (g *greeter) dialAs(ctx context.Context, peer, name ID, purpose uint8) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	conn, err := g.cfg.Dial(ctx, peer)
	if err != nil {
		return nil, fmt.Errorf("consensus: dial %x: %w", peer, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	h := hello{purpose: purpose, cluster: g.cfg.Identity.Cluster, generation: g.cfg.Identity.Generation, from: g.id,
		to: name}
	err = greet(conn, &h)
	if err == nil || errors.Is(err, ErrForeign) {
		g.noteAnswer(peer, errors.Is(err, errOtherStore))
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("consensus: hello to %x: %w", peer, err)
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, nil
}

func greet(conn net.Conn, h *hello) error {
	if _, err := conn.Write(appendFrame(nil, frameHello, h.append)); err != nil {
		return err
	}
	kind, body, err := readFrame(conn, maxHello)
	if err != nil {
		return err
	}
	if kind != frameWelcome {
		return fmt.Errorf("%w: type %d for a welcome", errFrame, kind)
	}
	if len(body) == 0 {
		return nil
	}
	err = fmt.Errorf("%w: %s", ErrForeign, body[:min(len(body), 300)])
	if bytes.HasPrefix(body, []byte(notAuthentic)) {
		err = fmt.Errorf("%w: %w", errOtherStore, err)
	}
	return err
}

// accept reads the hello of a connection and answers it.
func (g *greeter) accept(conn net.Conn, authentic func(ID) bool) (hello, error) {
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	kind, body, err := readFrame(conn, maxHello)
	if err != nil {
		return hello{}, fmt.Errorf("consensus: hello: %w", err)
	}
	if kind != frameHello {
		return hello{}, fmt.Errorf("%w: type %d for a hello", errFrame, kind)
	}
	h, err := decode[hello](body)
	if err != nil {
		return hello{}, fmt.Errorf("consensus: hello: %w", err)
	}
	refusal := g.refusal(&h, authentic)
	_, err = conn.Write(appendFrame(nil, frameWelcome, func(b []byte) []byte { return append(b, refusal...) }))
	if refusal != "" {
		return h, errors.Join(fmt.Errorf("%w: %x: %s", ErrForeign, h.from, refusal), err)
	}
	_ = conn.SetDeadline(time.Time{})
	return h, err
}

// refusal says why a peer is not welcome.
func (g *greeter) refusal(h *hello, authentic func(ID) bool) string {
	id := &g.cfg.Identity
	switch {
	case h.cluster != id.Cluster:
		return fmt.Sprintf("this node belongs to cluster %x, not %x", id.Cluster, h.cluster)
	case h.generation != id.Generation:
		return fmt.Sprintf("this node is of cluster generation %d, not %d: one of the two has to follow the other "+
			"with 'rdmcfs recover'", id.Generation, h.generation)
	case !authentic(h.from):
		return fmt.Sprintf(notAuthentic+"%x", h.from)
	case h.to != g.id && h.to != anyStore(g.id):
		return fmt.Sprintf("this is node %x, not %x", g.id, h.to)
	}
	return ""
}

// quiet reports whether an error only says that a connection ended.
func quiet(err error) bool {
	return err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe)
}
