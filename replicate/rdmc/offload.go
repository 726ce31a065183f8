package rdmc

import (
	"fmt"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// Offload: a member's data-flow graph is posted ahead, and the fabric relays blocks by itself (DSN paper, section 2; CORE-Direct in its
// section 5.2.3). A send whose block is still to come is posted behind a wait for the receive that brings it, as soon as that receive
// is posted and its own receiver has given credit: a part of the graph (schedule.Graph) as large as the window. Then no turn of the
// poller lies between the receipt of a block and its relay; the poller still checks and stores blocks and gives credit, but may be late
// by the window.
//
// It is done where the queue pairs are rdma.Waiters and no other group of the engine is there to take turns with. Order and the
// argument of core.go stay: sends are posted in the order of the schedule, each with credit, and what they wait for is of an earlier step.
//
// A block is handed on before it was checked. It is checked at each member before the message counts as stored there, so that a
// damaged one is never delivered, but the members behind get it too, and each blames the one it came from.

// offload is the state of it in a core.
type offload struct {
	on      bool       // the group has it, if not this member
	lanes   bool       // all lanes can wait
	ahead   int        // sends that may be outstanding beside coreLimits.sends
	waiting []prepared // sends posted that wait for their blocks
}

// offloadAhead is how many sends may be posted ahead for each slot.
const offloadAhead = 2

// openOffload looks whether the group's queue pairs can do it. They are open.
func (g *Group) openOffload() {
	o := &g.core.offload
	o.on, o.ahead = g.cfg.Offload, g.sendsAhead()
	o.lanes = o.ahead > 0
	for i := range g.lanes {
		if qp := g.lanes[i].blocks.qp; qp != nil {
			_, can := qp.(rdma.Waiter)
			o.lanes = o.lanes && can
		}
	}
	o.waiting = make([]prepared, 0, o.ahead+g.cfg.MaxSends)
}

// sendsAhead is how many sends a member may post ahead.
func (g *Group) sendsAhead() int {
	if !g.cfg.Offload || g.cfg.Rank == 0 {
		return 0
	}
	return max(0, min(offloadAhead*g.cfg.Window, g.engine.device.Limits().MaxQueueDepth/2-g.cfg.MaxSends))
}

// sendDepth is how many requests the send queue of a lane must have room for: each that waits may take two places.
func (g *Group) sendDepth() int {
	if n := g.sendsAhead(); n > 0 {
		return 2 * (g.cfg.MaxSends + n)
	}
	return g.cfg.MaxSends
}

// Offloads reports whether this member has the fabric relay blocks by itself, as GroupConfig.Offload asks for.
func (g *Group) Offloads() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.offload.lanes
}

func (cfg *GroupConfig) checkOffload() error {
	if cfg.Offload && cfg.SendRate > 0 {
		return fmt.Errorf("%w: offload with a cap on what is sent", ErrInvalid)
	}
	return nil
}

// offloads reports whether sends may be posted before their blocks are here.
func (c *core) offloads() bool {
	return c.offload.lanes && (c.gate == nil || c.gate.alone())
}

// mayPrepare reports whether a slot's block is here, or a send may wait for it.
func (c *core) mayPrepare(s *slot) bool { return s.state != slotPosted || c.offloads() }

// mayPost is the same of a prepared send that is to be posted now.
func (c *core) mayPost(s *slot) bool {
	return s.state == slotFull || s.state == slotPosted && c.offloads()
}

// enough reports whether no send of the slot may be posted for those that are outstanding. Sends that waited are on their way in any
// number, as they began by themselves.
func (c *core) enough(s *slot) bool {
	return s.state == slotFull && c.flight >= c.limits.sends || c.flight+len(c.offload.waiting) >= c.limits.sends+c.offload.ahead
}

// postAhead goes on along the graph: what was posted makes room to prepare more.
func (c *core) postAhead() {
	if !c.offload.lanes {
		return
	}
	for before := -1; before != c.outstanding(); {
		before = c.outstanding()
		c.prepare()
		c.send()
	}
}

func (c *core) outstanding() int { return c.flight + len(c.offload.waiting) + c.queue.len }

// beginSend counts a send as being on its way, or as one that waits for its block, and says for what it has to wait then.
func (c *core) beginSend(p prepared) receipts {
	s := &c.slots[p.slot]
	if s.state == slotFull {
		c.flight++
		c.pace.post(c.now, p.lane)
		return receipts{}
	}
	c.offload.waiting = append(c.offload.waiting, p)
	return c.receiptOf(p.slot)
}

// receipts is what a send waits for: so many blocks from the lane in all. With none it does not wait.
type receipts struct {
	lane  int
	count uint64
}

// receiptOf is the receipt that brings the block of a posted slot.
func (c *core) receiptOf(i int) receipts {
	s := &c.slots[i]
	lane := c.laneOf[c.graph(s.m).Receipt(s.pos).Peer]
	l := &c.lanes[lane]
	return receipts{lane: lane, count: l.granted - uint64(len(l.ring)-slices.Index(l.ring, i)) + 1}
}

// graph is this member's part in a message.
func (c *core) graph(m *message) schedule.Graph { return c.plan.Graph(c.rank, m.seq, m.count()) }

// arrivedFor moves the sends that waited for a slot's block to those on their way.
func (c *core) arrivedFor(i int) {
	c.offload.waiting = slices.DeleteFunc(c.offload.waiting, func(p prepared) bool {
		if p.slot == i {
			c.flight++
			c.pace.post(c.now, p.lane)
		}
		return p.slot == i
	})
}

// A queue pair that waits for another one ends with it, and so on from relay to relay. So in such groups the end of a queue pair for
// blocks says little of who is at its other end, while the one for control messages stays, and by it members tell each other who was
// lost.

// cutGraces is how much longer than for a lost neighbour a member waits for an account if it lost only queue pairs for blocks.
const cutGraces = 3

// waitedInVain says that a lane's queue pair for blocks ended as the one did that it waited for, which is told by itself.
func (c *core) waitedInVain(lane int) { c.lanes[lane].cut = true }

// cut says that a lane's queue pair for blocks is in error.
func (c *core) cut(lane int, cause error) {
	l := &c.lanes[lane]
	if l.cut || l.broken {
		return
	}
	l.cut = true
	c.lose(l.peer, cause)
	c.control()
}

// suspects are the lost neighbours that can tell nothing any more, or all of the lost if each can.
func (c *core) suspects() []int {
	gone := slices.DeleteFunc(slices.Clone(c.lost), func(peer int) bool { return !c.lanes[c.laneOf[peer]].broken })
	if len(gone) > 0 {
		return gone
	}
	return c.lost
}

// patience is how long a member waits for an account of those that it lost.
func (c *core) patience() time.Duration {
	for _, peer := range c.lost {
		if c.lanes[c.laneOf[peer]].broken {
			return c.limits.grace
		}
	}
	return cutGraces * c.limits.grace
}

// postAfter posts a block's send behind the wait for its receipt.
func (g *Group) postAfter(a *action, list []rdma.SGE) error {
	p := &g.posts
	p.send[0] = rdma.SendWR{ID: uint64(a.slot), Op: rdma.OpSend, List: list, Imm: a.blocks}
	after := rdma.Receipts{QP: g.lanes[a.after.lane].blocks.qp, Count: a.after.count}
	return g.lanes[a.lane].blocks.qp.(rdma.Waiter).PostSendAfter(after, p.send[:1]...)
}

// alone reports whether the engine has no other group.
func (t *turn) alone() bool {
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()
	return len(t.turns.arbiter.all) == 1
}
