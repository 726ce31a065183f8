package tcp

import (
	"bytes"
	"crypto/rand"
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// addressKind is the first byte of an address: provider and version.
const addressKind = 'T'

// maxHostPort is the length of the longest dial address: the whole must fit into 256 bytes.
const maxHostPort = 256 - 1 - tokenBytes - secretBytes

// address is what a pair sends its peer: kind (1), token (16), secret (32), host:port (rest).
type address struct {
	token    token
	secret   [secretBytes]byte
	hostPort string // empty: cannot be dialled
}

func newAddress(hostPort string) address {
	a := address{hostPort: hostPort}
	rand.Read(a.token[:])
	rand.Read(a.secret[:])
	return a
}

func (a *address) encode() []byte {
	b := make([]byte, 0, 1+tokenBytes+secretBytes+len(a.hostPort))
	b = append(b, addressKind)
	b = append(b, a.token[:]...)
	b = append(b, a.secret[:]...)
	return append(b, a.hostPort...)
}

func decodeAddress(b []byte) (address, error) {
	const fixed = 1 + tokenBytes + secretBytes
	if len(b) < fixed || len(b) > fixed+maxHostPort || b[0] != addressKind {
		return address{}, fmt.Errorf("tcp: address of %d bytes is not of this provider: %w", len(b), rdma.ErrRequest)
	}
	return address{
		token:    token(b[1:17]),
		secret:   [secretBytes]byte(b[17:fixed]),
		hostPort: string(b[fixed:]),
	}, nil
}

// dials reports whether a dials b rather than the other way round; both sides find the same. The one
// that can be dialled is; if both can, the smaller token dials.
func dials(a, b *address) (bool, error) {
	if a.token == b.token {
		return false, fmt.Errorf("tcp: connect a queue pair to itself: %w", rdma.ErrRequest)
	}
	switch {
	case a.hostPort == "" && b.hostPort == "":
		return false, fmt.Errorf("tcp: neither side has an address to dial: %w", rdma.ErrRequest)
	case a.hostPort == "":
		return true, nil
	case b.hostPort == "":
		return false, nil
	}
	return bytes.Compare(a.token[:], b.token[:]) < 0, nil
}
