package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/node"
	"github.com/rdmcfs/rdmcfs/internal/tools/doctor"
	"github.com/rdmcfs/rdmcfs/internal/units"
	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/verbs"
)

// lookAtRDMA finds out what this machine has, and opens the device that a daemon would use, for a moment.
func lookAtRDMA(fabric node.Fabric) doctor.RDMA {
	var out doctor.RDMA
	devices, err := verbs.Devices()
	if err != nil {
		out.NotBuilt, out.Missing, out.Refused = errors.Is(err, verbs.ErrNotBuilt), err.Error(), err.Error()
		return out
	}
	for i := range devices {
		out.Devices = append(out.Devices, describeRDMA(&devices[i]))
	}
	d, err := fabric.OpenVerbs(slog.New(slog.DiscardHandler))
	if err != nil {
		out.Refused = err.Error()
		return out
	}
	defer d.Close()
	out.Opened = d.Name()
	if named, ok := d.(fmt.Stringer); ok {
		out.Opened = named.String()
	}
	l := d.Limits()
	out.Opened += ": " + usedText(l)
	return out
}

// usedText are the limits that the fabric keeps to.
func usedText(l rdma.Limits) string {
	return fmt.Sprintf("uses queues of up to %d requests of %d entries, %d bytes inline, messages of up to %s",
		l.MaxQueueDepth, l.MaxSGE, l.MaxInline, units.Bytes(int64(l.MaxMessage)))
}

func describeRDMA(d *verbs.DeviceInfo) doctor.RDMADevice {
	l := &d.Limits
	out := doctor.RDMADevice{Name: d.Name, Problems: d.Problems}
	if l.QueuePairs > 0 {
		out.Limits = fmt.Sprintf("%d queue pairs of %d requests of %d entries, %d completion queues of %d, %d regions of "+
			"up to %s",
			l.QueuePairs, l.QueueDepth, l.SGE, l.CompletionQueues, l.CompletionDepth, l.Regions,
			units.Bytes(int64(min(l.RegionBytes, 1<<62))))
	}
	for i := range d.Ports {
		out.Ports = append(out.Ports, describePort(&d.Ports[i]))
	}
	return out
}

func describePort(p *verbs.PortInfo) doctor.RDMAPort {
	var gids []string
	for _, g := range p.GIDs {
		text := fmt.Sprintf("%d %v %s", g.Index, g.GID.Unmap(), g.Type)
		if g.NetIf != "" {
			text += " " + g.NetIf
		}
		gids = append(gids, text)
	}
	if len(gids) > gidsShown {
		gids = append(gids[:gidsShown], fmt.Sprintf("and %d more", len(gids)-gidsShown))
	}
	return doctor.RDMAPort{Problems: p.Problems, Text: fmt.Sprintf("port %d is %s, %s, MTU %d of %d, GIDs: %s",
		p.Number, p.State, p.LinkLayer, p.MTU, p.MTUMax, strings.Join(gids, "; "))}
}

// gidsShown is how many entries of a port's table are printed.
const gidsShown = 8
