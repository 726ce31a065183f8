package mixed

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
)

const (
	addressKind    = 'X' // the first byte of an address of this provider
	addressVersion = 1
	addressMax     = 256 // bytes, by the promise of rdma.QueuePair
	hostBytes      = 8
	nameMax        = 16 // bytes of a provider's name
	devicesMax     = 4
)

// hostID names the device of a peer, for as long as that runs. It is no secret.
type hostID [hostBytes]byte

func newHostID() hostID {
	var h hostID
	rand.Read(h[:])
	return h
}

// kind is a provider. Of several devices of one provider the nth here is joined with the nth there.
type kind struct {
	name string
	nth  int
}

// offer is what an address says of one device.
type offer struct {
	name      string
	directory rdma.RegionKey // of the table that translates keys for this device; 0: keys are used as they are
	address   []byte         // of a queue pair there
}

// address is what a pair tells its peer: kind (1), version (1), host (8), number of offers (1), and for each, by
// preference, name and address with a length of one byte before, the directory between as a varint; then the
// filter with a length of one byte before.
type address struct {
	host   hostID
	offers []offer
	avoid  filter // routes that failed: to be used only if there is no other
}

// encode writes the address, if it is not too long.
func (a *address) encode() ([]byte, error) {
	b := append([]byte{addressKind, addressVersion}, a.host[:]...)
	b = append(b, byte(len(a.offers)))
	for _, o := range a.offers {
		if len(o.address) > addressMax-1 {
			return nil, fmt.Errorf("mixed: address of %d bytes of %s: %w", len(o.address), o.name, rdma.ErrRequest)
		}
		b = append(append(b, byte(len(o.name))), o.name...)
		b = binary.AppendUvarint(b, uint64(o.directory))
		b = append(append(b, byte(len(o.address))), o.address...)
	}
	b = append(append(b, byte(len(a.avoid))), a.avoid...)
	if len(b) > addressMax {
		return nil, fmt.Errorf("mixed: the addresses of %s take %d bytes together, limit %d; advertise a shorter host name: %w",
			a.names(), len(b), addressMax, rdma.ErrRequest)
	}
	return b, nil
}

// reader takes an address apart. After a failure it answers nothing more.
type reader struct {
	b      []byte
	failed bool
}

func (r *reader) take(n int) []byte {
	if r.failed || n > len(r.b) {
		r.failed = true
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) byte() int {
	if b := r.take(1); b != nil {
		return int(b[0])
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.failed = true
		return 0
	}
	r.take(n)
	return v
}

// decodeAddress reads an address, which shares the memory of b.
func decodeAddress(b []byte) (address, error) {
	if len(b) < 2 || len(b) > addressMax || b[0] != addressKind {
		return address{}, fmt.Errorf("mixed: address of %d bytes is not of this provider: %w", len(b), rdma.ErrRequest)
	}
	if b[1] != addressVersion {
		return address{}, fmt.Errorf("mixed: address of version %d, this is %d: %w", b[1], addressVersion, rdma.ErrRequest)
	}
	r := reader{b: b[2:]}
	var a address
	copy(a.host[:], r.take(hostBytes))
	n := r.byte()
	if n < 1 || n > devicesMax {
		return address{}, fmt.Errorf("mixed: address with %d devices, limit %d: %w", n, devicesMax, rdma.ErrRequest)
	}
	for range n {
		o := offer{name: string(r.take(r.byte())), directory: rdma.RegionKey(r.uvarint())}
		o.address = r.take(r.byte())
		if len(o.name) == 0 || len(o.name) > nameMax {
			r.failed = true
		}
		a.offers = append(a.offers, o)
	}
	a.avoid = r.take(r.byte())
	if r.failed || len(r.b) != 0 {
		return address{}, fmt.Errorf("mixed: malformed address of %d bytes: %w", len(b), rdma.ErrRequest)
	}
	return a, nil
}

// kinds are the providers of the offers.
func (a *address) kinds() []kind {
	out := make([]kind, len(a.offers))
	seen := make(map[string]int, len(a.offers))
	for i, o := range a.offers {
		out[i] = kind{o.name, seen[o.name]}
		seen[o.name]++
	}
	return out
}
