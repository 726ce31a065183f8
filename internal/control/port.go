package control

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

const (
	defaultHandshakeTimeout = 10 * time.Second
	defaultHalfOpenMax      = 256
	// connsPerPeerMax bounds the connections of one peer, of all protocols together; a correct peer has a handful.
	connsPerPeerMax = 64
	acceptRetry     = 50 * time.Millisecond
	closeTextWait   = time.Second
	tlsFirstByte    = 0x16
)

// PortConfig is what a Port needs. Addr or Listener, and Identity, must be set.
type PortConfig struct {
	Addr     string       // host:port to listen on
	Listener net.Listener // instead of Addr
	// Control is called for the socket that listens on Addr, as in net.ListenConfig; nil sets our congestion control.
	Control    func(network, address string, c syscall.RawConn) error
	Identity   *credentials.Identity
	Generation uint32 // of the cluster
	// Format is what this node says of its format. It must not block; nil = that of a program outside a cluster.
	Format func() format.End

	// Server answers rdmcfs-peer/1. Nil closes such connections.
	Server *Server
	// Raft takes rdmcfs-raft/1 connections and owns them.
	Raft func(conn net.Conn, from Caller)
	// Fabric makes connections that are served like those accepted; nil = TCP only.
	Fabric Fabric
	// Raw takes data connections, of which nothing was read, and owns them. The first byte is never 0x16.
	Raw func(conn *net.TCPConn)
	// Evicted reports whether the log has evicted a node. It must not block.
	Evicted func(node uint32) bool
	// InRaft reports whether an evicted node is still a member of raft: it may lead, and a voter that refused it would
	// get no entries. It must not block; nil = none is.
	InRaft func(node uint32) bool
	// Seen is called for each peer that has connected. It must not block.
	Seen func(node uint32)

	Log              *slog.Logger
	HandshakeTimeout time.Duration // from accept to greeting; 0 = 10 s
	HalfOpenMax      int           // connections that have not greeted; 0 = 256
}

func (c *PortConfig) hello() hello { return saying(c.Generation, endOf(c.Format)) }

// connHandler serves a greeted connection; it returns when the connection is over or has another owner.
type connHandler func(ctx context.Context, conn net.Conn, from Caller)

// protocol is one application protocol of the port.
type protocol struct {
	conf   *tls.Config
	mutual bool // the caller has a certificate
	handle connHandler
}

// Port is the one listening port of a node.
type Port struct {
	cfg    PortConfig
	ln     net.Listener
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	refused sparseLog

	mu        sync.Mutex
	protocols map[string]*protocol
	halfOpen  *list.List                       // of net.Conn, oldest first
	peers     map[uint32]map[net.Conn]struct{} // greeted connections being served here
	others    map[net.Conn]struct{}            // greeted connections without a node
	closed    bool
}

