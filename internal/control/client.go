package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	writeTimeout = 10 * time.Second
	frameTimeout = 20 * time.Second
)

// client makes calls over one connection. It fails all of them when the connection does.
type client struct {
	conn net.Conn
	in   *inbox
	out  *outbox
	done chan struct{} // closed once, with err set

	mu     sync.Mutex
	err    error
	lastID uint64
	calls  map[uint64]*outgoing

	tasks sync.WaitGroup
}

// outgoing is one call or stream that waits for frames.
type outgoing struct {
	stream bool
	answer chan answer // capacity 1 for calls, StreamWindow+1 for streams; only the reader sends
}

// answer is a reply, an item, or an end.
type answer struct {
	payload []byte
	err     error // io.EOF ends a stream
}

// newClient takes over the connection, after the greeting.
func newClient(conn net.Conn) *client {
	c := &client{conn: conn, in: newInbox(conn, frameTimeout), done: make(chan struct{}), calls: map[uint64]*outgoing{}}
	c.out = newOutbox(conn, writeTimeout, c.done)
	c.tasks.Go(func() { c.fail(c.out.run()) })
	c.tasks.Go(func() { c.fail(c.read()) })
	return c
}

// alive reports whether the connection can take another call.
func (c *client) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// fail ends the connection; the first error is what all calls get.
func (c *client) fail(err error) {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		err = ErrClosed
	}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	c.mu.Unlock()
	close(c.done)
	c.conn.Close()
}

// close ends the connection and waits for its goroutines.
func (c *client) close() {
	c.fail(ErrClosed)
	c.tasks.Wait()
}

func (c *client) open(stream bool) (uint64, *outgoing, error) {
	o := &outgoing{stream: stream, answer: make(chan answer, 1)}
	if stream {
		o.answer = make(chan answer, StreamWindow+1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, nil, c.err
	}
	c.lastID++
	c.calls[c.lastID] = o
	return c.lastID, o, nil
}

// forget drops a call that nobody waits for any more.
func (c *client) forget(id uint64) {
	c.mu.Lock()
	delete(c.calls, id)
	c.mu.Unlock()
}

// call sends a request and waits for its reply. The payload may be reused when it returns.
func (c *client) call(ctx context.Context, kind uint32, payload []byte) ([]byte, error) {
	return c.callWatched(ctx, kind, payload, nil)
}

// callWatched is call, watched by w if that is not nil.
func (c *client) callWatched(ctx context.Context, kind uint32, payload []byte, w *watch) ([]byte, error) {
	id, o, err := c.start(ctx, frameCall, kind, payload, w)
	if err != nil {
		return nil, err
	}
	select {
	case a := <-o.answer:
		return a.payload, a.err
	case <-ctx.Done():
		c.abandon(id)
		return nil, ctx.Err()
	case <-c.done:
		c.forget(id)
		return nil, c.lost()
	}
}

// start sends the opening frame of a call or stream.
func (c *client) start(ctx context.Context, t frameType, kind uint32, payload []byte, w *watch) (uint64, *outgoing, error) {
	if len(payload) > MaxPayload {
		return 0, nil, fmt.Errorf("control: call of %d bytes: %w", len(payload), ErrTooLarge)
	}
	timeoutMS, err := timeoutOf(ctx)
	if err != nil {
		return 0, nil, err
	}
	id, o, err := c.open(t == frameStream)
	if err != nil {
		return 0, nil, err
	}
	end, err := c.out.putAt(ctx, header{kind: t, id: id, argument: kind, timeoutMS: timeoutMS}, payload)
	if err != nil {
		c.forget(id)
		return 0, nil, err
	}
	if w != nil {
		w.end.Store(end)
	}
	return id, o, nil
}

// abandon tells the peer that the answer is not wanted any more, if that can be said without waiting long.
func (c *client) abandon(id uint64) {
	c.forget(id)
	ctx, cancel := context.WithTimeout(context.Background(), abandonTimeout)
	defer cancel()
	c.out.put(ctx, header{kind: frameCancel, id: id}, nil)
}

const abandonTimeout = 10 * time.Millisecond

func (c *client) lost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("control: connection lost: %w", c.err)
}

