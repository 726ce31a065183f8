package tcp

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// tune sets the options of one of our sockets and answers the congestion control in effect. Options that
// the machine refuses are left alone: they make transfers better, not right.
func tune(conn *net.TCPConn, cfg *Config) string {
	_ = conn.SetNoDelay(true)
	probe := max(cfg.PeerTimeout/2, time.Second)
	_ = conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: probe, Interval: probe, Count: 3})
	if cfg.SendBuffer > 0 {
		_ = conn.SetWriteBuffer(cfg.SendBuffer)
	}
	if cfg.ReceiveBuffer > 0 {
		_ = conn.SetReadBuffer(cfg.ReceiveBuffer)
	}
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
	if cfg.NotSentLowat > 0 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, cfg.NotSentLowat)
	}
	if cfg.PacingBytesPerSec > 0 {
		_ = unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, cfg.PacingBytesPerSec)
	}
	if cfg.Congestion != congestionMachine {
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, cfg.Congestion)
	}
	congestion, _ := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	return congestion
}
