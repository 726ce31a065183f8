package tcp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"time"
)

// Config says how a device connects and tunes its sockets. The zero value works for a device that
// listens by itself.
type Config struct {
	// Advertise is the host:port that peers dial. Empty: the address of Listen, if it was called before
	// the queue pair was made; a device without either can connect only to peers that have one.
	Advertise string
	// Dial opens a connection to a peer's Advertise address. Default: a net.Dialer with Control.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Log gets rejected connections and the like. Default: discarded.
	Log *slog.Logger

	// HandshakeTimeout bounds the reading of a stranger's first message, and each later one. Default 5 s.
	HandshakeTimeout time.Duration
	// PeerTimeout is TCP_USER_TIMEOUT and the base of keepalive: how long a peer may leave bytes
	// unacknowledged until it counts as dead. Default 2 s.
	PeerTimeout time.Duration
	// ReceiverTimeout is how long a send waits for a receive at the peer. Default 5 s.
	ReceiverTimeout time.Duration

	// Congestion is the congestion control of our sockets. Default "cubic"; "default" leaves the machine's. If it
	// cannot be set the machine's is used, and Device.Info reports that. Connections that the device does not open
	// itself should have it before they are connected: see Control.
	Congestion string
	// InlineBytes is the largest batch that PostSend writes to the socket itself; larger ones go to the
	// pair's writer goroutine. Default 16 KiB; negative: none.
	InlineBytes int

	// answerDelay is how long the acknowledgement of an answer waits for a frame that carries it. Default 1 ms.
	answerDelay time.Duration
	// watch makes the watch read pairs that talk in small frames. Default: in a process with one processor
	// (GOMAXPROCS).
	watch bool
}

// Defaults of Config.
const (
	handshakeTimeoutDefault = 5 * time.Second
	peerTimeoutDefault      = 2 * time.Second
	receiverTimeoutDefault  = 5 * time.Second
	answerDelayDefault      = time.Millisecond
	inlineBytesDefault      = 16 << 10
	congestionDefault       = "cubic"
	congestionMachine       = "default"
)

func (c Config) withDefaults() (Config, error) {
	if len(c.Advertise) > maxHostPort {
		return c, fmt.Errorf("tcp: advertised address of %d bytes, limit %d", len(c.Advertise), maxHostPort)
	}
	if c.HandshakeTimeout < 0 || c.PeerTimeout < 0 || c.ReceiverTimeout < 0 {
		return c, fmt.Errorf("tcp: negative time in the configuration")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	defaultTo(&c.HandshakeTimeout, handshakeTimeoutDefault)
	defaultTo(&c.PeerTimeout, peerTimeoutDefault)
	defaultTo(&c.ReceiverTimeout, receiverTimeoutDefault)
	defaultTo(&c.InlineBytes, inlineBytesDefault)
	defaultTo(&c.Congestion, congestionDefault)
	if c.Dial == nil {
		c.Dial = dialer(c.Congestion)
	}
	defaultTo(&c.answerDelay, answerDelayDefault)
	defaultTo(&c.watch, runtime.GOMAXPROCS(0) == 1)
	return c, nil
}

func defaultTo[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
