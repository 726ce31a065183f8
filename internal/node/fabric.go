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

// devices are what carries blocks and messages to other nodes.
type devices struct {
	all   *mixed.Device
	tcp   *tcp.Device   // one of the members of all; nil where a host brings its own fabric
	rings *rings.Fabric // for messages, over the RDMA device; nil without one
}

// openDevices makes the fabric of a node that is dialled at an advertised address: RDMA, if it is wanted and there, and
// TCP. What was opened is closed by closer, also after an error.
func openDevices(cfg Config, advertise string, log *slog.Logger, closer *closer) (*devices, error) {
	if cfg.Host.Device != nil {
		return openHostDevice(cfg.Host, log, closer)
	}
	card, err := cfg.Fabric.OpenWanted(advertise, log)
	if err != nil {
		return nil, err
	}
	var parts []rdma.Device
	if card != nil {
		parts = append(parts, card)
	}
	d := &devices{}
	if d.tcp, err = tcp.New(tcp.Config{Advertise: advertise, Log: log}); err != nil {
		return nil, errors.Join(err, closeAll(parts))
	}
	parts = append(parts, d.tcp)
	if d.all, err = mixed.New(mixed.Config{Devices: parts, Log: log}); err != nil {
		return nil, errors.Join(err, closeAll(parts))
	}
	closer.add(d.all.Close)
	if err := tryPair(d.all); err != nil {
		return nil, fmt.Errorf("node: fabric: %w", err)
	}
	log.Info("fabric", "is", d.all.String())
	if card != nil {
		d.openRings(card, log, closer)
	}
	return d, nil
}

// openHostDevice makes the fabric of a host that brings its own.
func openHostDevice(host Host, log *slog.Logger, closer *closer) (*devices, error) {
	device, err := host.Device()
	if err != nil {
		return nil, fmt.Errorf("node: fabric: %w", err)
	}
	all, err := mixed.New(mixed.Config{Devices: []rdma.Device{device}, Log: log})
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	closer.add(all.Close)
	return &devices{all: all}, nil
}

// openRings makes the traffic of control go over an RDMA device, too; without a device it stays on TCP.
func (d *devices) openRings(device rdma.Device, log *slog.Logger, closer *closer) {
	fabric, err := rings.New(device)
	if err != nil {
		log.Warn("calls and the log stay on tcp", "reason", err)
		return
	}
	d.rings = fabric
	closer.add(fabric.Close)
}

// control is nil without an RDMA device.
func (d *devices) control() control.Fabric {
	if d.rings == nil {
		return nil
	}
	return d.rings
}

// overRings counts the connections of control that go over RDMA.
func (d *devices) overRings() int {
	if d.rings == nil {
		return 0
	}
	return d.rings.Connections()
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

// check refuses RDMA that is demanded and not there, before anything is made for a node that could not start.
func (f Fabric) check(advertise string) error {
	if f.Mode != FabricVerbs {
		return nil
	}
	d, err := f.OpenWanted(advertise, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return d.Close()
}

func closeAll(devices []rdma.Device) (err error) {
	for _, d := range devices {
		err = errors.Join(err, d.Close())
	}
	return err
}
