package detsim

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// windowBytes is how much a connection takes that the other end has not read.
	windowBytes = 256 << 10
	// userTimeout is how long sent bytes may lie on a cut line, as TCP_USER_TIMEOUT; keepAlive is the same for an idle
	// connection.
	userTimeout = 5 * time.Second
	keepAlive   = 11 * time.Second
	// Bounds of the time of one way.
	latencyMin = 50 * time.Microsecond
	latencyMax = 2 * time.Millisecond
)

// network joins hosts by connections in memory, in order and with the time that lines take. Lines can be cut in each
// direction, slowed and healed; what was sent on a cut line arrives when it is whole again, unless the connection has
// ended by then.
type network struct {
	w *world

	mu        sync.Mutex
	listeners map[string]*listener
	conns     map[*conn]struct{} // one end of each
	cuts      map[[2]string]int  // from, to: how many faults hold it
	stopped   map[string]chan struct{}
	rate      map[string]float64   // bytes a second out of a host; 0: no bound
	free      map[string]time.Time // when the line out of a host is free
	changed   chan struct{}        // closed and replaced when lines or hosts change
}

func newNetwork(w *world) *network {
	return &network{
		w: w, listeners: map[string]*listener{}, conns: map[*conn]struct{}{}, cuts: map[[2]string]int{},
		stopped: map[string]chan struct{}{},
		rate:    map[string]float64{}, free: map[string]time.Time{}, changed: make(chan struct{}),
	}
}

// changedLocked wakes all goroutines that wait for a line.
func (n *network) changedLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// cut parts a line in one direction, until heal was called as often.
func (n *network) cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cuts[[2]string{from, to}]++
	n.changedLocked()
	for c := range n.conns {
		if c.local.host() == from && c.remote.host() == to || c.local.host() == to && c.remote.host() == from {
			c.watchLocked()
		}
	}
}

// heal takes one cut back, and reports whether the line is whole in both directions then.
func (n *network) heal(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cuts[[2]string{from, to}]--
	n.changedLocked()
	return n.cuts[[2]string{from, to}] == 0 && n.cuts[[2]string{to, from}] == 0
}

// setRate bounds what a host sends, in bytes a second; 0 is no bound. What it has sent and has not arrived yet goes on
// at the new rate.
func (n *network) setRate(host string, rate float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now, old := time.Now(), n.rate[host]
	n.rate[host] = rate
	if old == 0 {
		return
	}
	left := 0.0 // of the time that it would have taken
	if rate > 0 {
		left = old / rate
	}
	arrival := func(at time.Time) time.Time {
		return now.Add(time.Duration(left * float64(max(0, at.Sub(now)))))
	}
	n.free[host] = arrival(n.free[host])
	for c := range n.conns {
		for _, from := range []*conn{c, c.peer} {
			if from.local.host() == host {
				from.peer.rearrangeLocked(arrival)
			}
		}
	}
}

// rearrangeLocked changes when the bytes that are on their way arrive.
func (c *conn) rearrangeLocked(arrival func(time.Time) time.Time) {
	for i := range c.in {
		c.in[i].at = arrival(c.in[i].at)
	}
	c.last = arrival(c.last)
	c.wakeLocked()
}

// stop holds a host: its programs get nothing and send nothing until go on.
func (n *network) stop(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped[host] == nil {
		n.stopped[host] = make(chan struct{})
	}
}

func (n *network) resume(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.stopped[host]; c != nil {
		close(c)
		delete(n.stopped, host)
		n.changedLocked()
	}
}

// awaitRunning blocks a program of a host that is stopped.
func (n *network) awaitRunning(host string) {
	for {
		n.mu.Lock()
		c := n.stopped[host]
		n.mu.Unlock()
		if c == nil {
			return
		}
		<-c
	}
}

// kill ends the connections and the listener of a process. Its machine says so to the others, unless its power is gone.
func (n *network) kill(p *process, silent bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for addr, l := range n.listeners {
		if l.of == p {
			delete(n.listeners, addr)
			close(l.closed)
		}
	}
	for c := range n.conns {
		if c.of != p && c.peer.of != p {
			continue
		}
		end := c
		if end.of != p {
			end = c.peer
		}
		end.failLocked(net.ErrClosed)
		if !silent && n.cuts[[2]string{end.local.host(), end.remote.host()}] == 0 {
			end.peer.failLocked(syscall.ECONNRESET)
		} else {
			end.peer.mute = true
			end.peer.watchLocked()
		}
	}
	n.changedLocked()
}

