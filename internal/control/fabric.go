package control

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// fabricRetry is for how long a node that could not be reached over the fabric is dialed by TCP at once.
const fabricRetry = 30 * time.Second

// errNested refuses to agree on a fabric within a connection of one.
var errNested = errors.New("control: already over the fabric")

// Fabric carries the traffic of control between two nodes better than TCP does, where both have it. Dial and Accept
// are the two ends of an agreement: each is given a greeted connection to the other, which belongs to it from then
// on, also after an error. What they return ends when that connection does, so that the death of a process is noticed
// as fast as ever. TLS and the greeting are repeated inside: the fabric need not be trusted.
type Fabric interface {
	Dial(ctx context.Context, agreed net.Conn) (net.Conn, error)
	Accept(ctx context.Context, agreed net.Conn) (net.Conn, error)
}

// serveFabric agrees with a caller, and serves the connection that comes of it as if it had been accepted. Without a
// fabric the caller finds the end of the connection, and uses TCP.
func (p *Port) serveFabric(ctx context.Context, conn net.Conn, from Caller) {
	if p.cfg.Fabric == nil {
		conn.Close()
		return
	}
	agreeing, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	better, err := p.cfg.Fabric.Accept(agreeing, conn)
	cancel()
	if err != nil {
		p.cfg.Log.Debug("control: no fabric with a caller", "node", from.Node, "err", err)
		return
	}
	entry := p.enter(better)
	if entry == nil {
		better.Close()
		return
	}
	better.SetDeadline(time.Now().Add(p.cfg.HandshakeTimeout))
	p.serveTLS(fabricConn{better}, entry)
}

// fabricConn is a connection over a fabric.
type fabricConn struct{ net.Conn }

// nested reports whether a caller wants to agree on a fabric within a connection over one.
func nested(raw net.Conn, conn *tls.Conn) bool {
	_, within := raw.(fabricConn)
	return within && conn.ConnectionState().NegotiatedProtocol == ProtocolFabric
}

// open dials a node for a protocol: over the fabric if both have one, else by TCP.
func (p *Peers) open(ctx context.Context, node uint32, addr, protocol string) (*tls.Conn, error) {
	conf := p.cfg.Identity.ClientConfig(node, protocol)
	if !p.triesFabric(node) {
		return dialTLS(ctx, p.cfg.Dial, addr, conf, p.cfg.hello())
	}
	agreed, err := p.cfg.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err // the node is not there, with or without a fabric
	}
	half, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout/2)
	defer cancel()
	conn, err := p.overFabric(half, agreed, node, addr, conf)
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	p.cfg.Log.Info("control: no fabric with a node; it is TCP", "node", node, "err", err)
	p.noFabric(node, time.Now().Add(fabricRetry))
	return dialTLS(ctx, p.cfg.Dial, addr, conf, p.cfg.hello())
}

// overFabric agrees with the node behind raw, which it owns, and shakes hands over the fabric.
func (p *Peers) overFabric(
	ctx context.Context, raw net.Conn, node uint32, addr string, conf *tls.Config,
) (*tls.Conn, error) {
	agreed, err := shakeHands(ctx, raw, addr, p.cfg.Identity.ClientConfig(node, ProtocolFabric), p.cfg.hello())
	if err != nil {
		return nil, err
	}
	better, err := p.cfg.Fabric.Dial(ctx, agreed)
	if err != nil {
		return nil, err
	}
	return shakeHands(ctx, fabricConn{better}, addr, conf, p.cfg.hello())
}

// triesFabric reports whether a node is to be dialed over the fabric.
func (p *Peers) triesFabric(node uint32) bool {
	if p.cfg.Fabric == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().After(p.without[node])
}

// noFabric remembers that a node is not reached over the fabric.
func (p *Peers) noFabric(node uint32, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.without[node] = until
}
