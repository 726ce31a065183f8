package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

const (
	defaultDialTimeout = 2 * time.Second
	// bulkPatience says how many times as long the connection for many bytes may take: the other connection shows that
	// the node is there, and the handshake of this one may wait behind much that other connections have queued for a
	// slow link.
	bulkPatience = 5
	backoffFirst = 50 * time.Millisecond
	backoffMost  = 2 * time.Second
	// redialWait is how long a call waits for a fresh attempt at a peer whose last attempt failed.
	redialWait = 100 * time.Millisecond
)

// PeersConfig is what Peers needs. Identity and Resolve must be set.
type PeersConfig struct {
	Identity   *credentials.Identity
	Generation uint32
	Format     func() format.End // what this node says of its format, as in PortConfig
	// Resolve is the address book, from the log. It must not block.
	Resolve     func(node uint32) (addr string, ok bool)
	Dial        DialFunc      // nil = plain TCP
	DialTimeout time.Duration // TCP, TLS and greeting together; 0 = 2 s
	Fabric      Fabric        // tried first; nil = TCP only
	Log         *slog.Logger
}

func (c *PeersConfig) hello() hello { return saying(c.Generation, endOf(c.Format)) }

// endOf is what a node says of its format. Without a function it is outside a cluster.
func endOf(said func() format.End) format.End {
	if said == nil {
		return format.End{Known: format.Known}
	}
	return said()
}

// Peers makes calls to the other nodes, over one connection each that is made when needed and kept. All
// methods may be called from several goroutines.
type Peers struct {
	cfg    PeersConfig
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex
	nodes   map[way]*peer
	without map[uint32]time.Time // nodes not to be tried over the fabric until then
	closed  bool
}

// way is one of the two connections to a node: one is for short calls, the other, over TCP, for calls that move many
// bytes.
type way struct {
	node uint32
	bulk bool
}

// peer is what is known of one node, on one way. Fields are protected by Peers.mu.
type peer struct {
	addr     string // that client or dialing is for
	client   *client
	dialing  *dialing
	failures int       // in a row
	retryAt  time.Time // no attempt before
	lastErr  error
}

// dialing is one attempt; err and client are set before done is closed.
type dialing struct {
	done   chan struct{}
	client *client
	err    error
}

