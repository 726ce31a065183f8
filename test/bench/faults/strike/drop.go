package strike

import (
	"context"
	"net"
	"sync"

	"github.com/rdmcfs/rdmcfs/rdma/tcp"
)

// dropper is a network that can be cut: from then on what is sent vanishes, and what comes is thrown away.
type dropper struct {
	cut  chan struct{} // closed by drop
	once sync.Once
}

func newDropper() *dropper { return &dropper{cut: make(chan struct{})} }

func (d *dropper) drop() { d.once.Do(func() { close(d.cut) }) }

func (d *dropper) dropped() bool {
	select {
	case <-d.cut:
		return true
	default:
		return false
	}
}

// dial is for rendezvous.Config and tcp.Config.
func (d *dropper) dial(ctx context.Context, addr string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &droppedConn{conn, d}, nil
}

// serve accepts data connections for the device until the listener is closed, and waits for those it has begun.
func (d *dropper) serve(listener net.Listener, device *tcp.Device) {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		work.Go(func() { device.Serve(&droppedConn{conn, d}) }) // an error closes it, and the dialer sees that
	}
}

// droppedListener is a listener in such a network.
type droppedListener struct {
	net.Listener
	network *dropper
}

// Accept waits for a connection.
func (l *droppedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &droppedConn{conn, l.network}, nil
}

type droppedConn struct {
	net.Conn
	network *dropper
}

// Read gives nothing any more after the cut; it ends by a deadline, by Close, or when the other end has gone.
func (c *droppedConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.network.dropped() {
			return n, err
		}
	}
}

// Write says that all is well.
func (c *droppedConn) Write(b []byte) (int, error) {
	if c.network.dropped() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}
