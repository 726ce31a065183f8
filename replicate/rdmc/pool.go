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

// A slot's block lies in the pool, which has room for a block and its trailer on pages of its own for each slot, or
// where the message is placed. In that case only its trailer is in the pool, after the blocks of all slots. Unused
// pages cost nothing.

func (g *Group) stride() int { return (g.cfg.BlockSize + core.TrailerSize + 4095) &^ 4095 }

// openPool allocates the block buffers if they are not there.
func (g *Group) openPool() error {
	if g.pool != nil {
		return nil
	}
	size := g.trailerOffset(g.core.Slots(), 0)
	pool, err := g.engine.device.AllocRegion(size, 0)
	if err != nil {
		return fmt.Errorf("rdmc: block buffers of group %d: %w", g.cfg.Number, err)
	}
	g.pool = pool
	return nil
}

// trailerStride keeps each trailer in a cache line of its own.
const trailerStride = 64

// trailerOffset is where a trailer of a placed block lies: the slot's first trailer is what came with the block, the
// others are what goes to each lane, where the provider makes the sum.
func (g *Group) trailerOffset(slot, n int) int {
	return g.core.Slots()*g.stride() + (slot*(1+g.core.Lanes().Count())+n)*trailerStride
}

// seals reports whether the provider makes the sums of placed blocks that were not received.
func (g *Group) seals() bool { return g.engine.device.Limits().SealsCRC }

func (g *Group) isPlaced(slot int) bool { return g.places[slot].Region != nil }

// place decides where the block of an action will lie in its slot: where its message is, else in the pool.
func (g *Group) place(a *core.Action) {
	g.places[a.Slot], g.unsealed[a.Slot] = rdma.SGE{}, false
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
		g.core.Fail(g.localReason(), g.cfg.Rank, []int{g.cfg.Rank},
			fmt.Errorf("%w: block %d of %d bytes placed at %d of %d, with %d bytes",
				ErrInvalid, a.Block, length, sge.Offset, len(sge.Region.Bytes()), sge.Length))
		return
	}
	g.places[a.Slot], g.unsealed[a.Slot] = sge, a.Kind == core.ActLoad && g.seals()
}

// localReason is the reason of a failure by this member's Source or Sink.
func (g *Group) localReason() Reason {
	if g.cfg.Rank == 0 {
		return ReasonSource
	}
	return ReasonSink
}

// one is a list of one entry, valid until the next post.
func (p *postScratch) one(sge rdma.SGE) []rdma.SGE {
	p.sge[0] = sge
	return p.sge[:1]
}

// slotList is the memory of a slot for length bytes on the wire, with the trailer at an offset of the pool if the
// block is placed. It is valid until the next post.
func (g *Group) slotList(slot, length, trailerAt int) []rdma.SGE {
	if !g.isPlaced(slot) {
		return g.posts.one(rdma.SGE{Region: g.pool, Offset: slot * g.stride(), Length: length})
	}
	g.posts.sge[0] = g.places[slot]
	g.posts.sge[1] = rdma.SGE{Region: g.pool, Offset: trailerAt, Length: core.TrailerSize}
	return g.posts.sge[:2]
}

// loadBlock gets a block from the Source or Sink. Nothing is to be done if it lies in its place and the provider makes
// its sum.
func (g *Group) loadBlock(a *core.Action) {
	g.place(a)
	if g.unsealed[a.Slot] {
		g.core.BlockLoaded(a.Slot, nil)
		return
	}
	g.jobs <- g.job(a)
}

// sendBlock posts a slot's block to a lane.
func (g *Group) sendBlock(a *core.Action) {
	at := g.trailerOffset(a.Slot, 0)
	if g.unsealed[a.Slot] {
		at = g.trailerOffset(a.Slot, 1+a.Lane) // of its own, as the block may be on its way to others
		t := core.Trailer{Seq: a.Seq, Block: a.Block, Size: a.Size, Epoch: g.cfg.Epoch,
			Length: uint32(a.Length - core.TrailerSize)}
		t.Put(g.pool.Bytes()[at : at+core.TrailerSize])
	}
	qp := g.lanes[a.Lane].blocks.qp
	g.check(&g.lanes[a.Lane].blocks, g.postSend(qp, a.Slot, a.Blocks, g.unsealed[a.Slot],
		g.slotList(a.Slot, a.Length, at)))
}

// slotBytes is a slot's block, of length bytes on the wire, and its trailer.
func (g *Group) slotBytes(slot, length int) (block, b []byte) {
	if !g.isPlaced(slot) {
		at := slot * g.stride()
		return core.Split(g.pool.Bytes()[at : at+length : at+length])
	}
	p, at := &g.places[slot], g.trailerOffset(slot, 0)
	return p.Region.Bytes()[p.Offset : p.Offset+p.Length : p.Offset+p.Length],
		g.pool.Bytes()[at : at+core.TrailerSize : at+core.TrailerSize]
}

// slotReceived is slotBytes for what a receive of length bytes brought; without a trailer if it does not have the right
// length.
func (g *Group) slotReceived(slot, length int) (block, b []byte) {
	if g.isPlaced(slot) && length != g.places[slot].Length+core.TrailerSize {
		return nil, nil
	}
	return g.slotBytes(slot, length)
}

// unsealReceived checks the block of a completion, with the provider's checksum if it gave one.
func (g *Group) unsealReceived(c *rdma.Completion) (core.Trailer, error) {
	block, b := g.slotReceived(int(c.ID), c.Bytes)
	if c.HasCRC {
		return core.UnsealChecked(block, b, c.CRC)
	}
	return core.Unseal(block, b)
}

// postBlockRecv posts a slot as a receive for the block that the action names, or for any if it names none.
func (g *Group) postBlockRecv(a *core.Action) {
	g.place(a)
	length := g.cfg.BlockSize + core.TrailerSize
	list := g.slotList(a.Slot, length, g.trailerOffset(a.Slot, 0))
	g.check(&g.lanes[a.Lane].blocks, g.postRecv(g.lanes[a.Lane].blocks.qp, a.Slot, list))
}

// job is what a worker has to do for an action.
func (g *Group) job(a *core.Action) job {
	j := job{store: a.Kind == core.ActStore, slot: a.Slot, block: a.Block, transfer: g.transfers[a.Seq]}
	j.data, j.trailer = g.slotBytes(a.Slot, a.Length)
	return j
}

// storeBlock queues a block for a worker to write, unless it lies where it belongs.
func (g *Group) storeBlock(a *core.Action) {
	if g.isPlaced(a.Slot) {
		g.core.BlockStored(a.Slot, nil)
		return
	}
	g.store(g.job(a))
}
