package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// redial is how long a member waits before it dials again a root that is not there yet.
const redial = 50 * time.Millisecond

// join is the part of all but the root.
func (m *Meeting) join(ctx context.Context, cfg Config) error {
	conn, err := dial(ctx, cfg.Room)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := m.introduce(ctx, cfg, conn); err != nil {
		return fmt.Errorf("rendezvous: in the room at %v: %w", conn.RemoteAddr(), errors.Join(ctx.Err(), err))
	}
	return nil
}

func (m *Meeting) introduce(ctx context.Context, cfg Config, conn net.Conn) error {
	conn.SetReadDeadline(time.Now().Add(2 * helloTimeout)) // the root may be listening to strangers
	f, err := exchange(conn, frame{kind: kindHello, rank: cfg.Rank}, kindWelcome)
	if err != nil {
		return err
	}
	if err := awaitOthers(ctx, conn); err != nil {
		return err
	}
	if err := m.newGroup(cfg, f.welcome); err != nil {
		return err
	}
	conn.SetReadDeadline(time.Now().Add(2 * stepTimeout))
	addresses, err := exchange(conn, frame{kind: kindAddresses, parts: m.Group.Addresses()}, kindAddresses)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	answer := frame{kind: kindConnected}
	if err := m.Group.Connect(bounded, addresses.parts); err != nil {
		answer.text = err.Error()
	}
	conn.SetReadDeadline(time.Now().Add(2 * stepTimeout))
	_, err = exchange(conn, answer, kindBegun)
	return err
}

// awaitOthers waits until all members are there, however long that takes.
func awaitOthers(ctx context.Context, conn net.Conn) error {
	keepAlive(conn)
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if ctx.Err() != nil { // its end may have come before
		return ctx.Err()
	}
	_, err := expect(conn, kindAllHere)
	return err
}

// dial comes to the room, waiting for the root to be there.
func dial(ctx context.Context, room string) (net.Conn, error) {
	for {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", room)
		if err == nil {
			return conn, nil
		}
		again := time.NewTimer(redial)
		select {
		case <-ctx.Done():
			again.Stop()
			return nil,
				fmt.Errorf("rendezvous: the root does not answer at %s: start it, "+
					"and check that this host reaches that address: %w",
					room, errors.Join(ctx.Err(), err))
		case <-again.C:
		}
	}
}

// keepAlive makes a connection that says nothing for long end when its other end is gone.
func keepAlive(conn net.Conn) {
	if tc, ok := conn.(*net.TCPConn); ok {
		tc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3})
	}
}