// NewPeers makes an empty connection cache.
func NewPeers(cfg PeersConfig) *Peers {
	if cfg.Dial == nil {
		cfg.Dial = dialTCP
	}
	cfg.Dial = insisting(cfg.Dial)
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = defaultDialTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Peers{cfg: cfg, nodes: map[way]*peer{}, without: map[uint32]time.Time{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Close fails all calls and ends all connections.
func (p *Peers) Close() error {
	p.mu.Lock()
	p.closed = true
	var clients []*client
	for _, n := range p.nodes {
		if n.client != nil {
			clients = append(clients, n.client)
		}
	}
	p.nodes = map[way]*peer{}
	p.mu.Unlock()
	p.cancel()
	for _, c := range clients {
		c.close()
	}
	p.tasks.Wait()
	return nil
}

// Call sends a request to a node and waits for the reply, which then belongs to the caller. The payload may be
// reused when Call returns. Errors: the context's; ErrPeerDown, at once if the node was found unreachable just
// before; *RemoteError if the node answered one. After ErrPeerDown the call was not made; after other
// errors it may have been.
func (p *Peers) Call(ctx context.Context, node, kind uint32, payload []byte) ([]byte, error) {
	c, err := p.client(ctx, node)
	if err != nil {
		return nil, err
	}
	answer, err := c.call(ctx, kind, payload)
	if err != nil {
		return nil, explainCall(kind, node, err)
	}
	return answer, nil
}

func explainCall(kind, node uint32, err error) error {
	return fmt.Errorf("control: call %#x to node %d: %w", kind, node, err)
}

// DialRaft opens a connection to the node's Raft handler. The caller owns it.
func (p *Peers) DialRaft(ctx context.Context, node uint32) (net.Conn, error) {
	addr, err := p.address(node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	conn, err := p.open(ctx, node, addr, ProtocolRaft)
	if err != nil {
		return nil, fmt.Errorf("control: node %d: %w: %w", node, ErrPeerDown, err)
	}
	return conn, nil
}

// Twin reports whether a process answers at addr with this node's own certificate: a copy of its data directory, or
// what this one was copied from.
func (p *Peers) Twin(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	conn, err := dialTLS(ctx, p.cfg.Dial, addr, p.cfg.Identity.ClientConfig(p.cfg.Identity.Name().Node, ProtocolPeer),
		p.cfg.hello())
	if err == nil {
		conn.Close()
	}
	return err == nil || errors.Is(err, ErrSameNode)
}

// Seen records that a node is alive, for instance because it has connected to us or the log has let it in: the next
// call tries it at once. A connection on which the kernel keeps retransmitting without success ends. It dates from
// before the line was cut, and the kernel's next attempt may be seconds away.
func (p *Peers) Seen(node uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range []way{{node, false}, {node, true}} {
		n := p.nodes[w]
		switch {
		case n == nil:
		case n.client == nil:
			n.failures, n.retryAt = 0, time.Time{}
		case sendsInVain(n.client.conn):
			old := n.client
			n.client = nil
			p.tasks.Go(old.close)
		}
	}
}

// Connected reports whether a connection to the node is open.
func (p *Peers) Connected(node uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[way{node, false}]
	return n != nil && n.client != nil && n.client.alive()
}

// Drop closes the connection to a node, such as one just evicted, and forgets what is known of it.
func (p *Peers) Drop(node uint32) {
	for _, w := range []way{{node, false}, {node, true}} {
		p.mu.Lock()
		n := p.nodes[w]
		delete(p.nodes, w)
		p.mu.Unlock()
		if n != nil && n.client != nil {
			n.client.close()
		}
	}
}

func (p *Peers) address(node uint32) (string, error) {
	if node == p.cfg.Identity.Name().Node {
		return "", fmt.Errorf("control: node %d is this node: %w", node, ErrUnknownPeer)
	}
	addr, ok := p.cfg.Resolve(node)
	if !ok {
		return "", fmt.Errorf("control: node %d: %w", node, ErrUnknownPeer)
	}
	return addr, nil
}

// client returns the open connection to a node, or makes it.
func (p *Peers) client(ctx context.Context, node uint32) (*client, error) {
	return p.clientOf(ctx, way{node, false})
}

func (p *Peers) clientOf(ctx context.Context, w way) (*client, error) {
	node := w.node
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	addr, err := p.address(node)
	if err != nil {
		return nil, err
	}
	c, attempt, patience, err := p.clientOrDial(w, addr)
	if attempt == nil {
		return c, err
	}
	if patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, patience,
			fmt.Errorf("control: node %d: %w: still trying", node, ErrPeerDown))
		defer cancel()
	}
	select {
	case <-attempt.done:
		return attempt.client, attempt.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// clientOrDial answers from what is known, or returns the attempt to wait for, and how long at most.
func (p *Peers) clientOrDial(w way, addr string) (*client, *dialing, time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, 0, ErrClosed
	}
	n := p.nodes[w]
	if n == nil || n.addr != addr {
		if n != nil && n.client != nil {
			old := n.client
			p.tasks.Go(old.close)
		}
		n = &peer{addr: addr}
		p.nodes[w] = n
	}
	if n.client != nil {
		if n.client.alive() {
			return n.client, nil, 0, nil
		}
		old := n.client
		p.tasks.Go(old.close)
		n.client = nil
	}
	if n.dialing == nil {
		if time.Now().Before(n.retryAt) {
			return nil, nil, 0, fmt.Errorf("control: node %d: %w: %w", w.node, ErrPeerDown, n.lastErr)
		}
		n.dialing = &dialing{done: make(chan struct{})}
		p.tasks.Go(func() { p.dial(w, n, n.addr) })
	}
	var patience time.Duration
	if n.failures > 0 {
		patience = redialWait
	}
	return nil, n.dialing, patience, nil
}

// openWay opens a connection for calls. That for many bytes is made where the other one is TCP.
func (p *Peers) openWay(ctx context.Context, w way, addr string) (*tls.Conn, error) {
	if w.bulk {
		return dialTLS(ctx, p.cfg.Dial, addr, p.cfg.Identity.ClientConfig(w.node, ProtocolPeer), p.cfg.hello())
	}
	return p.open(ctx, w.node, addr, ProtocolPeer)
}

// dial makes one attempt and records how it went.
func (p *Peers) dial(w way, n *peer, addr string) {
	node := w.node
	timeout := p.cfg.DialTimeout
	if w.bulk {
		timeout *= bulkPatience
	}
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	conn, err := p.openWay(ctx, w, addr)

	p.mu.Lock()
	defer p.mu.Unlock()
	attempt := n.dialing
	n.dialing = nil
	defer close(attempt.done)
	if err == nil && (p.closed || p.nodes[w] != n) { // closed, dropped or moved meanwhile
		conn.NetConn().Close()
		err = ErrClosed
	}
	if err == nil {
		n.client = newClient(conn)
		n.failures, n.retryAt, n.lastErr = 0, time.Time{}, nil
		attempt.client = n.client
		return
	}
	backoff := min(backoffFirst<<min(n.failures, 10), backoffMost)
	n.failures++
	n.retryAt = time.Now().Add(backoff)
	n.lastErr = err
	attempt.err = fmt.Errorf("control: node %d: %w: %w", node, ErrPeerDown, err)
	if n.failures == 1 && !errors.Is(err, ErrClosed) {
		p.cfg.Log.Info("control: node not reachable", "node", node, "addr", addr, "err", err)
	}
}