// Listen opens the port and serves it until Close.
func Listen(cfg PortConfig) (*Port, error) {
	if cfg.HandshakeTimeout == 0 {
		cfg.HandshakeTimeout = defaultHandshakeTimeout
	}
	if cfg.HalfOpenMax == 0 {
		cfg.HalfOpenMax = defaultHalfOpenMax
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ln := cfg.Listener
	if ln == nil {
		var err error
		if ln, err = listenTCP(cfg.Addr, cfg.Control); err != nil {
			return nil, err
		}
	}
	p := &Port{cfg: cfg, ln: ln, protocols: map[string]*protocol{}, halfOpen: list.New(),
		peers: map[uint32]map[net.Conn]struct{}{}, others: map[net.Conn]struct{}{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if cfg.Server != nil {
		p.register(ProtocolPeer, true, false, func(ctx context.Context, conn net.Conn, from Caller) {
			p.logEnd(cfg.Server.ServeConn(ctx, conn, from))
		})
	}
	if cfg.Raft != nil {
		p.register(ProtocolRaft, true, false, func(_ context.Context, conn net.Conn, from Caller) { cfg.Raft(conn, from) })
	}
	p.register(ProtocolFabric, true, false, p.serveFabric)
	p.tasks.Go(p.accept)
	return p, nil
}

func listenTCP(addr string, control func(network, address string, c syscall.RawConn) error) (net.Listener, error) {
	if control == nil {
		control = setCongestion
	}
	lc := net.ListenConfig{Control: control} // accepted connections have what the listener has
	lc.SetMultipathTCP(false)                // what control sets would not reach the connections
	ln, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("control: listen on %q: %w", addr, err)
	}
	return ln, nil
}

// register adds an application protocol.
func (p *Port) register(name string, mutual, allowExpired bool, h connHandler) {
	conf := p.cfg.Identity.JoinServerConfig([]string{name})
	if mutual {
		conf = p.cfg.Identity.ServerConfig([]string{name}, allowExpired)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.protocols[name] = &protocol{conf: conf, mutual: mutual, handle: h}
}

// Addr is the address listened on.
func (p *Port) Addr() net.Addr { return p.ln.Addr() }

// Close stops listening, ends all connections that are served here, and waits for their handlers. Connections
// that the raw and raft handlers have taken are theirs.
func (p *Port) Close() error {
	p.cancel()
	err := p.ln.Close()
	p.mu.Lock()
	p.closed = true
	for e := p.halfOpen.Front(); e != nil; e = e.Next() {
		e.Value.(net.Conn).Close()
	}
	for _, conns := range p.peers {
		closeAll(conns)
	}
	closeAll(p.others)
	p.mu.Unlock()
	p.tasks.Wait()
	return err
}

func closeAll[V any](conns map[net.Conn]V) {
	for conn := range conns {
		conn.Close()
	}
}

// Drop closes the connections of a node, such as one just evicted.
func (p *Port) Drop(node uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	closeAll(p.peers[node])
}

func (p *Port) accept() {
	for {
		conn, err := p.ln.Accept()
		if err == nil {
			entry := p.enter(conn) // here, so that the order is that of their coming
			p.tasks.Go(func() { p.serve(conn, entry) })
			continue
		}
		if p.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return
		}
		p.cfg.Log.Warn("control: accept failed; trying again", "err", err)
		select { // out of descriptors, most likely
		case <-p.ctx.Done():
			return
		case <-time.After(acceptRetry):
		}
	}
}

// serve takes one connection from its first byte to its end. Data connections are TCP.
func (p *Port) serve(conn net.Conn, entry *list.Element) {
	if entry == nil {
		conn.Close()
		return
	}
	conn.SetDeadline(time.Now().Add(p.cfg.HandshakeTimeout))
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		p.serveTLS(conn, entry)
		return
	}
	first, err := peekByte(tcp)
	switch {
	case err != nil:
		p.leave(entry)
		conn.Close()
	case first == tlsFirstByte:
		p.serveTLS(conn, entry)
	default:
		p.leave(entry)
		p.serveRaw(tcp)
	}
}

// enter counts a connection that has not said who it is. When there are too many, the oldest goes: honest ones
// need milliseconds.
func (p *Port) enter(conn net.Conn) *list.Element {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.halfOpen.Len() >= p.cfg.HalfOpenMax {
		oldest := p.halfOpen.Front()
		p.halfOpen.Remove(oldest)
		oldest.Value.(net.Conn).Close()
	}
	return p.halfOpen.PushBack(conn)
}

func (p *Port) leave(entry *list.Element) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.halfOpen.Remove(entry) // no effect if enter has removed it
}

func (p *Port) serveRaw(conn *net.TCPConn) {
	if p.cfg.Raw == nil || p.ctx.Err() != nil {
		conn.Close()
		return
	}
	conn.SetDeadline(time.Time{})
	p.cfg.Raw(conn)
}

func (p *Port) serveTLS(raw net.Conn, entry *list.Element) {
	tune(raw)
	conn, proto, from, err := p.shakeHands(raw)
	p.leave(entry)
	if err != nil {
		p.refused.log(p.cfg.Log, time.Now(), "from", raw.RemoteAddr().String(), "err", err)
		raw.Close()
		return
	}
	if !p.track(conn, from) {
		p.refuse(conn, fmt.Errorf("control: more than %d connections: %w", connsPerPeerMax, ErrBusy))
		return
	}
	defer p.untrack(conn, from)
	if _, err := conn.Write(appendHello(nil, p.cfg.hello())); err != nil {
		conn.Close()
		return
	}
	conn.SetDeadline(time.Time{})
	if p.cfg.Seen != nil && from.Node != 0 && proto.mutual {
		p.cfg.Seen(from.Node)
	}
	proto.handle(p.ctx, conn, from)
}

