// Package rings carries the traffic of control over an RDMA device: calls, their answers and the log go through
// channels of [ring], small messages by RDMA write, as streams of bytes below TLS.
//
// Two nodes agree over a TCP connection that both have authenticated: each writes the address of a channel, which holds
// secrets, and joins its channel with the other's. That connection stays open as long as the stream does; its break is
// how a dead process or host is noticed at once, as one-sided writes find no end of file.
package rings

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/ring"
)

const (
	// ConnectionsMax bounds the streams of a fabric: each takes 170 KB of registered memory. Further connections stay
	// on TCP.
	ConnectionsMax = 256
	// addressMax bounds an address on the wire; it follows a length of two bytes, 0 for a refusal.
	addressMax = 512
	// farewellWait bounds the writing of the byte that says that a stream was ended, not lost.
	farewellWait = time.Second
)

var (
	// ErrRefused is matched if the other end makes no channel.
	ErrRefused = errors.New("rings: refused by the other end")
	// ErrFull is matched if this end makes no more channels.
	ErrFull = fmt.Errorf("rings: %d connections are open", ConnectionsMax)
)

// Fabric makes streams over one device. All methods may be called from several goroutines.
type Fabric struct {
	endpoint *ring.Endpoint
	tasks    sync.WaitGroup // of streams: begun with mu held and closed false

	mu      sync.Mutex
	streams map[*stream]struct{}
	closed  bool
}

// New makes a fabric on a device with one-sided writes, which must outlive it.
func New(device rdma.Device) (*Fabric, error) {
	endpoint, err := ring.NewEndpoint(device, ring.Config{})
	if err != nil {
		return nil, fmt.Errorf("rings: %w", err)
	}
	return &Fabric{endpoint: endpoint, streams: make(map[*stream]struct{})}, nil
}

// Connections is how many streams are open.
func (f *Fabric) Connections() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.streams)
}

// Close ends all streams and waits for them.
func (f *Fabric) Close() error {
	f.mu.Lock()
	f.closed = true
	for s := range f.streams {
		f.endLocked(s)
	}
	f.mu.Unlock()
	f.tasks.Wait()
	return f.endpoint.Close()
}

// Dial and Accept agree with the other end over a connection, which is the fabric's from now on, and return the stream
// when it is joined. They wait until ctx is done at most. Each end calls one of them.
func (f *Fabric) Dial(ctx context.Context, agreed net.Conn) (net.Conn, error) {
	return f.join(ctx, agreed)
}

// Accept is the other end of Dial.
func (f *Fabric) Accept(ctx context.Context, agreed net.Conn) (net.Conn, error) {
	return f.join(ctx, agreed)
}

func (f *Fabric) join(ctx context.Context, agreed net.Conn) (net.Conn, error) {
	s, err := f.newStream(agreed)
	if err != nil {
		return nil, errors.Join(err, refuse(agreed), agreed.Close())
	}
	if err := s.join(ctx); err != nil {
		s.Close()
		return nil, fmt.Errorf("rings: %w", err)
	}
	return s, nil
}

// newStream makes a stream that is not joined.
func (f *Fabric) newStream(agreed net.Conn) (*stream, error) {
	if err := f.admits(); err != nil {
		return nil, err
	}
	channel, err := f.endpoint.NewChannel()
	if err != nil {
		return nil, fmt.Errorf("rings: %w", err)
	}
	s := &stream{Conn: ring.NewConn(channel, agreed.RemoteAddr()), f: f, agreed: agreed}
	f.mu.Lock()
	if err = f.admitsLocked(); err == nil {
		f.streams[s] = struct{}{}
	}
	f.mu.Unlock()
	if err != nil { // closed, or filled by others meanwhile
		return nil, errors.Join(err, channel.Close())
	}
	return s, nil
}

// admits says why there can't be one more stream.
func (f *Fabric) admits() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.admitsLocked()
}

func (f *Fabric) admitsLocked() error {
	switch {
	case f.closed:
		return fmt.Errorf("rings: %w", net.ErrClosed)
	case len(f.streams) >= ConnectionsMax:
		return ErrFull
	}
	return nil
}

// endLocked ends a stream in the background: what was written reaches the other end, within a second.
func (f *Fabric) endLocked(s *stream) {
	if _, open := f.streams[s]; !open {
		return
	}
	delete(f.streams, s)
	f.tasks.Go(s.end)
}

// stream is a connection over a ring, with the one that it was agreed on.
type stream struct {
	*ring.Conn
	f      *Fabric
	agreed net.Conn
}

// Close ends the stream without waiting.
func (s *stream) Close() error {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.endLocked(s)
	return nil
}

// end notifies the other end, by the ring and then by the connection.
func (s *stream) end() {
	_ = s.Conn.Close()
	_ = s.agreed.SetDeadline(time.Now().Add(farewellWait))
	_, _ = s.agreed.Write([]byte{1})
	_ = s.agreed.Close()
}

// join exchanges addresses and joins the channels.
func (s *stream) join(ctx context.Context) error {
	remote, err := exchange(ctx, s.agreed, s.Channel().Address())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := s.watch(cancel); err != nil {
		return err
	}
	if err := s.Channel().Connect(ctx, remote); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return nil
}

// watch ends the stream when the connection breaks that it was agreed on.
func (s *stream) watch(lost context.CancelCauseFunc) error {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if _, open := s.f.streams[s]; !open {
		return net.ErrClosed
	}
	s.f.tasks.Go(func() {
		var farewell [1]byte
		if _, err := io.ReadFull(s.agreed, farewell[:]); err == nil {
			return // the other end has ended the stream, whose reader finds that behind all that was written
		} else {
			lost(fmt.Errorf("%w: %w", ring.ErrBroken, err))
		}
		s.Close()
	})
	return nil
}

// exchange writes this end's address and reads the other's.
func exchange(ctx context.Context, conn net.Conn, own []byte) (remote []byte, err error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
	}()
	n := uint16(len(own))
	to := coder.Writer(nil, coder.Big)
	to.U16(&n)
	if _, err := conn.Write(append(to.Written(), own...)); err != nil {
		return nil, err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	from := coder.Reader(length[:], coder.Big)
	from.U16(&n)
	switch {
	case n == 0:
		return nil, ErrRefused
	case n > addressMax:
		return nil, fmt.Errorf("address of %d bytes, at most %d", n, addressMax)
	}
	remote = make([]byte, n)
	if _, err := io.ReadFull(conn, remote); err != nil {
		return nil, err
	}
	return remote, nil
}

// refuse tells the other end that there will be no stream.
func refuse(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(farewellWait)); err != nil {
		return err
	}
	_, err := conn.Write([]byte{0, 0})
	return err
}
