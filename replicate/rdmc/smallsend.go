package rdmc

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// Bounds of small messages.
const (
	// DefaultSmallBytes is the bound in unannounced groups; see docs/decisions/014.
	DefaultSmallBytes = 8 << 10
	// MaxSmallBytes bounds GroupConfig.SmallBytes.
	MaxSmallBytes = 64 << 10
	// smallWindow is how many small messages may be under way.
	smallWindow = 64
)

// immSmall is the immediate value of small messages; that of control messages is 0.
const immSmall = 1

func (cfg *GroupConfig) smallWindow() int {
	if cfg.SmallBytes == 0 {
		return 0
	}
	return smallWindow
}

// SendSmall sends a message of at most GroupConfig.SmallBytes at the root, which need not be announced to the members,
// and returns its number. It does not wait: if too many are under way it returns ErrFull, and WaitRoom says when to try
// again. data is copied. WaitDelivered says when all members have it.
func (g *Group) SendSmall(data []byte) (uint64, error) {
	g.mu.Lock()
	defer g.unlock()
	if g.cfg.Rank != 0 || len(data) == 0 || len(data) > g.cfg.SmallBytes {
		return 0, fmt.Errorf("%w: small message of %d bytes by rank %d, want 1 to %d by the root", ErrInvalid, len(data),
			g.cfg.Rank, g.cfg.SmallBytes)
	}
	if err := g.refused(); err != nil {
		return 0, err
	}
	place := g.core.Small().Room()
	if place < 0 {
		return 0, ErrFull
	}
	g.look()
	seq := g.core.Messages().Next()
	buf := g.smallBytes(place, len(data)+core.TrailerSize)
	copy(buf, data)
	block, b := core.Split(buf)
	g.sealSmall(block, b, seq, g.core.Small().Count())
	g.core.Small().Send(len(data))
	g.engine.attend(g)
	g.drain()
	return seq, nil
}

func (g *Group) sealSmall(data, b []byte, seq, count uint64) {
	t := core.Trailer{Seq: seq, Block: count, Size: uint64(len(data)), Epoch: g.cfg.Epoch, Length: uint32(len(data))}
	t.Seal(data, b)
}

// goesSmall reports whether Send sends a message as a small one: members of announced groups expect blocks.
func (g *Group) goesSmall(size uint64) bool {
	return g.cfg.Unannounced && g.cfg.Rank == 0 && size <= uint64(min(g.cfg.SmallBytes, g.cfg.BlockSize))
}

// beginSmall queues a message of Send. The lock is held.
func (g *Group) beginSmall(t *Transfer) error {
	if g.core.Messages().Queued() >= core.MaxQueued {
		return fmt.Errorf("%w: %d messages are queued", ErrInvalid, core.MaxQueued)
	}
	g.transfers[t.announcement.Seq] = t
	g.core.Small().Queue(int(t.announcement.Size))
	g.engine.attend(g)
	g.drain()
	return nil
}

// Buffers: at the root the buffers of the ring, at a member the buffers of the receives from its parent.

func (g *Group) smallStride() int {
	return (max(core.MaxControl, g.cfg.SmallBytes+core.TrailerSize) + 63) &^ 63
}

func (g *Group) smallBuffers() int {
	switch {
	case g.cfg.SmallBytes == 0:
		return 0
	case g.cfg.Rank == 0:
		return smallWindow
	}
	return smallWindow + core.ControlWindow
}

func (g *Group) openSmall() (err error) {
	if n := g.smallBuffers(); n > 0 {
		g.smalls, err = g.engine.device.AllocRegion(n*g.smallStride(), 0)
	}
	return err
}

// fromParent reports whether small messages come on the lane.
func (g *Group) fromParent(lane int) bool { return g.smalls != nil && lane == g.core.Parent() }

// controlReceives is how many receives are posted on the lane's control queue pair.
func (g *Group) controlReceives(lane int) int {
	if g.fromParent(lane) {
		return core.ControlWindow + smallWindow
	}
	return core.ControlWindow
}

func (g *Group) smallBytes(slot, length int) []byte {
	at := slot * g.smallStride()
	return g.smalls.Bytes()[at : at+length : at+length]
}

// carryOutSmall carries out the actions on small messages. The lock is held.
func (g *Group) carryOutSmall(a *core.Action) {
	switch a.Kind {
	case core.ActSmallLoad:
		g.jobs <- g.smallJob(a)
	case core.ActSmallSend:
		g.check(&g.lanes[a.Lane].control, g.sendSmall(a))
	case core.ActSmallPost:
		g.check(&g.lanes[a.Lane].control, g.postControlRecv(a.Lane, a.Slot))
	case core.ActSmallHand:
		if g.cfg.Small != nil {
			data := g.smallBytes(a.Slot, a.Length)[:a.Size:a.Size]
			g.calls.put(call{small: smallCall{seq: a.Seq, count: a.Block, data: data}})
			return
		}
		g.incoming(a.Seq, a.Size)
		j := g.smallJob(a)
		j.store = true
		g.store(j)
	}
}

// smallJob is what a worker has to do for a small message.
func (g *Group) smallJob(a *core.Action) job {
	j := job{small: true, slot: a.Slot, block: a.Block, transfer: g.transfers[a.Seq]}
	j.data, j.trailer = core.Split(g.smallBytes(a.Slot, a.Length))
	return j
}

// sendSmall posts a small message, and with it the control message that rides: on a fabric of software both go in one
// write, and wake the neighbour once.
func (g *Group) sendSmall(a *core.Action) error {
	p := &g.posts
	wrs := p.send[:1]
	p.sge[0] = rdma.SGE{Region: g.smalls, Offset: a.Slot * g.smallStride(), Length: a.Length}
	p.send[0] = rdma.SendWR{ID: a.Block + 1, Op: rdma.OpSend, List: p.sge[:1], Imm: immSmall}
	if a.Rides {
		wrs = p.send[:2]
		p.sge[1] = g.makeControl(a.Lane)
		p.send[1] = rdma.SendWR{Op: rdma.OpSend, List: p.sge[1:2]}
	}
	return g.lanes[a.Lane].control.qp.PostSend(wrs...)
}

// smallCall is a small message for the application.
type smallCall struct {
	seq, count uint64
	data       []byte
}

// callSmall gives a small message to the application, and reports that the application has it.
func (g *Group) callSmall(s smallCall) {
	g.cfg.Small(s.seq, s.data)
	g.mu.Lock()
	g.look()
	g.core.Small().Taken(s.count, nil)
	g.drain()
	g.mu.Unlock()
}

// runSmallJob reads a small message from its Source, or writes it to its Sink.
func (g *Group) runSmallJob(j job) {
	var err error
	if j.store {
		err = j.transfer.writeSmall(j.data)
	} else if err = j.transfer.read(0, j.data); err == nil {
		g.sealSmall(j.data, j.trailer, j.transfer.announcement.Seq, j.block)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.look()
	if j.store {
		if err == nil {
			j.transfer.have = BitmapOf(j.transfer.have.Blocks(), j.transfer.announcement.Blocks)
		}
		g.core.Small().Taken(j.block, err)
	} else {
		g.core.Small().Loaded(j.block, err)
	}
	g.drain()
}