// addr is HOST:PORT.
type addr string

func (a addr) Network() string { return "tcp" }
func (a addr) String() string  { return string(a) }

func (a addr) host() string {
	h, _, err := net.SplitHostPort(string(a))
	if err != nil {
		return string(a)
	}
	return h
}

// listener is a port that a process listens on.
type listener struct {
	n      *network
	of     *process
	addr   addr
	queue  chan *conn
	closed chan struct{}
}

const backlog = 128

// listen opens a port.
func (n *network) listen(p *process, at string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.dead {
		return nil, syscall.EADDRNOTAVAIL
	}
	if n.listeners[at] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := &listener{n: n, of: p, addr: addr(at), queue: make(chan *conn, backlog), closed: make(chan struct{})}
	n.listeners[at] = l
	return l, nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Close() error {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	if l.n.listeners[string(l.addr)] == l {
		delete(l.n.listeners, string(l.addr))
		close(l.closed)
	}
	return nil
}

// dial connects a process to a port.
func (n *network) dial(ctx context.Context, p *process, to string) (net.Conn, error) {
	from, dest := p.host, addr(to).host()
	for {
		n.awaitRunning(from)
		n.mu.Lock()
		changed := n.changed
		open := n.cuts[[2]string{from, dest}] == 0 && n.cuts[[2]string{dest, from}] == 0 && !n.w.powerless(dest)
		l := n.listeners[to]
		n.mu.Unlock()
		if p.dead {
			return nil, syscall.ENETDOWN
		}
		if open {
			if err := sleep(ctx, n.w.latency()+n.w.latency()); err != nil {
				return nil, err
			}
			if l == nil {
				return nil, syscall.ECONNREFUSED
			}
			return n.connect(p, l)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		}
	}
}

func (n *network) connect(p *process, l *listener) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.dead || n.listeners[string(l.addr)] != l {
		return nil, syscall.ECONNREFUSED
	}
	n.w.ports++
	local := addr(net.JoinHostPort(p.host, itoa(40000+n.w.ports)))
	a := &conn{n: n, of: p, local: local, remote: l.addr, notify: make(chan struct{})}
	b := &conn{n: n, of: l.of, local: l.addr, remote: local, notify: make(chan struct{})}
	a.peer, b.peer = b, a
	select {
	case l.queue <- b:
	default:
		return nil, syscall.ECONNREFUSED
	}
	n.conns[a] = struct{}{}
	return a, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// segment is bytes under way to an end.
type segment struct {
	data []byte
	at   time.Time
}

// conn is one end of a connection. Its fields are protected by the network's lock.
type conn struct {
	n             *network
	of            *process
	peer          *conn
	local, remote addr

	in       []segment // that the peer has sent
	inBytes  int
	last     time.Time // when the last of them arrives
	eof      bool      // the peer has closed
	err      error     // the connection has ended for this end
	mute     bool      // the peer's machine is gone and can't say so
	watching bool

	readBy, writeBy time.Time
	notify          chan struct{} // closed and replaced when anything of this end changes
}

func (c *conn) wakeLocked() {
	close(c.notify)
	c.notify = make(chan struct{})
}

func (c *conn) failLocked(err error) {
	if c.err == nil {
		c.err = err
	}
	c.wakeLocked()
	if c.peer.err != nil {
		delete(c.n.conns, c)
		delete(c.n.conns, c.peer)
	}
}

// openLocked reports whether what this end sent can arrive.
func (c *conn) openLocked() bool { return c.n.cuts[[2]string{c.local.host(), c.remote.host()}] == 0 }

// watchLocked makes the connection end if its line is not whole again in time.
func (c *conn) watchLocked() {
	if c.watching {
		return
	}
	c.watching = true
	since := time.Now()
	time.AfterFunc(userTimeout, func() { c.check(since, userTimeout) })
}

func (c *conn) check(since time.Time, passed time.Duration) {
	n := c.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.openLocked() && c.peer.openLocked() && !c.mute && !c.peer.mute {
		c.watching = false
		return
	}
	pending := c.inBytes > 0 || c.peer.inBytes > 0
	if pending || passed >= keepAlive {
		c.failLocked(syscall.ETIMEDOUT)
		c.peer.failLocked(syscall.ETIMEDOUT)
		return
	}
	time.AfterFunc(keepAlive-userTimeout, func() { c.check(since, keepAlive) })
}

// await waits for a change, or until at or by, whichever comes first. The lock is held before and after.
func (c *conn) awaitLocked(at, by time.Time) {
	notify, changed := c.notify, c.n.changed
	var timer <-chan time.Time
	until := by
	if !at.IsZero() && (until.IsZero() || at.Before(until)) {
		until = at
	}
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		timer = t.C
	}
	c.n.mu.Unlock()
	select {
	case <-notify:
	case <-changed:
	case <-timer:
	}
	c.n.mu.Lock()
}

