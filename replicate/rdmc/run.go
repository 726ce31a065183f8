package rdmc

import (
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// Times of the shell.
const (
	// settleTimeout bounds how long an ending group waits until its neighbours are notified. So does half of the time
	// of silence: others may wait for this member.
	settleTimeout = time.Second
	// lossGrace is how long a member whose neighbour's queue pair broke waits for a better account of it.
	lossGrace = 100 * time.Millisecond
	// poolIdle is how long block buffers are kept after the last message.
	poolIdle = 2 * time.Second
)

// workers is how many goroutines per group call Sources and Sinks.
const workers = 2

// job is a call of a Source or Sink.
type job struct {
	store    bool
	small    bool // block is the count of a small message
	slot     int
	block    uint64
	transfer *Transfer
	data     []byte // the block, or a small message
	trailer  []byte // room for its trailer
}

// postScratch holds the arguments of posts, so that posting does not allocate.
type postScratch struct {
	send [2]rdma.SendWR
	recv [1]rdma.RecvWR
	sge  [2]rdma.SGE
}

// drain carries out the core's actions. The lock is held.
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
	g.wakeWaiters()
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
			g.check(&g.lanes[a.Lane].control, g.sendControl(a.Lane))
		}
	case core.ActIncoming:
		g.incoming(a.Seq, a.Size)
	case core.ActSmallLoad, core.ActSmallSend, core.ActSmallHand, core.ActSmallPost:
		g.carryOutSmall(a)
	case core.ActStored:
		g.markStored(a.Seq)
	case core.ActDone:
		g.done(a.Seq)
	case core.ActFailed:
		g.markFailed()
	case core.ActClosed:
		g.turn.leave()
		g.finishAll(ErrClosed)
		close(g.closed)
	case core.ActSettled:
		close(g.settled)
	}
}

func (g *Group) markFailed() {
	g.turn.leave()
	f := g.core.Failure()
	g.err = &GroupError{Reason: f.Reason, Suspects: f.Suspects, Reporter: f.Reporter, Err: f.Cause}
	g.log.Info("group failed", "reason", f.Reason, "suspects", f.Suspects, "reporter", f.Reporter, "cause", f.Cause)
	g.finishAll(g.err)
	close(g.failed)
	if g.cfg.OnFailure != nil {
		g.calls.add(func() { g.cfg.OnFailure(g.Err()) })
	}
}

// markStored closes the transfer's Stored. It makes Stored be called for it and the transfers behind it if all before
// are stored. The lock is held.
func (g *Group) markStored(seq uint64) {
	if t := g.transfers[seq]; t != nil { // else it is a small message
		t.markStored()
	}
	if g.cfg.Stored == nil || g.cfg.Rank == 0 {
		return
	}
	for done, _ := g.core.Done(g.cfg.Rank); g.toldStored < done; {
		g.toldStored++
		if t := g.transfers[g.toldStored]; t != nil {
			t.markStored()
			g.calls.add(func() { g.cfg.Stored(t) })
		}
	}
}

// done ends a transfer well. The lock is held.
func (g *Group) done(seq uint64) {
	t := g.transfers[seq]
	if t == nil {
		return // a small message
	}
	delete(g.transfers, seq)
	t.finish(nil)
	if g.cfg.Completed != nil {
		g.calls.add(func() { g.cfg.Completed(t) })
	}
}

func (g *Group) finishAll(err error) {
	for seq, t := range g.transfers {
		t.finish(err)
		if !g.core.Messages().IsUnderWay(seq) {
			delete(g.transfers, seq)
		}
	}
}

// check reports a failed post to the core, and ends the queue pair so that the neighbour notices.
func (g *Group) check(l *laneEnd, err error) {
	if err != nil {
		l.qp.Abort()
		g.lose(l, err)
	}
}

// lose reports to the core that one of a lane's queue pairs is in error.
func (g *Group) lose(l *laneEnd, cause error) {
	g.core.Broken(l.lane, cause)
	g.engine.attend(g)
}

func (g *Group) postSend(qp rdma.QueuePair, id int, imm uint32, seal bool, list []rdma.SGE) error {
	p := &g.posts
	p.send[0] = rdma.SendWR{ID: uint64(id), Op: rdma.OpSend, List: list, Imm: imm, SealCRC: seal}
	return qp.PostSend(p.send[:1]...)
}

func (g *Group) postRecv(qp rdma.QueuePair, id int, list []rdma.SGE) error {
	p := &g.posts
	p.recv[0] = rdma.RecvWR{ID: uint64(id), List: list}
	return qp.PostRecv(p.recv[:]...)
}

// closeIdlePool frees the block buffers a while after the last message. No slot is in use then.
func (g *Group) closeIdlePool(now time.Time) {
	if g.pool == nil || g.cfg.Unannounced && g.cfg.Rank != 0 || g.core.Ended() ||
		g.core.Messages().Queued() > 0 {
		g.idleSince = now
		return
	}
	if now.Sub(g.idleSince) < poolIdle {
		return
	}
	g.logClose(g.pool.Close())
	g.pool = nil
}

// Control buffers: for each lane, first the buffers of receives, then the one to send from.

func (g *Group) controlOffset(lane, n int) int {
	return (lane*(core.ControlWindow+1) + n) * core.MaxControl
}

