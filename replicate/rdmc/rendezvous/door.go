package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// helloTimeout bounds the reading of a stranger's first words.
	helloTimeout = 5 * time.Second
	// guestsMax bounds the strangers that are listened to at once; others wait.
	guestsMax = 16
)

// door takes the connections to the room: from members until all are in, then from latecomers, which it turns away.
type door struct {
	listener net.Listener
	common   welcome
	work     sync.WaitGroup
	ctx      context.Context // done when the door closes
	stop     context.CancelFunc
	full     chan struct{} // closed by admit when all are in

	mu     sync.Mutex // protects all below; never held over the network
	in     map[int]net.Conn
	shut   bool // nobody is let in any more
	guests map[net.Conn]bool
}

func openDoor(cfg Config, common welcome) (*door, error) {
	d := &door{listener: cfg.Listener, common: common, full: make(chan struct{}), in: make(map[int]net.Conn),
		guests: make(map[net.Conn]bool)}
	if d.listener == nil {
		var err error
		if d.listener, err = net.Listen("tcp", cfg.Room); err != nil {
			return nil, fmt.Errorf("rendezvous: room at %q: give a free address of the root's host: %w", cfg.Room, err)
		}
	}
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.work.Go(d.serve)
	return d, nil
}

// admitAll waits until all members are in.
func (d *door) admitAll(ctx context.Context) (map[int]net.Conn, error) {
	var err error
	select {
	case <-d.full:
	case <-ctx.Done():
		err = ctx.Err()
	case <-d.ctx.Done():
		err = net.ErrClosed
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
	in := d.in
	d.in = nil
	if err == nil {
		return in, nil
	}
	var missing []int
	for id := 1; id < d.common.members; id++ {
		if conn := in[id]; conn != nil {
			conn.Close()
		} else {
			missing = append(missing, id)
		}
	}
	return nil,
		fmt.Errorf("rendezvous: ranks %v did not come to %v: start them, and check that they reach that address: %w", missing,
			d.listener.Addr(), err)
}

// serve accepts until the door closes.
func (d *door) serve() {
	defer d.stop()
	room := make(chan struct{}, guestsMax)
	for {
		select {
		case room <- struct{}{}:
		case <-d.ctx.Done():
			return
		}
		conn, err := d.listener.Accept()
		if err != nil {
			return
		}
		d.work.Go(func() {
			defer func() { <-room }()
			d.greet(conn)
		})
	}
}

// greet lets a member in, or sends it the reason why not.
func (d *door) greet(conn net.Conn) {
	conn.SetReadDeadline(time.Now().Add(helloTimeout)) // if it fails, so does the read
	d.mu.Lock()
	d.guests[conn] = true
	if d.ctx.Err() != nil {
		conn.SetDeadline(time.Unix(1, 0)) // close may have been here before
	}
	d.mu.Unlock()
	f, err := receive(conn, maxHello)
	if err == nil && f.kind != kindHello {
		err = fmt.Errorf("%w: no hello", ErrProtocol)
	}
	if err == nil {
		err = d.check(f.rank)
	}
	if err == nil {
		keepAlive(conn)
		if err = send(conn, frame{kind: kindWelcome, welcome: d.common}); err == nil {
			err = d.admit(f.rank, conn)
		}
	}
	if err != nil {
		send(conn, frame{kind: kindRefused, text: err.Error()})
		conn.Close()
	}
	d.mu.Lock()
	delete(d.guests, conn)
	d.mu.Unlock()
}

// check returns why a member cannot come in.
func (d *door) check(rank int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.checkLocked(rank)
}

func (d *door) checkLocked(rank int) error {
	switch {
	case d.shut:
		return errors.New("the group has begun: nobody joins it later")
	case rank < 1 || rank >= d.common.members:
		return fmt.Errorf("rank %d: give 1 to %d", rank, d.common.members-1)
	case d.in[rank] != nil && !hasLeft(d.in[rank]):
		return fmt.Errorf("rank %d is there already: give each member its own", rank)
	}
	return nil
}

// hasLeft reports whether a member that is in, and has nothing to say yet, has left: it may be started again. It looks
// without waiting, and takes nothing. For a connection that is no socket it returns false.
func hasLeft(conn net.Conn) bool {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	rc, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	var n int
	var failed error
	if err := rc.Control(func(fd uintptr) {
		n, _, failed = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	}); err != nil {
		return true
	}
	if failed != nil {
		return failed != unix.EAGAIN && failed != unix.EINTR
	}
	return n == 0
}

func (d *door) admit(rank int, conn net.Conn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkLocked(rank); err != nil {
		return err
	}
	conn.SetReadDeadline(time.Time{})
	if before := d.in[rank]; before != nil {
		before.Close()
	}
	d.in[rank] = conn
	if len(d.in) == d.common.members-1 {
		d.shut = true
		close(d.full)
	}
	return nil
}

// close lets nobody in any more and waits for the connections that are being listened to.
func (d *door) close() {
	d.stop()
	d.listener.Close()
	d.mu.Lock()
	d.shut = true
	for conn := range d.guests {
		conn.SetDeadline(time.Unix(1, 0))
	}
	d.mu.Unlock()
	d.work.Wait()
}
