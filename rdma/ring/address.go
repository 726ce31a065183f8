package ring

import (
	"encoding/binary"
	"fmt"

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

func (a *address) encode() []byte {
	b := make([]byte, addressBytes, addressBytes+len(a.pair))
	b[0], b[1] = addressKind, addressVersion
	if a.ordered {
		b[2] = flagOrdered
	}
	binary.LittleEndian.PutUint16(b[4:], uint16(a.slots))
	binary.LittleEndian.PutUint16(b[6:], uint16(a.receives))
	binary.LittleEndian.PutUint32(b[8:], uint32(a.slotBytes))
	binary.LittleEndian.PutUint64(b[12:], uint64(a.key))
	return append(b, a.pair...)
}

func decodeAddress(b []byte) (address, error) {
	if len(b) <= addressBytes || len(b) > addressBytes+pairAddressMax || b[0] != addressKind || b[1] != addressVersion {
		return address{}, fmt.Errorf("ring: address of %d bytes is none of this version: %w", len(b), rdma.ErrRequest)
	}
	a := address{
		slots: int(binary.LittleEndian.Uint16(b[4:])), receives: int(binary.LittleEndian.Uint16(b[6:])),
		slotBytes: int(binary.LittleEndian.Uint32(b[8:])), ordered: b[2]&flagOrdered != 0,
		key: rdma.RegionKey(binary.LittleEndian.Uint64(b[12:])), pair: b[addressBytes:],
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
	return fmt.Errorf("ring: %d slots and %d receives of %d bytes: from %d to %d of %d to %d, at most %d bytes together: %w",
		a.slots, a.receives, a.slotBytes, slotsMin, slotsMax, slotBytesMin, slotBytesMax, ringBytesMax, rdma.ErrRequest)
}

// eager is the most bytes of a message in one slot.
func (a *address) eager() int { return a.slotBytes - overheadBytes }
