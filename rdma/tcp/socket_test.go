package tcp

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSocketsBeginWithTheirCongestionControl: it is there when a connection is made, at both ends, not set after
// another one has begun.
func TestSocketsBeginWithTheirCongestionControl(t *testing.T) {
	const want = "reno" // each kernel has it, and it is nobody's default
	l, err := listen("127.0.0.1:0", want)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := bed{t: t}
	dialled, err := dialer(want)(b.context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	for end, conn := range map[string]net.Conn{"dialled": dialled, "accepted": accepted} {
		rc, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if cerr := rc.Control(func(fd uintptr) {
			got, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP,
				unix.TCP_CONGESTION)
		}); cerr != nil || err != nil || got != want {
			t.Errorf("%s connection has %q (%v, %v), want %q", end, got, cerr, err, want)
		}
	}
}
