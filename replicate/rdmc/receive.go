package rdmc

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// The way of a block through a member, from top to bottom: the poller takes a completion; its trailer is checked; the
// core decides where the block goes; drain carries that out: it posts the sends to the members that come next, posts
// the slot again, and has a worker write the block. All of it is one turn of the poller under the group's lock, but for
// the worker's. Control and small messages go the same way.

// take runs the core of a group on a completion; it checks blocks and posts work, and runs no code of a caller's but
// Placed.Place. It is called by the poller.
func (e *Engine) take(c *rdma.Completion) {
	c.QP.User().(*laneEnd).complete(c)
	e.turns.run()
}

// complete tells the core of a completion on one of the group's queue pairs, and does what the core decides.
func (l *laneEnd) complete(c *rdma.Completion) {
	g := l.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead {
		return
	}
	g.look()
	switch received := c.Op == rdma.OpRecv; {
	case c.Status != rdma.StatusOK:
		l.lose(fmt.Errorf("%v on %v: %v", c.Op, l.kind(), c.Status))
	case !l.isControl && received:
		l.blockReceived(c)
	case !l.isControl:
		g.core.BlockSent(l.lane, int(c.ID))
	case received && c.Imm == immSmall:
		l.smallReceived(int(c.ID), c.Bytes)
	case received:
		l.controlReceived(int(c.ID), c.Bytes)
	case c.ID > 0:
		g.core.Small().Sent(c.ID - 1)
	default:
		g.core.ControlSent(l.lane)
	}
	g.drain()
}

// blockReceived checks a block that came into its slot. The core relays it, and has it stored.
func (l *laneEnd) blockReceived(c *rdma.Completion) {
	t, err := l.group.blocks.unseal(c)
	l.group.core.BlockReceived(l.lane, int(c.ID), t, err)
}

// smallReceived checks a small message of length bytes that came into a slot.
func (l *laneEnd) smallReceived(slot, length int) {
	g := l.group
	t, err := core.Unseal(core.Split(g.smalls.bytes(slot, length)))
	g.core.Small().Received(l.lane, slot, t, err)
	g.engine.attend(g)
}

// controlReceived decodes a control message of length bytes and posts its buffer again.
func (l *laneEnd) controlReceived(buffer, length int) {
	g := l.group
	m, sge := &g.heardMsg, l.receiveAt(buffer)
	if !g.core.DecodeControl(l.lane, sge.Region.Bytes()[sge.Offset:sge.Offset+length], m) {
		return
	}
	err := l.postReceive(buffer)
	g.core.ControlReceived(l.lane, m) // first: a neighbour that said why it ends may be gone already
	l.check(err)
	if m.Active() || g.core.Ended() {
		g.engine.attend(g)
	}
}

// drain carries out the core's actions, and those that come of them. The lock is held.
func (g *Group) drain() {
	if g.dead {
		g.core.TakeActions(nil) // its memory may be gone
		return
	}
	for {
		acts := g.core.TakeActions(g.spare)
		for i := range acts {
			if acts[i].Kind == core.ActSmallSend {
				acts[i].Rides = takeControl(acts[i+1:], acts[i].Lane)
			}
			g.carryOut(&acts[i])
		}
		g.spare = acts[:0]
		if len(acts) == 0 && !g.pace() {
			break
		}
	}
	g.waits.wake()
}

func (g *Group) carryOut(a *core.Action) {
	switch a.Kind {
	case core.ActPostRecv:
		g.postBlockRecv(a)
	case core.ActSend:
		g.sendBlock(a)
	case core.ActLoad:
		g.loadBlock(a)
	case core.ActStore:
		g.storeBlock(a)
	case core.ActControl:
		if !a.Rides {
			g.links.ends[a.Lane].control.sendControl()
		}
	case core.ActSmallLoad, core.ActSmallSend, core.ActSmallHand, core.ActSmallPost:
		g.carryOutSmall(a)
	case core.ActIncoming:
		g.incoming(a.Seq, a.Size)
	case core.ActStored:
		g.markStored(a.Seq)
	case core.ActDone:
		g.done(a.Seq)
	case core.ActFailed:
		g.markFailed()
	case core.ActClosed:
		g.markClosed()
	case core.ActSettled:
		close(g.settled)
	}
}

// postBlockRecv posts a slot as a receive for the block that the action names, or for any if it names none.
func (g *Group) postBlockRecv(a *core.Action) {
	g.place(a)
	l, p := &g.links.ends[a.Lane].blocks, &g.links.posts
	list := g.blocks.list(&p.sge, a.Slot, g.cfg.BlockSize+core.TrailerSize, g.blocks.trailerAt(a.Slot, 0))
	l.check(p.postRecv(l.qp, a.Slot, list))
}

// sendBlock posts a slot's block to a lane.
func (g *Group) sendBlock(a *core.Action) {
	b := &g.blocks
	at := b.trailerAt(a.Slot, 0)
	if b.unsealed[a.Slot] {
		at = b.trailerAt(a.Slot, 1+a.Lane) // of its own, as the block may be on its way to others
		t := core.Trailer{Seq: a.Seq, Block: a.Block, Size: a.Size, Epoch: g.cfg.Epoch,
			Length: uint32(a.Length - core.TrailerSize)}
		t.Put(b.pool.Bytes()[at : at+core.TrailerSize])
	}
	l, p := &g.links.ends[a.Lane].blocks, &g.links.posts
	l.check(p.postSend(l.qp, a.Slot, a.Blocks, b.unsealed[a.Slot], b.list(&p.sge, a.Slot, a.Length, at)))
}

// storeBlock has a worker write a block (jobs.go), unless it lies where it belongs.
func (g *Group) storeBlock(a *core.Action) {
	if g.blocks.isPlaced(a.Slot) {
		g.core.BlockStored(a.Slot, nil)
		return
	}
	g.queueStore(g.jobOf(a))
}

// loadBlock has a worker get a block from the Source or Sink. Nothing is to be done if it lies in its place and the
// provider makes its sum.
func (g *Group) loadBlock(a *core.Action) {
	g.place(a)
	if g.blocks.unsealed[a.Slot] {
		g.core.BlockLoaded(a.Slot, nil)
		return
	}
	g.jobs <- g.jobOf(a)
}
