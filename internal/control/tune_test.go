package control

import (
	"crypto/tls"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBothEndsHaveTheCongestionControlOfTheDataConnections: with the machine's default, calls beside bulk data starve
// on a slow link.
func TestBothEndsHaveTheCongestionControlOfTheDataConnections(t *testing.T) {
	have, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil || !slices.Contains(strings.Fields(string(have)), congestion) {
		t.Skipf("this machine has no %s: %q, %v", congestion, have, err)
	}
	peers, port := pair(t, func(s *Server) { s.HandleCall(kindTest, echo) })
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Fatal(err)
	}
	c, err := peers.client(bounded(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	ends := []net.Conn{c.conn}
	port.mu.Lock()
	for conn := range port.peers[2] {
		ends = append(ends, conn)
	}
	port.mu.Unlock()
	if len(ends) != 2 {
		t.Fatalf("%d ends of one connection", len(ends))
	}
	for _, end := range ends {
		if got := congestionOf(t, end); got != congestion {
			t.Errorf("%v to %v: %q, want %q", end.LocalAddr(), end.RemoteAddr(), got, congestion)
		}
	}
}

func congestionOf(t *testing.T, conn net.Conn) (name string) {
	t.Helper()
	raw, err := conn.(*tls.Conn).NetConn().(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := raw.Control(func(fd uintptr) {
		name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP,
			unix.TCP_CONGESTION)
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return name
}
