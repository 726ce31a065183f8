package rdmc

import (
	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// smallBuffers are the memory of small messages, a slot for each: at the root the slots of the ring, at a member those
// of the receives from its parent, into which control messages come too.
type smallBuffers struct {
	bound  int         // of a message in bytes; 0 if there are none, and no memory
	slots  int         // how many
	parent int         // lane that they come on, -1 at the root
	region rdma.Region // nil if there is none
}

func newSmallBuffers(cfg *GroupConfig, parent int) smallBuffers {
	b := smallBuffers{bound: cfg.SmallBytes, parent: parent, slots: cfg.smallWindow()}
	if b.slots > 0 && cfg.Rank > 0 {
		b.slots += core.ControlWindow
	}
	return b
}

// open allocates the memory.
func (b *smallBuffers) open(device rdma.Device) (err error) {
	if b.slots > 0 {
		b.region, err = device.AllocRegion(b.size(), 0)
	}
	return err
}

// size is how many bytes the memory has.
func (b *smallBuffers) size() int { return b.slots * b.stride() }

// stride is how many bytes a slot has.
func (b *smallBuffers) stride() int {
	return (max(core.MaxControl, b.bound+core.TrailerSize) + 63) &^ 63
}

// isFrom reports whether small messages come on the lane.
func (b *smallBuffers) isFrom(lane int) bool { return b.region != nil && lane == b.parent }

// sge is the memory of a slot for length bytes.
func (b *smallBuffers) sge(slot, length int) rdma.SGE {
	return rdma.SGE{Region: b.region, Offset: slot * b.stride(), Length: length}
}

// bytes is that memory.
func (b *smallBuffers) bytes(slot, length int) []byte {
	at := slot * b.stride()
	return b.region.Bytes()[at : at+length : at+length]
}
