package rdmc

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
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

func (g *Group) stride() int { return (g.cfg.BlockSize + trailerSize + 4095) &^ 4095 }

// openPool allocates the block buffers if they are not there.
func (g *Group) openPool() error {
	if g.pool != nil {
		return nil
	}
	size := g.trailerOffset(len(g.core.slots), 0)
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
	return len(g.core.slots)*g.stride() + (slot*(1+len(g.core.lanes))+n)*trailerStride
}

// seals reports whether the provider makes the sums of placed blocks that were not received.
func (g *Group) seals() bool { return g.engine.device.Limits().SealsCRC }

func (g *Group) isPlaced(slot int) bool { return g.places[slot].Region != nil }

// place decides where the block of an action will lie in its slot: where its message is, else in the pool.
func (g *Group) place(a *action) {
	g.places[a.slot], g.unsealed[a.slot] = rdma.SGE{}, false
	t := g.transfers[a.seq]
	if t == nil || t.placed == nil || a.kind == actPostRecv && t.have.Has(a.block) {
		return
	}
	length := a.length - trailerSize
	sge := t.placed.Place(a.block, length)
	if sge.Region == nil {
		return
	}
	if sge.Length != length || sge.Offset < 0 || sge.Offset > len(sge.Region.Bytes())-length {
		g.core.fail(g.localReason(), g.cfg.Rank, []int{g.cfg.Rank},
			fmt.Errorf("%w: block %d of %d bytes placed at %d of %d, with %d bytes",
				ErrInvalid, a.block, length, sge.Offset, len(sge.Region.Bytes()), sge.Length))
		return
	}
	g.places[a.slot], g.unsealed[a.slot] = sge, a.kind == actLoad && g.seals()
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
	g.posts.sge[1] = rdma.SGE{Region: g.pool, Offset: trailerAt, Length: trailerSize}
	return g.posts.sge[:2]
}

// loadBlock gets a block from the Source or Sink. Nothing is to be done if it lies in its place and the provider makes
// its sum.
func (g *Group) loadBlock(a *action) {
	g.place(a)
	if g.unsealed[a.slot] {
		g.core.loaded(a.slot, nil)
		return
	}
	g.jobs <- g.job(a)
}

// sendBlock posts a slot's block to a lane.
func (g *Group) sendBlock(a *action) {
	at := g.trailerOffset(a.slot, 0)
	if g.unsealed[a.slot] {
		at = g.trailerOffset(a.slot, 1+a.lane) // of its own, as the block may be on its way to others
		m := g.core.slots[a.slot].m
		t := trailer{seq: a.seq, block: a.block, size: m.size, epoch: g.cfg.Epoch, length: uint32(a.length - trailerSize)}
		t.put(g.pool.Bytes()[at : at+trailerSize])
	}
	qp := g.lanes[a.lane].blocks.qp
	g.check(&g.lanes[a.lane].blocks, g.postSend(qp, a.slot, a.blocks, g.unsealed[a.slot],
		g.slotList(a.slot, a.length, at)))
}

// slotBytes is a slot's block, of length bytes on the wire, and its trailer.
func (g *Group) slotBytes(slot, length int) (block, b []byte) {
	if !g.isPlaced(slot) {
		at := slot * g.stride()
		return split(g.pool.Bytes()[at : at+length : at+length])
	}
	p, at := &g.places[slot], g.trailerOffset(slot, 0)
	return p.Region.Bytes()[p.Offset : p.Offset+p.Length : p.Offset+p.Length],
		g.pool.Bytes()[at : at+trailerSize : at+trailerSize]
}

// slotReceived is slotBytes for what a receive of length bytes brought; without a trailer if it does not have the right
// length.
func (g *Group) slotReceived(slot, length int) (block, b []byte) {
	if g.isPlaced(slot) && length != g.places[slot].Length+trailerSize {
		return nil, nil
	}
	return g.slotBytes(slot, length)
}

// unsealReceived checks the block of a completion, with the provider's checksum if it gave one.
func (g *Group) unsealReceived(c *rdma.Completion) (trailer, error) {
	block, b := g.slotReceived(int(c.ID), c.Bytes)
	if c.HasCRC {
		return unsealChecked(block, b, c.CRC)
	}
	return unseal(block, b)
}

// postBlockRecv posts a slot as a receive for the block that the action names, or for any if it names none.
func (g *Group) postBlockRecv(a *action) {
	g.place(a)
	length := g.cfg.BlockSize + trailerSize
	list := g.slotList(a.slot, length, g.trailerOffset(a.slot, 0))
	g.check(&g.lanes[a.lane].blocks, g.postRecv(g.lanes[a.lane].blocks.qp, a.slot, list))
}

// job is what a worker has to do for an action.
func (g *Group) job(a *action) job {
	j := job{store: a.kind == actStore, slot: a.slot, block: a.block, transfer: g.transfers[a.seq]}
	j.data, j.trailer = g.slotBytes(a.slot, a.length)
	return j
}

// storeBlock queues a block for a worker to write, unless it lies where it belongs.
func (g *Group) storeBlock(a *action) {
	if g.isPlaced(a.slot) {
		g.core.stored(a.slot, nil)
		return
	}
	g.store(g.job(a))
}
