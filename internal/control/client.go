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
	calls  map[uint64]chan answer // by id; each has capacity 1, and only the reader sends to it

	tasks sync.WaitGroup
}

// answer is what ends a call: a reply or an error.
type answer struct {
	payload []byte
	err     error
}

// newClient takes over the connection, after the greeting.
func newClient(conn net.Conn) *client {
	c := &client{conn: conn, in: newInbox(conn, frameTimeout), done: make(chan struct{}), calls: map[uint64]chan answer{}}
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

// open enters a call into the table.
func (c *client) open() (uint64, <-chan answer, error) {
	answered := make(chan answer, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, nil, c.err
	}
	c.lastID++
	c.calls[c.lastID] = answered
	return c.lastID, answered, nil
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
	id, answered, err := c.start(ctx, kind, payload, w)
	if err != nil {
		return nil, err
	}
	select {
	case a := <-answered:
		return a.payload, a.err
	case <-ctx.Done():
		c.abandon(id)
		return nil, ctx.Err()
	case <-c.done:
		c.forget(id)
		return nil, c.lost()
	}
}

// start sends the frame that opens a call.
func (c *client) start(ctx context.Context, kind uint32, payload []byte, w *watch) (uint64, <-chan answer, error) {
	if len(payload) > MaxPayload {
		return 0, nil, fmt.Errorf("control: call of %d bytes: %w", len(payload), ErrTooLarge)
	}
	timeoutMS, err := timeoutOf(ctx)
	if err != nil {
		return 0, nil, err
	}
	id, answered, err := c.open()
	if err != nil {
		return 0, nil, err
	}
	end, err := c.out.putAt(ctx, header{kind: frameCall, id: id, argument: kind, timeoutMS: timeoutMS}, payload)
	if err != nil {
		c.forget(id)
		return 0, nil, err
	}
	if w != nil {
		w.end.Store(end)
	}
	return id, answered, nil
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
	case frameReply, frameError:
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
	answered := c.calls[h.id]
	known := h.id <= c.lastID
	delete(c.calls, h.id)
	c.mu.Unlock()
	switch {
	case !known:
		return fmt.Errorf("%w: answer to a call %d that was never made", ErrProtocol, h.id)
	case answered == nil:
		return in.skip(h)
	}
	payload, err := in.payload(h)
	if err != nil {
		return err
	}
	a := answer{payload: payload}
	if h.kind == frameError {
		a = answer{err: &RemoteError{Code: Code(h.argument), Message: string(payload)}}
	}
	answered <- a // the only one: the call has left the table
	return nil
}