// timeoutOf is the rest of the context's time in milliseconds, rounded up; 0 when it has no end.
func timeoutOf(ctx context.Context) (uint32, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	end, ok := ctx.Deadline()
	if !ok {
		return 0, nil
	}
	const most = 1<<32 - 1
	ms := (time.Until(end) + time.Millisecond - 1).Milliseconds()
	return uint32(min(max(ms, 1), most)), nil
}

// read takes frames until the connection ends.
func (c *client) read() error {
	for {
		h, err := c.in.header()
		if err != nil {
			return err
		}
		if err := c.receive(c.in, h); err != nil {
			return err
		}
	}
}

// receive gives one frame to the call that it belongs to. Frames of forgotten calls are skipped.
func (c *client) receive(in *inbox, h header) error {
	switch h.kind {
	case frameReply, frameError, frameItem, frameEnd:
	case frameGoodbye:
		text, err := in.payload(h)
		if err != nil {
			return err
		}
		return &RemoteError{Code: Code(h.argument), Message: string(text)}
	default:
		return fmt.Errorf("%w: frame of type %d from the answering side", ErrProtocol, h.kind)
	}
	c.mu.Lock()
	o := c.calls[h.id]
	known := h.id <= c.lastID
	if o != nil && h.kind != frameItem {
		delete(c.calls, h.id)
	}
	c.mu.Unlock()
	switch {
	case !known:
		return fmt.Errorf("%w: answer to a call %d that was never made", ErrProtocol, h.id)
	case o == nil:
		return in.skip(h)
	case h.kind != frameError && o.stream == (h.kind == frameReply):
		return fmt.Errorf("%w: answer of type %d", ErrProtocol, h.kind)
	}
	payload, err := in.payload(h)
	if err != nil {
		return err
	}
	return o.deliver(h, payload)
}

func (o *outgoing) deliver(h header, payload []byte) error {
	a := answer{payload: payload}
	switch h.kind {
	case frameError:
		a = answer{err: &RemoteError{Code: Code(h.argument), Message: string(payload)}}
	case frameEnd:
		a = answer{err: io.EOF}
	case frameItem:
		if len(o.answer) >= StreamWindow {
			return fmt.Errorf("%w: stream beyond its window", ErrProtocol)
		}
	}
	select {
	case o.answer <- a:
		return nil
	default:
		return fmt.Errorf("%w: more answers than asked for", ErrProtocol)
	}
}

// Stream is the receiving side of a call with many answers. One goroutine uses it; Close ends it early.
type Stream struct {
	c        *client
	id       uint64
	o        *outgoing
	ctx      context.Context
	consumed uint32 // items not credited yet
	err      error
}

// stream opens a stream that lives until its end, Close, or the end of ctx.
func (c *client) stream(ctx context.Context, kind uint32, payload []byte) (*Stream, error) {
	id, o, err := c.start(ctx, frameStream, kind, payload, nil)
	if err != nil {
		return nil, err
	}
	return &Stream{c: c, id: id, o: o, ctx: ctx}, nil
}

// Recv waits for the next item, which then belongs to the caller. At the end it returns io.EOF; after any error
// it returns that error again.
func (s *Stream) Recv() ([]byte, error) {
	if s.err != nil {
		return nil, s.err
	}
	a, err := s.next()
	if err == nil {
		err = s.credit()
	}
	if err != nil {
		s.err = err
		return nil, err
	}
	return a.payload, nil
}

func (s *Stream) next() (answer, error) {
	select {
	case a := <-s.o.answer: // what has arrived counts although the connection is gone
		return a, a.err
	default:
	}
	select {
	case a := <-s.o.answer:
		return a, a.err
	case <-s.ctx.Done():
		s.c.abandon(s.id)
		return answer{}, s.ctx.Err()
	case <-s.c.done:
		s.c.forget(s.id)
		return answer{}, s.c.lost()
	}
}

// credit lets the peer send more, half a window at a time.
func (s *Stream) credit() error {
	if s.consumed++; s.consumed < StreamWindow/2 {
		return nil
	}
	n := s.consumed
	s.consumed = 0
	return s.c.out.put(s.ctx, header{kind: frameCredit, id: s.id, argument: n}, nil)
}

// Close ends the stream; the peer's handler is cancelled if it still runs. It does not wait for it.
func (s *Stream) Close() error {
	if s.err == nil {
		s.err = ErrClosed
		s.c.abandon(s.id)
	}
	return nil
}
