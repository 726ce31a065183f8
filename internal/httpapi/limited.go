package httpapi

import (
	"net"
	"sync"
)

// limited is a listener of which only so many connections exist at a time. More wait in the kernel's queue.
type limited struct {
	net.Listener
	free   chan struct{} // has one for each connection that there may still be
	closed chan struct{}
	once   sync.Once
}

func newLimited(ln net.Listener, most int) *limited {
	l := &limited{Listener: ln, free: make(chan struct{}, most), closed: make(chan struct{})}
	for range most {
		l.free <- struct{}{}
	}
	return l
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case <-l.free:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		l.free <- struct{}{}
		return nil, err
	}
	return &counted{Conn: conn, listener: l}, nil
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// counted is a connection that makes room for another one when it is closed.
type counted struct {
	net.Conn
	listener *limited
	once     sync.Once
}

// Close implements net.Conn.
func (c *counted) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.listener.free <- struct{}{} })
	return err
}
