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
	small, size := g.core.Small(), uint64(len(data))
	slot := small.Room()
	if slot < 0 {
		return 0, ErrFull
	}
	g.look()
	seq := g.core.Messages().Next()
	buf := g.smalls.bytes(slot, len(data)+core.TrailerSize)
	copy(buf, data)
	t := core.Trailer{Seq: seq, Block: small.Count(), Size: size, Epoch: g.cfg.Epoch, Length: uint32(size)}
	t.Seal(core.Split(buf))
	small.Send(len(data))
	g.engine.attend(g)
	g.drain()
	return seq, nil
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

// carryOutSmall carries out the actions on small messages. The lock is held.
func (g *Group) carryOutSmall(a *core.Action) {
	switch a.Kind {
	case core.ActSmallLoad:
		g.jobs <- g.smallJobOf(a)
	case core.ActSmallSend:
		g.links.ends[a.Lane].control.sendSmall(a)
	case core.ActSmallPost:
		l := &g.links.ends[a.Lane].control
		l.check(l.postReceive(a.Slot))
	case core.ActSmallHand:
		if g.cfg.Small != nil {
			data := g.smalls.bytes(a.Slot, a.Length)[:a.Size:a.Size]
			g.calls.put(call{small: smallCall{seq: a.Seq, count: a.Block, data: data}})
			return
		}
		g.incoming(a.Seq, a.Size)
		g.queueStore(g.smallJobOf(a))
	}
}

// takeControl takes the control message for a lane out of what is to be done, if there is one.
func takeControl(acts []core.Action, lane int) bool {
	for i := range acts {
		if acts[i].Kind == core.ActControl && acts[i].Lane == lane && !acts[i].Rides {
			acts[i].Rides = true
			return true
		}
	}
	return false
}

// sendSmall posts a small message, and with it the control message that rides: on a fabric of software both go in one
// write, and wake the neighbour once.
func (l *laneEnd) sendSmall(a *core.Action) {
	p := &l.group.links.posts
	wrs := p.send[:1]
	p.sge[0] = l.group.smalls.sge(a.Slot, a.Length)
	p.send[0] = rdma.SendWR{ID: a.Block + 1, Op: rdma.OpSend, List: p.sge[:1], Imm: immSmall}
	if a.Rides {
		wrs = p.send[:2]
		p.sge[1] = l.makeControl()
		p.send[1] = rdma.SendWR{Op: rdma.OpSend, List: p.sge[1:2]}
	}
	l.check(l.qp.PostSend(wrs...))
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
