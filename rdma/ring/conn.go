package ring

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// Conn is a channel as a stream of bytes: Write cuts it into messages, Read takes what has come of one or several. It
// follows net.Conn: deadlines, concurrent calls, errors of type *net.OpError.
type Conn struct {
	c             *Channel
	local, remote net.Addr
	reading       deadline
	writing       deadline
	wmu           sync.Mutex // one Write at a time: its bytes stay together
}

var _ net.Conn = (*Conn)(nil)

// Addr is a name of an end of a Conn.
type Addr string

// Network is "ring".
func (a Addr) Network() string { return "ring" }

func (a Addr) String() string { return string(a) }

// NewConn makes a stream of a connected channel, which belongs to it from now on. remote is what RemoteAddr returns;
// nil for the name of the device.
func NewConn(c *Channel, remote net.Addr) *Conn {
	local := Addr(c.e.dev.Name())
	if remote == nil {
		remote = local
	}
	return &Conn{c: c, local: local, remote: remote, reading: newDeadline(), writing: newDeadline()}
}

// LocalAddr is the name of the device.
func (n *Conn) LocalAddr() net.Addr { return n.local }

// RemoteAddr is the address that was given to NewConn.
func (n *Conn) RemoteAddr() net.Addr { return n.remote }

// Channel is what the stream is made of.
func (n *Conn) Channel() *Channel { return n.c }

// Read reads what has come, waiting for the first byte.
func (n *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c := n.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		done := n.reading.wait()
		if stopped(done) {
			return 0, n.failure("read", os.ErrDeadlineExceeded)
		}
		k, err := c.readLocked(p)
		if k > 0 {
			return k, nil
		}
		if err != nil {
			return 0, n.failure("read", err)
		}
		if !c.awaitLocked(done, &c.readers, (*Channel).mayRecvLocked) {
			return 0, n.failure("read", os.ErrDeadlineExceeded)
		}
	}
}

// readLocked fills p from the messages that are there.
func (c *Channel) readLocked(p []byte) (n int, err error) {
	for n < len(p) {
		a, ok := c.inbox.first()
		switch {
		case !ok:
			return n, c.recvErrorLocked()
		case a.kind == kindEnd:
			return n, io.EOF
		}
		k := copy(p[n:], c.bytesLocked(a)[c.read:])
		n += k
		if c.read += k; c.read == a.size {
			c.consumeLocked(a)
		}
	}
	return n, nil
}

// Write sends p, waiting while the peer has no room.
func (n *Conn) Write(p []byte) (int, error) {
	n.wmu.Lock()
	defer n.wmu.Unlock()
	c := n.c
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := 0
	for {
		done := n.writing.wait()
		if stopped(done) {
			return sent, n.failure("write", os.ErrDeadlineExceeded)
		}
		if err := c.sendErrorLocked(); err != nil {
			return sent, n.failure("write", err)
		}
		if sent == len(p) {
			return sent, nil
		}
		piece := p[sent:min(sent+c.remote.eager(), len(p))]
		if c.postWantedLocked(kindData, piece) {
			sent += len(piece)
			continue
		}
		if !c.awaitLocked(done, &c.writers, (*Channel).maySendLocked) {
			return sent, n.failure("write", os.ErrDeadlineExceeded)
		}
	}
}

// Close ends the stream: the peer reads what was written, then io.EOF. It waits for that as Channel.Close does.
func (n *Conn) Close() error {
	if err := n.c.Close(); err != nil {
		return n.failure("close", err)
	}
	return nil
}

// SetDeadline bounds reads and writes.
func (n *Conn) SetDeadline(t time.Time) error {
	return errors.Join(n.SetReadDeadline(t), n.SetWriteDeadline(t))
}

// SetReadDeadline bounds reads, also the ones that are waiting. The zero time is no bound.
func (n *Conn) SetReadDeadline(t time.Time) error { return n.bound(&n.reading, t) }

// SetWriteDeadline bounds writes, also the ones that are waiting. The zero time is no bound.
func (n *Conn) SetWriteDeadline(t time.Time) error { return n.bound(&n.writing, t) }

func (n *Conn) bound(d *deadline, t time.Time) error {
	if n.c.isClosing() {
		return n.failure("set", rdma.ErrClosed)
	}
	d.set(t)
	return nil
}

// failure is err in the words of package net.
func (n *Conn) failure(op string, err error) error {
	switch {
	case err == io.EOF:
		return err
	case errors.Is(err, rdma.ErrClosed):
		err = net.ErrClosed
	case errors.Is(err, ErrPeerClosed):
		err = fmt.Errorf("%w: %w", ErrPeerClosed, syscall.EPIPE)
	}
	return &net.OpError{Op: op, Net: "ring", Source: n.local, Addr: n.remote, Err: err}
}

// deadline is a channel that is closed at a time that may be moved.
type deadline struct {
	mu    sync.Mutex // protects all below
	timer *time.Timer
	moved int           // times that the deadline was set
	done  chan struct{} // closed at the deadline
}

func newDeadline() deadline { return deadline{done: make(chan struct{})} }

// wait returns a channel that is closed when the present deadline has passed, or when the deadline is set to a past
// time.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.moved++
	if d.timer != nil {
		d.timer.Stop()
	}
	if stopped(d.done) {
		d.done = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	if wait := time.Until(t); wait > 0 {
		mine := d.moved
		d.timer = time.AfterFunc(wait, func() { d.expire(mine) })
		return
	}
	close(d.done)
}

// expire closes done unless the deadline was moved meanwhile.
func (d *deadline) expire(moved int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.moved == moved {
		close(d.done)
	}
}

// isClosing reports whether Close was called.
func (c *Channel) isClosing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == stateClosing
}
