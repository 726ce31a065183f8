package verbs

import (
	"net/netip"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// DeviceInfo describes a device of this machine.
type DeviceInfo struct {
	Name     string // "mlx5_0", "rxe0"
	Firmware string
	Vendor   uint32 // PCI-like vendor id; 0xffffff is soft RoCE
	Limits   Limits
	Ports    []PortInfo
	Problems []string // why it cannot be used, or not well; each says what to do
}

// Limits are a device's own, as ibv_query_device reports them.
type Limits struct {
	QueuePairs, CompletionQueues, Regions int
	QueueDepth, CompletionDepth           int // entries of one queue
	SGE, ReadSGE                          int // entries of a request; of a read, 0 if the same
	RegionBytes                           uint64
	ReadsOut, ReadsIn                     int // outstanding reads of a pair: as requester, as responder
}

// PortInfo describes a port of a device.
type PortInfo struct {
	Number           int
	State            string // "active", "down", ...
	LinkLayer        string // "InfiniBand" or "Ethernet"
	MTU, MTUMax      int    // bytes; 0 if unknown
	LID              uint16
	MessageBytesMax  uint32
	GIDs             []GIDInfo
	Problems         []string
	gidTable         int
	mtuCode, mtuMaxC uint8
}

// Active reports whether the port can carry data.
func (p *PortInfo) Active() bool { return p.State == "active" }

// GIDInfo is an entry of a port's table of addresses.
type GIDInfo struct {
	Index int
	GID   netip.Addr // the 16 bytes; IPv4 addresses of RoCE are mapped
	Type  string     // "RoCE v2", "RoCE v1", "InfiniBand"
	NetIf string     // the network interface of an Ethernet port
}

// Status is the present state of an open device, for status pages.
type Status struct {
	Device, GID string
	Port        int
	Limits      rdma.Limits
	QueuePairs  int
	Err         error // why nothing works any more; nil while it does
}
