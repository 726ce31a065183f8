package tcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

// handshakesMax bounds the strangers served at the same time; the connections of others are closed.
const handshakesMax = 256

// Device is the TCP fabric endpoint of a process.
type Device struct {
	soft.Base
	cfg   Config
	log   *slog.Logger
	table *soft.Table

	tasks sync.WaitGroup // accept loops and handshakes

	watch watch

	mu         sync.Mutex // protects all below; never held while a pair's lock is taken
	pairs      map[token]*queuePair
	listeners  []net.Listener
	listenAddr string
	guestConns map[net.Conn]struct{}
	congestion string
	closed     bool
}

var _ rdma.Device = (*Device)(nil)

// New makes a device. It opens no socket.
func New(cfg Config) (*Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	table := soft.NewTable(randomKey)
	return &Device{
		Base: soft.NewBase(table), cfg: cfg, log: cfg.Log, table: table,
		pairs: make(map[token]*queuePair), guestConns: make(map[net.Conn]struct{}),
	}, nil
}

// randomKey makes region keys that cannot be guessed.
func randomKey() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// Name is "tcp".
func (d *Device) Name() string { return "tcp" }

// Limits are the same on every machine.
func (d *Device) Limits() rdma.Limits {
	return rdma.Limits{MaxQueueDepth: maxQueueDepth, MaxSGE: maxSGE, MaxInline: maxInline, MaxMessage: maxMessage,
		SealsCRC: true}
}

// NewQP makes a queue pair. It can be dialled from now on.
func (d *Device) NewQP(cfg rdma.QPConfig) (rdma.QueuePair, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("tcp: new queue pair: device: %w", rdma.ErrClosed)
	}
	hostPort := d.cfg.Advertise
	if hostPort == "" {
		hostPort = d.listenAddr
	}
	q, err := newQueuePair(d, cfg, hostPort)
	if err != nil {
		return nil, err
	}
	d.pairs[q.shake.addr.token] = q
	return q, nil
}

func (d *Device) forget(q *queuePair) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pairs, q.shake.addr.token)
}

// Info is what a device found out about its sockets.
type Info struct {
	Advertise  string // what peers dial
	Congestion string // of the newest socket; empty before the first
	Pairs      int
}

// Info returns the present state of the device.
func (d *Device) Info() Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	advertise := d.cfg.Advertise
	if advertise == "" {
		advertise = d.listenAddr
	}
	return Info{Advertise: advertise, Congestion: d.congestion, Pairs: len(d.pairs)}
}

// String gives the name, the address and the congestion control in effect.
func (d *Device) String() string {
	i := d.Info()
	control := d.cfg.Congestion
	if i.Congestion != "" && i.Congestion != control {
		control = fmt.Sprintf("%s instead of %s", i.Congestion, control)
	}
	return fmt.Sprintf("tcp %s (%d pairs, congestion control %s)", i.Advertise, i.Pairs, control)
}

func (d *Device) tune(conn net.Conn) {
	tc, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	congestion := tune(tc, &d.cfg)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.congestion = congestion
}

// Listen accepts data connections at addr until the device is closed, and returns the address in use. A device whose
// connections come from a shared port uses Serve instead.
func (d *Device) Listen(addr string) (string, error) {
	l, err := listen(addr, d.cfg.Congestion)
	if err != nil {
		return "", fmt.Errorf("tcp: listen on %s: %w", addr, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = l.Close()
		return "", fmt.Errorf("tcp: listen on %s: device: %w", addr, rdma.ErrClosed)
	}
	d.listeners = append(d.listeners, l)
	d.listenAddr = l.Addr().String()
	d.tasks.Go(func() { d.acceptLoop(l) })
	return d.listenAddr, nil
}

// acceptPause is how long a listener that cannot accept (no descriptors left) rests.
const acceptPause = 50 * time.Millisecond

func (d *Device) acceptLoop(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			d.log.Warn("accept data connection", "on", l.Addr(), "error", err)
			<-time.After(acceptPause)
			continue
		}
		d.tasks.Go(func() {
			if err := d.Serve(conn); err != nil {
				d.log.Debug("data connection refused", "from", conn.RemoteAddr(), "error", err)
			}
		})
	}
}

// Serve takes over an accepted connection whose first byte is (or will be) PreambleByte. It reads the dialer's hello,
// within HandshakeTimeout, gives the connection to its queue pair, and returns. On an error the connection is closed.
// A *net.TCPConn nothing was read from is served without copies; any other net.Conn works too.
func (d *Device) Serve(conn net.Conn) error {
	if err := d.admit(conn); err != nil {
		_ = conn.Close()
		return err
	}
	d.tune(conn)
	err := d.receiveHello(conn)
	d.release(conn)
	if err != nil {
		_ = conn.Close()
	}
	return err
}

func (d *Device) admit(conn net.Conn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("tcp: serve: device: %w", rdma.ErrClosed)
	}
	if len(d.guestConns) >= handshakesMax {
		return fmt.Errorf("tcp: serve: %d handshakes under way: %w", len(d.guestConns), rdma.ErrQueueFull)
	}
	d.guestConns[conn] = struct{}{}
	return nil
}

func (d *Device) release(conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.guestConns, conn)
}

func (d *Device) receiveHello(conn net.Conn) error {
	free := deadline(context.Background(), conn, d.cfg.HandshakeTimeout)
	var b [helloBytes]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return fmt.Errorf("tcp: read hello: %w", err)
	}
	h, err := decodeHello(b[:])
	if err != nil {
		return err
	}
	d.mu.Lock()
	q := d.pairs[h.to]
	d.mu.Unlock()
	if q == nil {
		return fmt.Errorf("tcp: hello for an unknown queue pair: %w", errProof)
	}
	if err := h.verify(q.shake.addr.secret[:]); err != nil {
		return err
	}
	if err := free(); err != nil {
		return fmt.Errorf("tcp: hello: %w", err)
	}
	// from now on the pair's: Close, which closes guests' connections under the lock, would wait for the goroutine that
	// reads it
	d.release(conn)
	return q.park(parked{conn: conn, hello: h})
}

// Close ends all pairs, waits for every goroutine, and frees all regions.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	for _, l := range d.listeners {
		_ = l.Close()
	}
	for c := range d.guestConns {
		_ = c.Close()
	}
	pairs := make([]*queuePair, 0, len(d.pairs))
	for _, q := range d.pairs {
		pairs = append(pairs, q)
	}
	d.mu.Unlock()
	for _, q := range pairs {
		q.Abort()
	}
	for _, q := range pairs {
		_ = q.Close()
	}
	d.watch.close()
	d.tasks.Wait()
	return d.table.Close()
}