func (c *conn) Read(b []byte) (int, error) {
	c.n.awaitRunning(c.local.host())
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for {
		now := time.Now()
		switch {
		case c.err != nil:
			return 0, c.opError("read", c.err)
		case !c.readBy.IsZero() && !now.Before(c.readBy):
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case c.n.stopped[c.local.host()] != nil:
			c.n.mu.Unlock()
			c.n.awaitRunning(c.local.host())
			c.n.mu.Lock()
			continue
		}
		var at time.Time
		if len(c.in) > 0 && c.peer.openLocked() {
			if at = c.in[0].at; !at.After(now) {
				got := copy(b, c.in[0].data)
				c.in[0].data = c.in[0].data[got:]
				if len(c.in[0].data) == 0 {
					c.in = c.in[1:]
				}
				c.inBytes -= got
				c.peer.wakeLocked()
				return got, nil
			}
		} else if len(c.in) == 0 && c.eof {
			return 0, io.EOF
		}
		c.awaitLocked(at, c.readBy)
	}
}

func (c *conn) Write(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		c.n.awaitRunning(c.local.host())
		got, err := c.writeSome(b[sent:])
		sent += got
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

func (c *conn) writeSome(b []byte) (int, error) {
	n := c.n
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		now := time.Now()
		switch {
		case c.err != nil:
			return 0, c.opError("write", c.err)
		case c.eof && c.peer.err != nil:
			return 0, c.opError("write", syscall.EPIPE)
		case c.mute && !n.w.powerless(c.remote.host()): // the machine runs again, and knows nothing of the connection
			c.failLocked(syscall.ECONNRESET)
			return 0, c.opError("write", c.err)
		case !c.writeBy.IsZero() && !now.Before(c.writeBy):
			return 0, c.opError("write", os.ErrDeadlineExceeded)
		}
		if room := windowBytes - c.peer.inBytes; room > 0 {
			part := append([]byte(nil), b[:min(room, len(b))]...)
			at := now
			if rate := n.rate[c.local.host()]; rate > 0 {
				at = maxTime(now, n.free[c.local.host()]).Add(time.Duration(float64(len(part)) / rate * float64(time.Second)))
				n.free[c.local.host()] = at
			}
			at = maxTime(at.Add(n.w.latency()), c.peer.last)
			c.peer.last = at
			c.peer.in = append(c.peer.in, segment{part, at})
			c.peer.inBytes += len(part)
			c.peer.wakeLocked()
			if !c.openLocked() || !c.peer.openLocked() || c.mute {
				c.watchLocked()
			}
			return len(part), nil
		}
		c.awaitLocked(time.Time{}, c.writeBy)
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (c *conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

func (c *conn) Close() error {
	n := c.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if errors.Is(c.err, net.ErrClosed) {
		return nil
	}
	c.failLocked(net.ErrClosed)
	c.peer.eof = true
	c.peer.wakeLocked()
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error      { return c.setDeadlines(t, &c.readBy, &c.writeBy) }
func (c *conn) SetReadDeadline(t time.Time) error  { return c.setDeadlines(t, &c.readBy) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writeBy) }

func (c *conn) setDeadlines(t time.Time, of ...*time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for _, at := range of {
		*at = t
	}
	c.wakeLocked()
	return nil
}
