package mixed

import (
	"crypto/rand"
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/coder"
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

// address is what a pair sends its peer: kind (1), version (1), host (8), number of offers (1), and for each, by
// preference, name and address with a length of one byte before, the directory between as a varint; then the filter
// with a length of one byte before.
type address struct {
	host   hostID
	offers []offer
	avoid  filter // routes that failed: to be used only if there is no other
}

func (a *address) code(c *coder.Coder) {
	c.Same8("provider", addressKind)
	c.Same8("version of addresses", addressVersion)
	c.Fixed(a.host[:])
	n := c.Count8(len(a.offers), devicesMax, 3)
	if c.Reading() {
		a.offers = make([]offer, n)
	}
	for i := range a.offers {
		a.offers[i].code(c)
	}
	c.View8((*[]byte)(&a.avoid), addressMax)
	if c.OK() && n == 0 {
		c.Fail("no devices")
	}
}

func (o *offer) code(c *coder.Coder) {
	c.Text8(&o.name, nameMax)
	c.V64((*uint64)(&o.directory))
	c.View8(&o.address, addressMax-1)
	if c.OK() && len(o.name) == 0 {
		c.Fail("a device of no provider")
	}
}

// encode writes the address, if it is not too long.
func (a *address) encode() ([]byte, error) {
	for _, o := range a.offers {
		if len(o.address) > addressMax-1 {
			return nil, fmt.Errorf("mixed: address of %d bytes of %s: %w", len(o.address), o.name, rdma.ErrRequest)
		}
	}
	c := coder.Writer(nil, coder.Little)
	a.code(&c)
	if b := c.Written(); len(b) <= addressMax {
		return b, nil
	}
	return nil,
		fmt.Errorf("mixed: the addresses of %s take %d bytes together, limit %d; advertise a shorter host name: %w",
			a.names(), len(c.Written()), addressMax, rdma.ErrRequest)
}

// decodeAddress reads an address, which shares the memory of b.
func decodeAddress(b []byte) (a address, err error) {
	c := coder.Reader(b, coder.Little)
	if a.code(&c); len(b) > addressMax || c.Finish() != nil {
		return address{}, fmt.Errorf("mixed: address of %d bytes: %w: %w", len(b), rdma.ErrRequest, c.Err())
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
