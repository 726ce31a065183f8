package control

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	outboxBytesMax  = 8 << 20 // waiting to be written on one connection; put waits beyond
	outboxBytesKept = 256 << 10
)

// outbox gathers frames for one connection; one goroutine writes what has gathered with one call.
type outbox struct {
	conn         net.Conn
	writeTimeout time.Duration
	done         chan struct{} // closed by the owner when the connection is over
	wake         chan struct{} // capacity 1: pending is not empty

	mu      sync.Mutex
	pending []byte
	spare   []byte
	space   chan struct{} // closed when pending has been taken; nil when nobody waits
}

func newOutbox(conn net.Conn, writeTimeout time.Duration, done chan struct{}) *outbox {
	return &outbox{conn: conn, writeTimeout: writeTimeout, done: done, wake: make(chan struct{}, 1)}
}

// put copies a frame. It waits only while too much is waiting already.
func (o *outbox) put(ctx context.Context, h header, payload []byte) error {
	h.length = uint32(len(payload))
	for {
		o.mu.Lock()
		if len(o.pending) == 0 || len(o.pending)+headerBytes+len(payload) <= outboxBytesMax {
			o.pending = append(appendHeader(o.pending, h), payload...)
			o.mu.Unlock()
			select {
			case o.wake <- struct{}{}:
			default:
			}
			return nil
		}
		if o.space == nil {
			o.space = make(chan struct{})
		}
		space := o.space
		o.mu.Unlock()
		select {
		case <-space:
		case <-ctx.Done():
			return ctx.Err()
		case <-o.done:
			return ErrClosed
		}
	}
}

// run writes until done is closed or the connection fails.
func (o *outbox) run() error {
	for {
		select {
		case <-o.done:
			return nil
		case <-o.wake:
		}
		batch := o.take()
		if err := o.conn.SetWriteDeadline(time.Now().Add(o.writeTimeout)); err != nil {
			return err
		}
		if _, err := o.conn.Write(batch); err != nil {
			return err
		}
		o.giveBack(batch)
	}
}

func (o *outbox) take() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch := o.pending
	o.pending, o.spare = o.spare[:0], nil
	if o.space != nil {
		close(o.space)
		o.space = nil
	}
	return batch
}

func (o *outbox) giveBack(batch []byte) {
	if cap(batch) > outboxBytesKept {
		return
	}
	o.mu.Lock()
	o.spare = batch
	o.mu.Unlock()
}
