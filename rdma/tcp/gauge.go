package tcp

import (
	"bufio"
	"bytes"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// countersPath are the counters of the interfaces of this process's network namespace.
const countersPath = "/proc/self/net/dev"

var _ rdma.Gauge = (*Device)(nil)

// interfaces are those that connections of a device have used.
type interfaces struct {
	mu    sync.Mutex
	known map[string]bool // addresses that were looked up
	names map[string]bool
	bad   bool // one was not found, or is the loopback device, which others use too
}

// note looks up the interface of a connection, if its address is a new one.
func (s *interfaces) note(conn net.Conn) {
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.bad = true
		return
	}
	if s.known[host] {
		return
	}
	if s.known == nil {
		s.known, s.names = make(map[string]bool), make(map[string]bool)
	}
	s.known[host] = true
	name, ok := interfaceOf(net.ParseIP(strings.SplitN(host, "%", 2)[0]))
	s.names[name], s.bad = true, s.bad || !ok
}

// interfaceOf is the name of the interface with an address; ok is false for the loopback device too.
func interfaceOf(ip net.IP) (name string, ok bool) {
	all, err := net.Interfaces()
	if err != nil || ip == nil {
		return "", false
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, is := a.(*net.IPNet); is && n.IP.Equal(ip) {
				return i.Name, i.Flags&net.FlagLoopback == 0
			}
		}
	}
	return "", false
}

// Carried is what the interfaces of the device's connections have carried, by the kernel's counters.
func (d *Device) Carried() (sent, received uint64, ok bool) {
	s := &d.interfaces
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad || len(s.names) == 0 {
		return 0, 0, false
	}
	counters, err := os.ReadFile(countersPath)
	if err != nil {
		return 0, 0, false
	}
	return count(counters, s.names)
}

// count sums the bytes of the named interfaces up; all must be there.
func count(counters []byte, names map[string]bool) (sent, received uint64, ok bool) {
	found := 0
	for lines := bufio.NewScanner(bytes.NewReader(counters)); lines.Scan(); {
		name, rest, is := strings.Cut(lines.Text(), ":")
		if !is || !names[strings.TrimSpace(name)] {
			continue
		}
		f := strings.Fields(rest)
		if len(f) < 9 {
			return 0, 0, false
		}
		in, errIn := strconv.ParseUint(f[0], 10, 64)
		out, errOut := strconv.ParseUint(f[8], 10, 64)
		if errIn != nil || errOut != nil {
			return 0, 0, false
		}
		sent, received, found = sent+out, received+in, found+1
	}
	return sent, received, found == len(names)
}
