package ring

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// The tests send and receive whole messages, of which a Conn makes a stream.

var errTooLarge = errors.New("ring: message too large")

// Recv copies the next message into buf. It blocks until there is one, or ctx is done. io.EOF means that the peer has
// closed the channel. io.ErrShortBuffer means that buf is too small for the message, whose size is returned; the
// message stays then.
func (c *Channel) Recv(ctx context.Context, buf []byte) (size int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		size, ok, err := c.tryRecvLocked(buf)
		if ok || err != nil {
			return size, err
		}
		if !c.awaitLocked(ctx.Done(), &c.readers, (*Channel).mayRecvLocked) {
			return 0, fmt.Errorf("ring: receive: %w", context.Cause(ctx))
		}
	}
}

// tryRecvLocked is Recv without waiting.
func (c *Channel) tryRecvLocked(buf []byte) (size int, ok bool, err error) {
	a, ok := c.inbox.first()
	switch {
	case !ok:
		return 0, false, c.recvErrorLocked()
	case a.kind == kindEnd:
		return 0, false, io.EOF
	}
	size = a.size - c.read
	if len(buf) < size {
		return size, false, fmt.Errorf("ring: message of %d bytes into %d: %w", size, len(buf), io.ErrShortBuffer)
	}
	copy(buf, c.bytesLocked(a)[c.read:])
	c.consumeLocked(a)
	return size, true, nil
}

// MaxEager is the largest message that Send takes; it is known after Connect.
func (c *Channel) MaxEager() int { return c.remote.eager() }

// Send sends a message of at most MaxEager bytes; p is free again when it returns. It blocks while the peer has no
// buffer for it, until ctx is done. When it returns the message is on its way, not there.
func (c *Channel) Send(ctx context.Context, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sendWhenLocked(ctx, kindData, p)
}

func (c *Channel) sendWhenLocked(ctx context.Context, k kind, p []byte) error {
	for {
		if err := c.sendErrorLocked(); err != nil {
			return err
		}
		if len(p) > c.remote.eager() {
			return fmt.Errorf("%w: %d bytes, limit %d", errTooLarge, len(p), c.remote.eager())
		}
		if c.postWantedLocked(k, p) {
			return c.err
		}
		if !c.awaitLocked(ctx.Done(), &c.writers, (*Channel).maySendLocked) {
			return fmt.Errorf("ring: send: %w", context.Cause(ctx))
		}
	}
}
