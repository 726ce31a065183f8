package ring

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/rdma"
)

// Layout of an address, little endian: "R", version, flags, 0, slots u16, receives u16, slot bytes u32, key of the ring
// u64, queue pair's address.
const (
	addressKind    = 'R'
	addressVersion = 2
	addressBytes   = 20
	flagOrdered    = 1 // the device places writes in order
	pairAddressMax = 256
)

// Bounds of what a peer may ask to be mirrored.
const (
	slotsMin     = 2
	slotsMax     = 1 << 10
	slotBytesMin = 64 + overheadBytes
	slotBytesMax = 1 << 16
	ringBytesMax = 4 << 20
)

// address is what a peer needs to know of a channel.
type address struct {
	slots, receives int
	slotBytes       int
	ordered         bool
	key             rdma.RegionKey
	pair            []byte
}

func (a *address) code(c *coder.Coder) {
	flags, slots, receives, slotBytes := uint8(0), uint16(a.slots), uint16(a.receives), uint32(a.slotBytes)
	if a.ordered {
		flags = flagOrdered
	}
	c.Same8("provider", addressKind)
	c.Same8("version of addresses", addressVersion)
	c.U8(&flags)
	c.Pad(1)
	c.U16(&slots)
	c.U16(&receives)
	c.U32(&slotBytes)
	c.U64((*uint64)(&a.key))
	c.Rest(&a.pair, pairAddressMax)
	if c.Reading() {
		a.ordered = flags&flagOrdered != 0
		a.slots, a.receives, a.slotBytes = int(slots), int(receives), int(slotBytes)
	}
	if c.OK() && len(a.pair) == 0 {
		c.Fail("no address of a queue pair")
	}
}

func (a *address) encode() []byte {
	c := coder.Writer(make([]byte, 0, addressBytes+len(a.pair)), coder.Little)
	a.code(&c)
	return c.Written()
}

func decodeAddress(b []byte) (a address, err error) {
	c := coder.Reader(b, coder.Little)
	if a.code(&c); c.Finish() != nil {
		return address{}, fmt.Errorf("ring: address of %d bytes: %w: %w", len(b), rdma.ErrRequest, c.Err())
	}
	return a, a.check()
}

// check holds the sizes to their bounds.
func (a *address) check() error {
	switch {
	case a.slots < slotsMin || a.slots > slotsMax || a.receives < slotsMin || a.receives > slotsMax:
	case a.slotBytes < slotBytesMin || a.slotBytes > slotBytesMax || a.slotBytes%wordBytes != 0:
	case max(a.slots, a.receives)*a.slotBytes > ringBytesMax:
	default:
		return nil
	}
	return fmt.Errorf("ring: %d slots and %d receives of %d bytes: from %d to %d of %d to %d, at most %d bytes "+
		"together: %w",
		a.slots, a.receives, a.slotBytes, slotsMin, slotsMax, slotBytesMin, slotBytesMax, ringBytesMax, rdma.ErrRequest)
}

// eager is the most bytes of a message in one slot.
func (a *address) eager() int { return a.slotBytes - overheadBytes }
