package rdmc

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// Placed is a Source or Sink whose message lies in registered memory: blocks are sent from there and received into
// it, without a copy, and ReadBlock and WriteBlock are called for few blocks or none. At a member whose Receiver.Have
// has a block, and for the first block on each queue pair of a message that was not announced, the memory of the
// group is used all the same.
type Placed interface {
	// Place is where block i of length bytes lies: that many bytes of a region of the engine's device. The memory
	// belongs to the group until the transfer has ended well, or Abort or Close has returned. A block that fails its
	// check may have changed it. With a nil Region the block goes by ReadBlock and WriteBlock. Place is called with
	// the group's lock held, also by the poller: it must not wait, nor call the group.
	Place(i uint64, length int) rdma.SGE
}

// place decides where the block of an action will lie in its slot: where its message is, else in the pool.
func (g *Group) place(a *core.Action) {
	b := &g.blocks
	b.places[a.Slot], b.unsealed[a.Slot] = rdma.SGE{}, false
	t := g.transfers[a.Seq]
	if t == nil || t.placed == nil || a.Kind == core.ActPostRecv && t.have.Has(a.Block) {
		return
	}
	length := a.Length - core.TrailerSize
	sge := t.placed.Place(a.Block, length)
	if sge.Region == nil {
		return
	}
	if sge.Length != length || sge.Offset < 0 || sge.Offset > len(sge.Region.Bytes())-length {
		g.core.Fail(g.cfg.localReason(), g.cfg.Rank, []int{g.cfg.Rank},
			fmt.Errorf("%w: block %d of %d bytes placed at %d of %d, with %d bytes",
				ErrInvalid, a.Block, length, sge.Offset, len(sge.Region.Bytes()), sge.Length))
		return
	}
	b.places[a.Slot] = sge
	b.unsealed[a.Slot] = a.Kind == core.ActLoad && g.engine.device.Limits().SealsCRC // else it comes with its sum
}