func (g *Group) postControlRecv(lane, n int) error {
	return g.postRecv(g.lanes[lane].control.qp, n, g.posts.one(g.controlSGE(lane, n)))
}

// controlSGE is the memory of a receive on the control queue pair.
func (g *Group) controlSGE(lane, n int) rdma.SGE {
	if g.fromParent(lane) {
		return rdma.SGE{Region: g.smalls, Offset: n * g.smallStride(), Length: g.smallStride()}
	}
	return rdma.SGE{Region: g.control, Offset: g.controlOffset(lane, n), Length: core.MaxControl}
}

// controlBytes is what came into a receive on the control queue pair.
func (g *Group) controlBytes(lane, n, length int) []byte {
	sge := g.controlSGE(lane, n)
	return sge.Region.Bytes()[sge.Offset : sge.Offset+length : sge.Offset+length]
}

func (g *Group) sendControl(lane int) error {
	return g.postSend(g.lanes[lane].control.qp, 0, 0, false, g.posts.one(g.makeControl(lane)))
}

// makeControl is the control message for a lane, made just now.
func (g *Group) makeControl(lane int) rdma.SGE {
	at := g.controlOffset(lane, core.ControlWindow)
	n := g.core.EncodeControl(lane, g.control.Bytes()[at:at+core.MaxControl])
	return rdma.SGE{Region: g.control, Offset: at, Length: n}
}

// complete handles a completion of one of the group's queue pairs. It is called by the poller.
func (l *laneEnd) complete(c *rdma.Completion) {
	g := l.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead {
		return
	}
	g.look()
	switch {
	case c.Status != rdma.StatusOK:
		g.lose(l, fmt.Errorf("%v on %v: %v", c.Op, l.kind(), c.Status))
	case l.isControl && c.Op == rdma.OpRecv && c.Imm == immSmall:
		t, err := core.Unseal(core.Split(g.controlBytes(l.lane, int(c.ID), c.Bytes)))
		g.core.Small().Received(l.lane, int(c.ID), t, err)
		g.engine.attend(g)
	case l.isControl && c.Op == rdma.OpRecv:
		g.hear(l.lane, int(c.ID), c.Bytes)
	case l.isControl && c.ID > 0:
		g.core.Small().Sent(c.ID - 1)
	case l.isControl:
		g.core.ControlSent(l.lane)
	case c.Op == rdma.OpRecv:
		t, err := g.unsealReceived(c)
		g.core.BlockReceived(l.lane, int(c.ID), t, err)
	default:
		g.core.BlockSent(l.lane, int(c.ID))
	}
	g.drain()
}

func (l *laneEnd) kind() string {
	if l.isControl {
		return "control queue pair"
	}
	return "block queue pair"
}

// hear decodes a control message and posts its buffer again.
func (g *Group) hear(lane, n, length int) {
	if !g.core.DecodeControl(lane, g.controlBytes(lane, n, length), &g.heardMsg) {
		return
	}
	err := g.postControlRecv(lane, n)
	g.core.ControlReceived(lane, &g.heardMsg) // first: a neighbour that said why it ends may be gone already
	g.check(&g.lanes[lane].control, err)
	if g.heardMsg.Active() || g.core.Ended() {
		g.engine.attend(g)
	}
}

// tick passes the time to the core. It reports whether the group has to be ticked on.
func (g *Group) tick(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead {
		g.busy.Store(false)
		return false
	}
	more := g.core.Tick(now)
	g.drain()
	g.closeIdlePool(now)
	if !more && (g.pool == nil || g.cfg.Unannounced || g.core.Ended()) {
		g.busy.Store(false)
		return false
	}
	return true
}

// runJobs calls Sources and Sinks until the group ends.
func (g *Group) runJobs() {
	for j := range g.jobs {
		if j.small {
			g.runSmallJob(j)
		} else if j.store {
			g.jobDone(j, j.transfer.write(j.block, j.data))
		} else {
			g.jobDone(j, g.readBlock(j))
		}
		g.engine.turns.run()
	}
}

// readBlock reads a block and seals it.
func (g *Group) readBlock(j job) error {
	if g.Err() != nil {
		return nil // nothing is sent any more
	}
	if !g.isPlaced(j.slot) {
		if err := j.transfer.read(j.block, j.data); err != nil {
			return err
		}
	}
	a := &j.transfer.announcement
	t := core.Trailer{Seq: a.Seq, Block: j.block, Size: a.Size, Epoch: g.cfg.Epoch, Length: uint32(len(j.data))}
	t.Seal(j.data, j.trailer)
	return nil
}

func (g *Group) jobDone(j job, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.look()
	if j.store {
		g.core.BlockStored(j.slot, err)
	} else {
		g.core.BlockLoaded(j.slot, err)
	}
	g.drain()
}

// end ends the group, which has failed or closed, once its neighbours know or have had time enough. It waits
// until nothing of the group is in use.
func (g *Group) end() {
	g.ending.Do(func() {
		timeout := time.NewTimer(min(settleTimeout, g.cfg.SilenceTimeout/2))
		defer timeout.Stop()
		select {
		case <-g.settled:
		case <-timeout.C:
		}
		g.mu.Lock()
		close(g.jobs)
		g.mu.Unlock()
		g.calls.end()
		g.closeLanes()
		g.turn.leave()
		g.engine.turns.run()
		g.engine.remove(g)
		close(g.ended)
	})
	<-g.ended
}
