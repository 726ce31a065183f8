package tcp

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tune sets the options of one of our sockets and returns the congestion control in effect. Options that the machine
// refuses are left alone: they are there for speed, not for correctness.
func tune(conn *net.TCPConn, cfg *Config) string {
	_ = conn.SetNoDelay(true)
	probe := max(cfg.PeerTimeout/2, time.Second)
	_ = conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: probe, Interval: probe, Count: 3})
	rc, err := conn.SyscallConn()
	if err != nil {
		return ""
	}
	var congestion string
	_ = rc.Control(func(fd uintptr) { congestion = tuneRaw(int(fd), cfg) })
	return congestion
}

func tuneRaw(fd int, cfg *Config) string {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(cfg.PeerTimeout.Milliseconds()))
	setCongestion(fd, cfg.Congestion)
	congestion, _ := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	return congestion
}

func setCongestion(fd int, congestion string) {
	if congestion != congestionMachine {
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
	}
}

// Control is for net.Dialer and net.ListenConfig of connections that a device is to be given by Config.Dial or Serve:
// their sockets have the device's congestion control (as in Config) from the beginning. A connection that begins with
// bbr, if that is the machine's default, keeps its pacing for good, which costs a quarter of the throughput where
// processors are the limit (docs/decisions/025). Accepted connections have it from the listener. What the machine
// refuses is left out, as by the device.
func Control(congestion string) func(network, address string, c syscall.RawConn) error {
	defaultTo(&congestion, congestionDefault)
	return func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { setCongestion(int(fd), congestion) })
	}
}

// listen is net.Listen with such sockets.
func listen(addr, congestion string) (net.Listener, error) {
	lc := net.ListenConfig{Control: Control(congestion)}
	lc.SetMultipathTCP(false) // whose listener does not hand its congestion control on
	return lc.Listen(context.Background(), "tcp", addr)
}

// dialer is a Config.Dial with such sockets.
func dialer(congestion string) func(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Control: Control(congestion)}
	return func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
}
