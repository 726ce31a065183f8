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

// ErrPortInUse means that another program listens on the address of --listen.
var ErrPortInUse = errors.New("another program uses this port: stop it, or give --listen another one")

// bind takes the address of --listen, so that a node that could not serve there is refused before anything is written
// or anybody is asked. The caller closes it when the node is made.
func (h Host) bind(listen string) (io.Closer, error) {
	if h.Listen != nil {
		return h.Listen(listen)
	}
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(context.Background(), "tcp", listen)
	var dns *net.DNSError
	switch {
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil,
			control.Usagef("node: listen on %q: this machine does not have that address: give --listen one that it has, "+
				"and --advertise the one that the others dial", listen)
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("node: listen on %q: %w", listen, ErrPortInUse)
	case errors.As(err, &dns):
		return nil, control.Usagef("node: listen on %q: %v: give --listen a host of this machine and a port", listen, err)
	case err != nil:
		return nil, fmt.Errorf("node: listen on %q: %w", listen, err)
	}
	return ln, nil
}
