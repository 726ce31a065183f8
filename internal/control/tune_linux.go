package control

import (
	"context"
	"crypto/tls"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// deadAfter is how long sent bytes may go unacknowledged before the kernel gives the connection up.
	deadAfter         = 5 * time.Second
	keepAliveIdle     = 5 * time.Second
	keepAliveInterval = 2 * time.Second
	keepAliveCount    = 3
	// backoffsInVain is after how many doublings of the kernel's pause a connection counts as one that sends in vain:
	// the next attempt comes after eight times the usual pause, 1.6 s or more.
	backoffsInVain = 3
	// congestion is the congestion control of our connections, the same as of the connections that carry data
	// (rdma/tcp). Beside them, connections with the machine's default, such as bbr, starve on a slow link, and healthy
	// nodes look silent.
	congestion = "cubic"
)

// setCongestion sets the congestion control of a socket that does not connect or listen yet: a connection that begins
// with another one may keep its pacing. Failures do no harm: the machine's default stays.
func setCongestion(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
	})
}

// dialTCP is the DialFunc that is taken when none is given.
func dialTCP(ctx context.Context, network, addr string) (net.Conn, error) {
	return (&net.Dialer{Control: setCongestion}).DialContext(ctx, network, addr)
}

// tune makes the kernel notice a host that is gone: within deadAfter of sending, within twice that when idle. A
// process that is only stopped still acknowledges. Failures do no harm: calls have deadlines of their own.
func tune(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	tcp.SetNoDelay(true)
	tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval,
		Count: keepAliveCount})
	if raw, err := tcp.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadAfter.Milliseconds()))
		})
	}
}

// unacknowledged returns how many of the bytes written to a connection the kernel still keeps; 0 if that is not known.
func unacknowledged(conn net.Conn) (n int64) {
	if raw := rawConn(conn); raw != nil {
		_ = raw.Control(func(fd uintptr) {
			if kept, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err == nil {
				n = int64(kept)
			}
		})
	}
	return n
}

// sendsInVain reports whether the kernel has sent the same bytes of a connection several times, each time after a
// longer pause, and no acknowledgement has come; false if that is not known.
func sendsInVain(conn net.Conn) (is bool) {
	if raw := rawConn(conn); raw != nil {
		_ = raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			is = err == nil && info.Backoff >= backoffsInVain
		})
	}
	return is
}

// rawConn is the socket below a connection, nil if that is no TCP socket.
func rawConn(conn net.Conn) syscall.RawConn {
	if over, ok := conn.(*tls.Conn); ok {
		conn = over.NetConn()
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// peekByte waits for the first byte of a connection and leaves it there.
func peekByte(conn *net.TCPConn) (byte, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var b [1]byte
	var n int
	var opErr error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, _, opErr = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if opErr != unix.EINTR {
				return opErr != unix.EAGAIN
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case opErr != nil:
		return 0, opErr
	case n == 0:
		return 0, net.ErrClosed
	}
	return b[0], nil
}
