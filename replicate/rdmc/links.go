package rdmc

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// laneEnd is one queue pair of a lane, and the User of it.
type laneEnd struct {
	group     *Group
	lane      int
	isControl bool
	qp        rdma.QueuePair // nil if no blocks move on the lane
}

// laneEnds is the two queue pairs of a lane. Block receives are consumed by blocks only, and small receives by
// control messages only, so each kind has a queue pair of its own.
type laneEnds struct {
	blocks, control laneEnd
}

// links are a group's queue pairs, and the memory of its control messages: for each lane, first the buffers of
// receives, then the one to send from.
type links struct {
	ends    []laneEnds // by lane
	control rdma.Region
	posts   postScratch
}

// postScratch holds the arguments of posts, so that posting does not allocate. The group's lock is held.
type postScratch struct {
	send [2]rdma.SendWR
	recv [1]rdma.RecvWR
	sge  [2]rdma.SGE
}

// one is a list of one entry, valid until the next post.
func (p *postScratch) one(sge rdma.SGE) []rdma.SGE {
	p.sge[0] = sge
	return p.sge[:1]
}

func (p *postScratch) postSend(qp rdma.QueuePair, id int, imm uint32, seal bool, list []rdma.SGE) error {
	p.send[0] = rdma.SendWR{ID: uint64(id), Op: rdma.OpSend, List: list, Imm: imm, SealCRC: seal}
	return qp.PostSend(p.send[:1]...)
}

func (p *postScratch) postRecv(qp rdma.QueuePair, id int, list []rdma.SGE) error {
	p.recv[0] = rdma.RecvWR{ID: uint64(id), List: list}
	return qp.PostRecv(p.recv[:]...)
}

// controlSize is how many bytes the control messages of so many lanes have.
func controlSize(lanes int) int { return lanes * (core.ControlWindow + 1) * core.MaxControl }

// open makes the group's queue pairs, and posts all receives for control and small messages.
func (n *links) open(g *Group) error {
	n.ends = make([]laneEnds, g.core.Lanes().Count())
	if len(n.ends) == 0 {
		return nil
	}
	var err error
	if n.control, err = g.engine.device.AllocRegion(controlSize(len(n.ends)), 0); err != nil {
		return err
	}
	for i := range n.ends {
		if err := n.openLane(g, i); err != nil {
			return fmt.Errorf("neighbour %d: %w", g.core.Lanes().Peer(i), err)
		}
	}
	return nil
}

func (n *links) openLane(g *Group, i int) error {
	l := &n.ends[i]
	l.blocks = laneEnd{group: g, lane: i}
	l.control = laneEnd{group: g, lane: i, isControl: true}
	if g.core.Lanes().HasBlocks(i) {
		if err := l.blocks.open(g.cfg.MaxSends, g.cfg.Window); err != nil {
			return err
		}
	}
	receives := core.ControlWindow
	if g.smalls.isFrom(i) {
		receives = g.smalls.slots
	}
	if err := l.control.open(2+g.cfg.smallWindow(), receives); err != nil {
		return err
	}
	for slot := range receives {
		if err := l.control.postReceive(slot); err != nil {
			return err
		}
	}
	return nil
}

func (l *laneEnd) open(sends, receives int) error {
	cq := l.group.engine.cq
	var err error
	l.qp, err = l.group.engine.device.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, SendDepth: sends, RecvDepth: receives,
		WantCRC: !l.isControl, User: l})
	return err
}

// eachQP calls for each queue pair that there is.
func (n *links) eachQP(do func(rdma.QueuePair)) {
	for i := range n.ends {
		for _, l := range []*laneEnd{&n.ends[i].blocks, &n.ends[i].control} {
			if l.qp != nil {
				do(l.qp)
			}
		}
	}
}

// controlAt is the memory of a lane's buffer for control messages: of a receive, or with core.ControlWindow the one to
// send from.
func (n *links) controlAt(lane, buffer int) rdma.SGE {
	return rdma.SGE{Region: n.control, Offset: (lane*(core.ControlWindow+1) + buffer) * core.MaxControl,
		Length: core.MaxControl}
}

// check reports a failed post to the core, and ends the queue pair so that the neighbour notices.
func (l *laneEnd) check(err error) {
	if err != nil {
		l.qp.Abort()
		l.lose(err)
	}
}

// lose reports to the core that the queue pair is in error.
func (l *laneEnd) lose(cause error) {
	l.group.core.Broken(l.lane, cause)
	l.group.engine.attend(l.group)
}

func (l *laneEnd) kind() string {
	if l.isControl {
		return "control queue pair"
	}
	return "block queue pair"
}

// address is the fabric's, empty if there is no queue pair.
func (l *laneEnd) address() []byte {
	if l.qp == nil {
		return nil
	}
	return l.qp.Address()
}

// receiveAt is the memory of a receive on a control queue pair.
func (l *laneEnd) receiveAt(slot int) rdma.SGE {
	g := l.group
	if g.smalls.isFrom(l.lane) {
		return g.smalls.sge(slot, g.smalls.stride())
	}
	return g.links.controlAt(l.lane, slot)
}

// postReceive posts a receive on a control queue pair.
func (l *laneEnd) postReceive(slot int) error {
	p := &l.group.links.posts
	return p.postRecv(l.qp, slot, p.one(l.receiveAt(slot)))
}

// makeControl is the control message for a lane, made just now.
func (l *laneEnd) makeControl() rdma.SGE {
	sge := l.group.links.controlAt(l.lane, core.ControlWindow)
	sge.Length = l.group.core.EncodeControl(l.lane, sge.Region.Bytes()[sge.Offset:sge.Offset+sge.Length])
	return sge
}

// sendControl posts the control message for a lane.
func (l *laneEnd) sendControl() {
	p := &l.group.links.posts
	l.check(p.postSend(l.qp, 0, 0, false, p.one(l.makeControl())))
}
