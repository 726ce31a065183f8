package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// host is the root's part: it waits for all, hands the addresses around, and lets the others know when all are
// connected.
func (m *Meeting) host(ctx context.Context, cfg Config) (err error) {
	common := welcome{
		members: cfg.Members, number: cfg.Group.Number, blockSize: cfg.Group.BlockSize, algorithm: cfg.Group.Algorithm,
	}
	if m.door, err = openDoor(cfg, common); err != nil {
		return err
	}
	in, err := m.door.admitAll(ctx)
	if err != nil {
		return err
	}
	guests := make(guests, cfg.Members)
	for rank, conn := range in {
		guests[rank] = conn
		defer conn.Close()
	}
	defer context.AfterFunc(ctx, guests.interrupt)()
	if err := m.introduceAll(ctx, cfg, common, guests); err != nil {
		err = errors.Join(ctx.Err(), err)
		told := frame{kind: kindRefused, text: err.Error()}
		guests.each(context.WithoutCancel(ctx), func(_ int, conn net.Conn) error { return send(conn, told) })
		return err
	}
	return nil
}

func (m *Meeting) introduceAll(ctx context.Context, cfg Config, common welcome, others guests) error {
	if err := m.newGroup(cfg, common); err != nil {
		return err
	}
	inbox := newInbox(common.members)
	if err := inbox.take(0, m.Group.Addresses()); err != nil {
		return err
	}
	err := others.each(ctx, func(rank int, conn net.Conn) error {
		f, err := exchange(conn, frame{kind: kindAllHere}, kindAddresses)
		if err != nil {
			return err
		}
		return inbox.take(rank, f.parts)
	})
	if err != nil {
		return err
	}
	connected := make(chan error, 1)
	bounded, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	go func() { connected <- m.Group.Connect(bounded, inbox.parts[0]) }()
	err = others.each(ctx, func(rank int, conn net.Conn) error {
		f, err := exchange(conn, frame{kind: kindAddresses, parts: inbox.parts[rank]}, kindConnected)
		if err == nil && f.text != "" {
			err = errors.New(f.text)
		}
		return err
	})
	if err != nil {
		cancel() // nobody else is going to connect
	}
	if err := errors.Join(err, <-connected); err != nil {
		return err
	}
	return others.each(ctx, func(_ int, conn net.Conn) error { return send(conn, frame{kind: kindBegun}) })
}

// guests are the connections of the members by rank; nil at the root's own.
type guests []net.Conn

// each talks to all members at the same time, about one step of the meeting, and waits for the end of all talks.
func (g guests) each(ctx context.Context, talk func(rank int, conn net.Conn) error) error {
	errs := make([]error, len(g))
	var all sync.WaitGroup
	for rank, conn := range g {
		if conn == nil {
			continue
		}
		all.Go(func() {
			conn.SetReadDeadline(time.Now().Add(2 * stepTimeout)) // a member may take one to connect
			err := ctx.Err()                                      // interrupt may have come before
			if err == nil {
				err = talk(rank, conn)
			}
			if err != nil {
				errs[rank] = fmt.Errorf("rendezvous: rank %d: %w", rank, err)
			}
		})
	}
	all.Wait()
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil })...)
}

// interrupt ends what is being read.
func (g guests) interrupt() {
	for _, conn := range g {
		if conn != nil {
			conn.SetReadDeadline(time.Unix(1, 0))
		}
	}
}

// inbox holds the addresses that each member has for each other one.
type inbox struct {
	mu    sync.Mutex       // protects parts while they are gathered
	parts []map[int][]byte // by the rank they are for, and the rank they belong to
}

func newInbox(members int) *inbox {
	i := &inbox{parts: make([]map[int][]byte, members)}
	for rank := range i.parts {
		i.parts[rank] = make(map[int][]byte)
	}
	return i
}

// take notes the addresses that came from a member.
func (i *inbox) take(from int, addresses map[int][]byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for to, b := range addresses {
		if to < 0 || to >= len(i.parts) {
			return fmt.Errorf("%w: addresses for member %d of %d", ErrProtocol, to, len(i.parts))
		}
		i.parts[to][from] = b
	}
	return nil
}
