package node

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/rings"
	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mixed"
	"github.com/rdmcfs/rdmcfs/rdma/tcp"
	"github.com/rdmcfs/rdmcfs/rdma/verbs"
)

// Fabric says what carries blocks between the nodes. TCP is always there, for nodes that share nothing better.
type Fabric struct {
	Mode   FabricMode
	Device string // of RDMA, such as "mlx5_0"; "" = the first with an active port
	Port   int    // of it; 0 = the first active one
	GID    string // an index or an address of the port's table; "" = the best
	// Registered bounds the bytes of registered memory that transfers use together; 0 is no bound.
	Registered int64
}

// FabricMode is the answer to whether RDMA is used.
type FabricMode string

// The modes. The zero value is FabricAuto.
const (
	FabricAuto  FabricMode = "auto"  // where there is a device
	FabricVerbs FabricMode = "verbs" // the node does not start without
	FabricTCP   FabricMode = "tcp"   // never
)

// ErrFabric is returned by Run, with the reason, if RDMA is demanded and not available.
var ErrFabric = errors.New("node: no RDMA, which was asked for")

// advertiseMax is how long an advertised address may be with RDMA: the address of a queue pair holds both (decision
// 017).
const advertiseMax = 79

// OpenVerbs opens the RDMA device that f asks for, whatever its mode. The caller closes it.
func (f Fabric) OpenVerbs(log *slog.Logger) (rdma.Device, error) {
	return verbs.Open(verbs.Config{Device: f.Device, Port: f.Port, GID: f.GID, Log: log})
}

// openDevice makes the fabric of this node: RDMA, if it is wanted and there, and TCP.
func (n *node) openDevice() error {
	if n.cfg.Host.Device != nil {
		return n.openHostDevice()
	}
	card, err := n.cfg.Fabric.OpenWanted(n.id.Advertise, n.log)
	if err != nil {
		return err
	}
	var devices []rdma.Device
	if card != nil {
		devices = append(devices, card)
	}
	if n.tcp, err = tcp.New(tcp.Config{Advertise: n.id.Advertise, Log: n.log}); err != nil {
		return errors.Join(err, closeAll(devices))
	}
	devices = append(devices, n.tcp)
	if n.device, err = mixed.New(mixed.Config{Devices: devices, Log: n.log}); err != nil {
		return errors.Join(err, closeAll(devices))
	}
	n.closer.add(n.device.Close)
	if err := tryPair(n.device); err != nil {
		return fmt.Errorf("node: fabric: %w", err)
	}
	n.log.Info("fabric", "is", n.device.String())
	if card != nil {
		n.openRings(card)
	}
	return nil
}

// openHostDevice makes the fabric of a host that brings its own.
func (n *node) openHostDevice() error {
	device, err := n.cfg.Host.Device()
	if err != nil {
		return fmt.Errorf("node: fabric: %w", err)
	}
	if n.device, err = mixed.New(mixed.Config{Devices: []rdma.Device{device}, Log: n.log}); err != nil {
		return errors.Join(err, device.Close())
	}
	n.closer.add(n.device.Close)
	return nil
}

// openRings makes the traffic of control go over an RDMA device, too; without a device it stays on TCP.
func (n *node) openRings(device rdma.Device) {
	fabric, err := rings.New(device)
	if err != nil {
		n.log.Warn("calls and the log stay on tcp", "reason", err)
		return
	}
	n.rings = fabric
	n.closer.add(fabric.Close)
}

// controlFabric is nil without an RDMA device.
func (n *node) controlFabric() control.Fabric {
	if n.rings == nil {
		return nil
	}
	return n.rings
}

// overRings counts the connections of control that go over RDMA.
func (n *node) overRings() int {
	if n.rings == nil {
		return 0
	}
	return n.rings.Connections()
}

// tryPair makes a queue pair and closes it: an address that is too long is reported at the start, not in the first
// transfer.
func tryPair(d rdma.Device) error {
	cq, err := d.NewCQ(1)
	if err != nil {
		return err
	}
	qp, err := d.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 1, RecvDepth: 1})
	if err == nil {
		err = qp.Close()
	}
	return errors.Join(err, cq.Close())
}

// OpenWanted opens the RDMA device that f asks for, for a node with an advertised address. It returns nil if RDMA is
// not wanted, or if it is neither available nor demanded; ErrFabric if it is demanded. The caller closes it.
func (f Fabric) OpenWanted(advertise string, log *slog.Logger) (rdma.Device, error) {
	if f.Mode == FabricTCP {
		return nil, nil
	}
	d, err := f.OpenVerbs(log)
	if err == nil && len(advertise) > advertiseMax {
		err = errors.Join(fmt.Errorf("the advertised address %s has %d bytes, with RDMA at most %d: advertise a shorter one",
			advertise, len(advertise), advertiseMax), d.Close())
	}
	switch {
	case err == nil:
		return d, nil
	case f.Mode == FabricVerbs:
		return nil, fmt.Errorf("%w: %w; see 'rdmcfs doctor', or use --fabric auto", ErrFabric, err)
	case f == Fabric{Mode: f.Mode, Registered: f.Registered} && !verbs.Present(): // as on most machines
		log.Debug("no RDMA: data goes over tcp", "reason", err)
	default:
		log.Warn("RDMA can't be used: data goes over tcp", "reason", err)
	}
	return nil, nil
}

func closeAll(devices []rdma.Device) (err error) {
	for _, d := range devices {
		err = errors.Join(err, d.Close())
	}
	return err
}
