package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

// The application protocols within TLS.
const (
	ProtocolPeer   = "rdmcfs-peer/1"
	ProtocolRaft   = "rdmcfs-raft/1"
	ProtocolJoin   = "rdmcfs-join/1"
	ProtocolRenew  = "rdmcfs-renew/1"
	ProtocolFabric = "rdmcfs-fabric/1"
)

// Caller is the authenticated other end of a connection or a call.
type Caller struct {
	Node uint32 // 0 on rdmcfs-join/1
	Addr string // as seen by the operating system, for messages
	// Formats are those that its program knows.
	Formats format.Range
}

// readGreeting reads one hello or goodbye, and not a byte more.
func readGreeting(conn net.Conn) (hello, error) {
	var raw [headerBytes + helloBytesMax]byte
	if _, err := io.ReadFull(conn, raw[:headerBytes]); err != nil {
		return hello{}, explainHandshake(err)
	}
	h, err := decodeHeader(raw[:headerBytes])
	if err != nil {
		return hello{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if h.kind != frameHello && h.kind != frameGoodbye {
		return hello{}, fmt.Errorf("%w: frame of type %d before hello", ErrProtocol, h.kind)
	}
	body := make([]byte, h.length)
	if _, err := io.ReadFull(conn, body); err != nil {
		return hello{}, noEOF(err)
	}
	if h.kind == frameGoodbye {
		return hello{}, &RemoteError{Code: Code(h.argument), Message: string(body)}
	}
	m, err := decodeHello(body)
	if err != nil {
		return hello{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return m, nil
}

// writeGoodbye tells the peer why the connection ends.
func writeGoodbye(conn net.Conn, reason error) error {
	e := toRemote(reason)
	b := appendHeader(nil, header{length: uint32(len(e.Message)), kind: frameGoodbye, argument: uint32(e.Code)})
	_, err := conn.Write(append(b, e.Message...))
	return err
}

// checkGeneration lets callers through that do not know their generation yet.
func checkGeneration(ours, theirs uint32) error {
	if ours == 0 || theirs == 0 || ours == theirs {
		return nil
	}
	return fmt.Errorf("control: ours is %d, theirs %d: %w", ours, theirs, ErrGeneration)
}

// greet is the dialer's side: hello, then the acceptor's hello or its reason.
func greet(conn net.Conn, ours hello) error {
	if _, err := conn.Write(appendHello(nil, ours)); err != nil {
		return explainHandshake(err)
	}
	m, err := readGreeting(conn)
	if err != nil {
		return err
	}
	if err := checkGeneration(ours.generation, m.generation); err != nil {
		return err
	}
	return checkFormats(ours, m)
}

// checkFormats refuses an end that does not know the format of the other. The error is for the caller.
func checkFormats(caller, called hello) error {
	if _, err := format.Meet(caller.format, called.format); err != nil {
		return fmt.Errorf("control: %w", err)
	}
	return nil
}

// DialFunc opens a TCP connection; net.Dialer.DialContext is one.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dialTLS opens a connection, shakes hands and greets, all before the context's end.
func dialTLS(ctx context.Context, dial DialFunc, addr string, conf *tls.Config, ours hello) (*tls.Conn, error) {
	raw, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return shakeHands(ctx, raw, addr, conf, ours)
}

// shakeHands does TLS and greets, as the dialer of raw, which it owns.
func shakeHands(
	ctx context.Context, raw net.Conn, addr string, conf *tls.Config, ours hello,
) (*tls.Conn, error) {
	tune(raw)
	conn := tls.Client(raw, conf)
	stop := context.AfterFunc(ctx, func() { conn.NetConn().SetDeadline(time.Unix(1, 0)) })
	err := conn.HandshakeContext(ctx)
	if err == nil && conn.ConnectionState().NegotiatedProtocol != conf.NextProtos[0] {
		err = fmt.Errorf("control: %s speaks no %s: %w", addr, conf.NextProtos[0], ErrProtocol)
	}
	if err == nil {
		err = greet(conn, ours)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		raw.Close()
		return nil, explainDial(ctx, addr, err)
	}
	return conn, nil
}

// explainDial names what usually lies behind a failed handshake.
func explainDial(ctx context.Context, addr string, err error) error {
	var record tls.RecordHeaderError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("control: %s does not answer as an rdmcfs node: %w", addr, ctx.Err())
	case errors.As(err, &record), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("control: %s is no rdmcfs node, or refuses us: %w", addr, err)
	case errors.Is(err, credentials.ErrForeignCluster):
		return fmt.Errorf("control: %s: %w", addr, err)
	}
	return explainHandshake(fmt.Errorf("control: %s: %w", addr, err))
}
