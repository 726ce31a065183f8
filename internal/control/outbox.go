package control

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	outboxBytesMax  = 8 << 20 // waiting to be written on one connection; put waits beyond
	outboxBytesKept = 256 << 10
	// writeBytes are written within the time of one write. A slow link breaks nothing as long as bytes move.
	writeBytes = 32 << 10
)

// outbox gathers frames for one connection; one goroutine writes what has gathered with one call.
type outbox struct {
	conn         net.Conn
	writeTimeout time.Duration
	done         chan struct{} // closed by the owner when the connection is over
	wake         chan struct{} // capacity 1: pending is not empty
	written      atomic.Int64  // bytes that the connection has taken

	mu      sync.Mutex
	queued  int64 // bytes that put has taken
	pending []byte
	spare   []byte
	space   chan struct{} // closed when pending has been taken; nil when nobody waits
}

func newOutbox(conn net.Conn, writeTimeout time.Duration, done chan struct{}) *outbox {
	return &outbox{conn: conn, writeTimeout: writeTimeout, done: done, wake: make(chan struct{}, 1)}
}

// put copies a frame. It waits only while too much is waiting already.
func (o *outbox) put(ctx context.Context, h header, payload []byte) error {
	_, err := o.putAt(ctx, h, payload)
	return err
}

// putAt is put; end is how many bytes the connection has taken when the frame is out.
func (o *outbox) putAt(ctx context.Context, h header, payload []byte) (end int64, err error) {
	h.length = uint32(len(payload))
	for {
		o.mu.Lock()
		if len(o.pending) == 0 || len(o.pending)+headerBytes+len(payload) <= outboxBytesMax {
			o.pending = append(appendHeader(o.pending, h), payload...)
			o.queued += int64(headerBytes + len(payload))
			end = o.queued
			o.mu.Unlock()
			select {
			case o.wake <- struct{}{}:
			default:
			}
			return end, nil
		}
		if o.space == nil {
			o.space = make(chan struct{})
		}
		space := o.space
		o.mu.Unlock()
		select {
		case <-space:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-o.done:
			return 0, ErrClosed
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
		if err := o.write(batch); err != nil {
			return err
		}
		o.giveBack(batch)
	}
}

// write writes a batch. Each part of it has writeTimeout.
func (o *outbox) write(batch []byte) error {
	for part := range slices.Chunk(batch, writeBytes) {
		if err := o.conn.SetWriteDeadline(time.Now().Add(o.writeTimeout)); err != nil {
			return err
		}
		if _, err := o.conn.Write(part); err != nil {
			return err
		}
		o.written.Add(int64(len(part)))
	}
	return nil
}

// across is how many bytes the other end's machine has acknowledged, or a little less.
func (o *outbox) across() int64 {
	written := o.written.Load() // first: what is written meanwhile is still on its way
	return max(0, written-unacknowledged(o.conn))
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