// shakeHands does TLS and reads the caller's hello. A caller that is refused after it has proved its name gets the
// reason.
func (p *Port) shakeHands(raw net.Conn) (*tls.Conn, *protocol, Caller, error) {
	from := Caller{Addr: raw.RemoteAddr().String()}
	var proto *protocol
	conn := tls.Server(raw, &tls.Config{GetConfigForClient: func(chi *tls.ClientHelloInfo) (*tls.Config, error) {
		if proto = p.pick(chi.SupportedProtos); proto == nil {
			return nil, fmt.Errorf("control: no such protocol %q", chi.SupportedProtos)
		}
		return proto.conf, nil
	}})
	if err := conn.HandshakeContext(p.ctx); err != nil {
		return nil, nil, from, fmt.Errorf("control: handshake: %w", err)
	}
	m, err := readGreeting(conn)
	if err == nil && proto.mutual {
		from.Node, err = p.admit(conn.ConnectionState())
	}
	// whom an earlier generation has evicted may be a member of the later one
	earlier := p.cfg.Generation != 0 && p.cfg.Generation < m.generation
	if err == nil || earlier && errors.Is(err, credentials.ErrEvicted) {
		err = checkGeneration(p.cfg.Generation, m.generation)
	}
	if err == nil {
		from.Formats = m.format.Known
		err = checkFormats(m, p.cfg.hello())
	}
	if err == nil && nested(raw, conn) {
		err = errNested
	}
	if err != nil {
		p.refuse(conn, err)
		return nil, nil, from, err
	}
	return conn, proto, from, nil
}

func (p *Port) pick(offered []string) *protocol {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range offered {
		if proto := p.protocols[name]; proto != nil {
			return proto
		}
	}
	return nil
}

// admit decides about a caller whose certificate has been checked.
func (p *Port) admit(cs tls.ConnectionState) (uint32, error) {
	name, err := credentials.NameOf(cs.PeerCertificates[0])
	switch {
	case err != nil:
		return 0, err
	case name.Node == p.cfg.Identity.Name().Node:
		return 0, fmt.Errorf("control: node %d: %w", name.Node, ErrSameNode)
	case p.cfg.Evicted != nil && p.cfg.Evicted(name.Node) && !p.leads(name.Node, cs.NegotiatedProtocol):
		return 0, fmt.Errorf("control: node %d: %w", name.Node, credentials.ErrEvicted)
	}
	return name.Node, nil
}

// leads reports whether an evicted node calls by raft, of which it is still a member.
func (p *Port) leads(node uint32, protocol string) bool {
	return protocol == ProtocolRaft && p.cfg.InRaft != nil && p.cfg.InRaft(node)
}

// refuse says goodbye and closes.
func (p *Port) refuse(conn *tls.Conn, reason error) {
	conn.SetDeadline(time.Now().Add(closeTextWait))
	writeGoodbye(conn, reason)
	conn.Close()
}

func (p *Port) track(conn net.Conn, from Caller) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	if from.Node == 0 {
		p.others[conn] = struct{}{}
		return true
	}
	conns := p.peers[from.Node]
	if len(conns) >= connsPerPeerMax {
		return false
	}
	if conns == nil {
		conns = map[net.Conn]struct{}{}
		p.peers[from.Node] = conns
	}
	conns[conn] = struct{}{}
	return true
}

func (p *Port) untrack(conn net.Conn, from Caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if from.Node == 0 {
		delete(p.others, conn)
		return
	}
	delete(p.peers[from.Node], conn)
	if len(p.peers[from.Node]) == 0 {
		delete(p.peers, from.Node)
	}
}

func (p *Port) logEnd(err error) {
	if err != nil && p.ctx.Err() == nil {
		p.cfg.Log.Info("control: connection ended", "err", err)
	}
}

const (
	refusalsEvery = time.Minute
	refusalsMost  = 20 // lines per refusalsEvery
)

// sparseLog keeps strangers from filling the disk with lines about them.
type sparseLog struct {
	mu     sync.Mutex
	since  time.Time
	lines  int
	hidden int
}

func (s *sparseLog) log(log *slog.Logger, now time.Time, args ...any) {
	s.mu.Lock()
	if now.Sub(s.since) >= refusalsEvery {
		s.since, s.lines = now, 0
	}
	s.lines++
	if s.lines > refusalsMost {
		s.hidden++
		s.mu.Unlock()
		return
	}
	hidden := s.hidden
	s.hidden = 0
	s.mu.Unlock()
	if hidden > 0 {
		args = append(args, "not_shown_before", hidden)
	}
	log.Info("control: connection refused", args...)
}
