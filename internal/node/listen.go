package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/rdmcfs/rdmcfs/internal/control"
	"golang.org/x/sys/unix"
)

// ErrPortInUse means that another program listens on the address of --listen or of --http.
var ErrPortInUse = errors.New("another program uses this port: stop it, or give another one")

// boundFlag is a flag whose address is bound.
type boundFlag struct {
	name   string
	advice string // for an address that this machine does not have
}

var (
	flagListen = boundFlag{"--listen", "give --listen one that it has, and --advertise the one that the others dial"}
	flagHTTP   = boundFlag{"--http", "give --http one that it has"}
)

// bind takes the addresses of --listen and --http, so that a node that could not serve there is refused before anything
// is written or anybody is asked. The caller closes them when the node is made.
func (h Host) bind(listen, http string) (io.Closer, error) {
	if h.Listen != nil {
		return h.Listen(listen)
	}
	if samePort(http, listen) {
		return nil, errSamePort(http)
	}
	var bound closer
	for _, b := range []struct {
		flag boundFlag
		addr string
	}{{flagListen, listen}, {flagHTTP, http}} {
		if b.addr == "" {
			continue
		}
		ln, err := bindTCP(b.flag, b.addr)
		if err != nil {
			return nil, errors.Join(err, bound.Close())
		}
		bound.add(ln.Close)
	}
	return &bound, nil
}

func errSamePort(addr string) error {
	return control.Usagef("node: --http %q has the port of --listen: give it another one", addr)
}

// samePort reports whether two addresses can't both be bound: they have one port, and one host or a wildcard.
func samePort(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	wild := func(host string) bool { return host == "" || net.ParseIP(host).IsUnspecified() }
	return errA == nil && errB == nil && portA == portB && portA != "0" && (hostA == hostB || wild(hostA) || wild(hostB))
}

// bindTCP listens on the address of a flag.
func bindTCP(flag boundFlag, addr string) (net.Listener, error) {
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(context.Background(), "tcp", addr)
	var dns *net.DNSError
	switch {
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, control.Usagef("node: %s %q: this machine does not have that address: %s", flag.name, addr, flag.advice)
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("node: %s %q: %w", flag.name, addr, ErrPortInUse)
	case errors.As(err, &dns):
		return nil, control.Usagef("node: %s %q: %v: give a host of this machine and a port", flag.name, addr, err)
	case err != nil:
		return nil, fmt.Errorf("node: %s %q: %w", flag.name, addr, err)
	}
	if why := manyHosts(ln.Addr()); why != "" {
		return nil, errors.Join(control.Usagef("node: %s %q is a %s address, which nobody can dial: %s", flag.name, addr, why,
			flag.advice), ln.Close())
	}
	return ln, nil
}

// manyHosts says what an address is that stands for several hosts; "" if it does not. Linux lets a program listen on
// such addresses.
func manyHosts(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return ""
	}
	if tcp.IP.IsMulticast() {
		return "multicast"
	}
	if tcp.IP.Equal(net.IPv4bcast) {
		return "broadcast"
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && !n.IP.Equal(tcp.IP) && broadcastOf(n).Equal(tcp.IP) {
			return "broadcast"
		}
	}
	return ""
}

// broadcastOf is the last address of an IPv4 network; nil if it has none.
func broadcastOf(n *net.IPNet) net.IP {
	ip, ones := n.IP.To4(), 0
	if ones, _ = n.Mask.Size(); ip == nil || ones > 30 || n.IP.IsLoopback() {
		return nil
	}
	out := make(net.IP, len(ip))
	for i := range ip {
		out[i] = ip[i] | ^n.Mask[len(n.Mask)-len(ip)+i]
	}
	return out
}
