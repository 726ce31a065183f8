package tcp

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// parked is a dialer's connection whose hello was proven, kept until the acceptor calls Connect.
type parked struct {
	conn  net.Conn
	hello hello
}

// Connect joins the pair with its peer: one side dials, the other waits for the dialer.
func (q *queuePair) Connect(ctx context.Context, remote []byte) error {
	peer, err := decodeAddress(remote)
	if err != nil {
		q.Abort()
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := q.beginConnect(cancel); err != nil {
		return err
	}
	conn, credit, err := q.shake.open(ctx, &peer, q.advertise)
	return q.endConnect(conn, credit, err)
}

func (q *queuePair) beginConnect(cancel context.CancelCauseFunc) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != stateReset {
		return fmt.Errorf("tcp: connect: %w", q.stateError())
	}
	q.state, q.cancel = stateConnecting, cancel
	return nil
}

// endConnect makes the pair ready, or ends it.
func (q *queuePair) endConnect(conn net.Conn, credit uint32, err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shake.dropParked() // under the lock: nobody is parked once the state has changed
	if q.state == stateConnecting && err == nil {
		q.startLocked(conn, credit)
		return nil
	}
	if conn != nil {
		_ = conn.Close()
	}
	if q.state == stateConnecting { // else Abort has flushed
		q.state, q.failStatus = stateError, rdma.StatusFlushed
		q.flushLocked()
	}
	close(q.done)
	if err == nil {
		err = rdma.ErrState
	}
	return fmt.Errorf("tcp: connect: %w", err)
}

func (q *queuePair) startLocked(conn net.Conn, credit uint32) {
	q.state = stateReady
	q.conn, q.stream = conn, newStream(conn)
	q.peerPosted = credit
	if q.posted != q.advertised {
		q.ackDue = true
		q.poke()
	}
	var writer sync.WaitGroup
	writer.Go(q.writeLoop)
	go q.readLoop(&writer) // ended by Close, which waits for q.done
}

// advertise returns the number of receives posted, for a message to the peer that is about to be sent.
func (q *queuePair) advertise() uint32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.advertised = q.posted
	return q.posted
}

// handshake opens and proves the connection of a pair.
type handshake struct {
	dev   *Device
	addr  address
	hello chan parked // capacity 1: a dialer whose hello was proven, waiting for our Connect
}

// open opens and proves the connection, and returns how many receives the peer has posted. posted gives how many this
// side has, for a message that is about to be sent.
func (h *handshake) open(ctx context.Context, peer *address, posted func() uint32) (net.Conn, uint32, error) {
	dialer, err := dials(&h.addr, peer)
	if err != nil {
		return nil, 0, err
	}
	if dialer {
		return h.dial(ctx, peer, posted)
	}
	return h.accept(ctx, peer, posted)
}

func (h *handshake) dial(ctx context.Context, peer *address, posted func() uint32) (net.Conn, uint32, error) {
	conn, err := h.dev.cfg.Dial(ctx, peer.hostPort)
	if err != nil {
		return nil, 0, contextFirst(ctx, fmt.Errorf("tcp: dial %s: %w", peer.hostPort, err))
	}
	credit, err := h.greet(ctx, conn, peer, posted)
	if err != nil {
		_ = conn.Close()
		return nil, 0, contextFirst(ctx, fmt.Errorf("tcp: handshake with %s: %w", peer.hostPort, err))
	}
	return conn, credit, nil
}

// greet is the dialer's side of the preamble.
func (h *handshake) greet(
	ctx context.Context, conn net.Conn, peer *address, posted func() uint32,
) (uint32, error) {
	h.dev.tune(conn)
	free := deadline(ctx, conn, 0)
	defer free()
	var nonce [nonceBytes]byte
	rand.Read(nonce[:])
	hi := encodeHello(peer.token, h.addr.token, nonce, peer.secret[:])
	if _, err := conn.Write(hi[:]); err != nil {
		return 0, fmt.Errorf("tcp: hello: %w", err)
	}
	var answer [acceptBytes]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return 0, fmt.Errorf("tcp: await acceptance: %w", err)
	}
	key := pairKey(h.addr.secret[:], peer.secret[:])
	credit, err := decodeAccept(answer[:], h.addr.token, key, hi[:])
	if err != nil {
		return 0, err
	}
	confirm := encodeConfirm(posted(), key, hi[:], answer[:])
	if _, err := conn.Write(confirm[:]); err != nil {
		return 0, fmt.Errorf("tcp: confirm: %w", err)
	}
	return credit, free()
}

// accept waits for the dialer. Connections that prove less than they must are closed, and it waits on.
func (h *handshake) accept(ctx context.Context, peer *address, posted func() uint32) (net.Conn, uint32, error) {
	for {
		select {
		case p := <-h.hello:
			credit, err := h.welcome(ctx, p, peer, posted)
			if err == nil {
				return p.conn, credit, nil
			}
			_ = p.conn.Close()
			h.dev.log.Debug("data connection dropped", "from", p.conn.RemoteAddr(), "cause", err)
		case <-ctx.Done():
			return nil, 0, fmt.Errorf("tcp: await the dialer: %w", context.Cause(ctx))
		}
	}
}

// welcome is the acceptor's side of the preamble, after the hello.
func (h *handshake) welcome(
	ctx context.Context, p parked, peer *address, posted func() uint32,
) (uint32, error) {
	if p.hello.from != peer.token {
		return 0, fmt.Errorf("tcp: hello of another pair: %w", errProof)
	}
	free := deadline(ctx, p.conn, h.dev.cfg.HandshakeTimeout)
	defer free()
	key := pairKey(peer.secret[:], h.addr.secret[:])
	var nonce [nonceBytes]byte
	rand.Read(nonce[:])
	answer := encodeAccept(p.hello.from, nonce, posted(), key, p.hello.raw[:])
	if _, err := p.conn.Write(answer[:]); err != nil {
		return 0, fmt.Errorf("tcp: accept: %w", err)
	}
	var confirm [confirmBytes]byte
	if _, err := io.ReadFull(p.conn, confirm[:]); err != nil {
		return 0, fmt.Errorf("tcp: await confirmation: %w", err)
	}
	credit, err := decodeConfirm(confirm[:], key, p.hello.raw[:], answer[:])
	if err != nil {
		return 0, err
	}
	return credit, free()
}

// park keeps a proven dialer for Connect; a newer one takes the place of an older.
func (q *queuePair) park(p parked) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state > stateConnecting {
		return fmt.Errorf("tcp: dialled: %w", rdma.ErrState)
	}
	q.shake.dropParked()
	q.shake.hello <- p // room: only park sends, under the lock
	return nil
}

func (h *handshake) dropParked() {
	select {
	case p := <-h.hello:
		_ = p.conn.Close()
	default:
	}
}

// deadline binds conn to ctx and, unless zero, to a time limit. The function it returns frees conn again, and may be
// called twice.
func deadline(ctx context.Context, conn net.Conn, limit time.Duration) func() error {
	if limit > 0 {
		_ = conn.SetDeadline(time.Now().Add(limit))
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	var once sync.Once
	var err error
	return func() error {
		once.Do(func() {
			if !stop() {
				err = context.Cause(ctx)
				return
			}
			err = conn.SetDeadline(time.Time{})
		})
		return err
	}
}

// contextFirst prefers the context's cause over the timeout that it provoked.
func contextFirst(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
