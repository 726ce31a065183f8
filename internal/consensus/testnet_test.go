package consensus

import (
	"context"
	"net"
	"sync"
	"syscall"
)

// pipes is a listener whose connections are pipes in memory. With it nodes run in virtual time: a goroutine that waits
// for a socket of the kernel would hold the clock of a synctest bubble.
type pipes struct {
	arrived chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func newPipes() *pipes { return &pipes{arrived: make(chan net.Conn), closed: make(chan struct{})} }

// dial connects to whoever accepts. It waits until the connection is accepted, like connect(2).
func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	ours, far := net.Pipe()
	select {
	case p.arrived <- far:
		return ours, nil
	case <-p.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.arrived:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}
