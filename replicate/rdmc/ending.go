package rdmc

import (
	"errors"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// Times of the end of a group.
const (
	// settleTimeout bounds how long an ending group waits until its neighbours are notified. So does half of the time
	// of silence: others may wait for this member.
	settleTimeout = time.Second
	// lossGrace is how long a member whose neighbour's queue pair broke waits for a better account of it.
	lossGrace = 100 * time.Millisecond
	// poolIdle is how long block buffers are kept after the last message.
	poolIdle = 2 * time.Second
)

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

// markFailed ends all transfers with the group's failure. The lock is held.
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

// markClosed ends the group well: everything was delivered. The lock is held.
func (g *Group) markClosed() {
	g.turn.leave()
	g.finishAll(ErrClosed)
	close(g.closed)
}

func (g *Group) finishAll(err error) {
	for seq, t := range g.transfers {
		t.finish(err)
		if !g.core.Messages().IsUnderWay(seq) {
			delete(g.transfers, seq)
		}
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
	if !more && (g.blocks.pool == nil || g.cfg.Unannounced || g.core.Ended()) {
		g.busy.Store(false)
		return false
	}
	return true
}

// closeIdlePool frees the block buffers a while after the last message. No slot is in use then.
func (g *Group) closeIdlePool(now time.Time) {
	if g.blocks.pool == nil || g.cfg.Unannounced && g.cfg.Rank != 0 || g.core.Ended() ||
		g.core.Messages().Queued() > 0 {
		g.idleSince = now
		return
	}
	if now.Sub(g.idleSince) < poolIdle {
		return
	}
	g.logClose(g.blocks.pool.Close())
	g.blocks.pool = nil
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
		g.closeLinks()
		g.turn.leave()
		g.engine.turns.run()
		g.engine.remove(g)
		close(g.ended)
	})
	<-g.ended
}

// closeLinks ends all queue pairs and waits for their work, then frees the memory.
func (g *Group) closeLinks() {
	g.links.eachQP(func(qp rdma.QueuePair) { g.logClose(qp.Close()) })
	g.mu.Lock()
	g.dead = true
	if g.timer != nil {
		g.timer.Stop()
	}
	control, smalls, pool := g.links.control, g.smalls.region, g.blocks.pool
	g.mu.Unlock()
	g.work.Wait()
	for _, r := range []rdma.Region{control, smalls, pool} {
		if r != nil {
			g.logClose(r.Close())
		}
	}
	g.engine.memory.release(g.reserved)
}

func (g *Group) logClose(err error) {
	if err != nil && !errors.Is(err, rdma.ErrClosed) {
		g.log.Warn("close fabric object", "error", err)
	}
}
