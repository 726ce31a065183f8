package verbs

import (
	"log/slog"
	"time"
)

// Config says which device to open and how patient it is. The zero value takes the first device with an
// active port.
type Config struct {
	// Device is a name such as "mlx5_0". Empty: the first with a usable port.
	Device string
	// Port is a port number, from 1. 0: the first active one that has the GID.
	Port int
	// GID is an index of the port's table, an IP address in it, or a GID. Empty: on Ethernet RoCE v2
	// before v1, IPv4 before IPv6 and link-local last; on InfiniBand index 0.
	GID string
	// PeerTimeout is about how long a peer may leave a request unacknowledged until it counts as dead;
	// devices round it up, to four times as much at worst. Default 2 s.
	PeerTimeout time.Duration
	// ReceiverTimeout is how long a send waits for a receive at the peer. It is raised to what the device needs to find
	// a dead peer, so that a slow receiver and a dead peer are not confused. Default 5 s.
	ReceiverTimeout time.Duration
	// Log gets what a device reports of itself. Default: discarded.
	Log *slog.Logger
}
