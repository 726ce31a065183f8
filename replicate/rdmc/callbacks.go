package rdmc

import (
	"fmt"
	"sync"
)

// callbacks is a queue of calls of the user's code, made one after another by a goroutine of the group.
type callbacks struct {
	wake chan struct{} // holds one

	mu    sync.Mutex
	queue []func()
	ended bool
}

// add queues a call. The group's lock may be held.
func (c *callbacks) add(call func()) {
	c.mu.Lock()
	c.queue = append(c.queue, call)
	c.mu.Unlock()
	c.nudge()
}

func (c *callbacks) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// end has runCallbacks return when it has made the queued calls.
func (c *callbacks) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.nudge()
}

func (c *callbacks) take() (calls []func(), ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls, c.queue = c.queue, nil
	return calls, c.ended
}

// runCallbacks makes the queued calls until the group ends.
func (g *Group) runCallbacks() {
	for {
		calls, ended := g.calls.take()
		for _, call := range calls {
			call()
		}
		if len(calls) > 0 {
			continue
		}
		if ended {
			return
		}
		<-g.calls.wake
	}
}

// openStanding posts the standing receives of an unannounced group.
func (g *Group) openStanding() error {
	if !g.cfg.Unannounced || g.cfg.Rank == 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.openPool(); err != nil {
		return err
	}
	g.core.pump()
	g.drain()
	return nil
}

// incoming begins a message that was not announced. The lock is held.
func (g *Group) incoming(seq, size uint64) {
	blocks := BlockCount(size, g.cfg.BlockSize)
	t := &Transfer{group: g, announcement: Announcement{Seq: seq, Size: size, Blocks: AllBlocks(blocks)}}
	t.open(g.core.haveOf(seq))
	g.transfers[seq] = t
	g.engine.attend(g)
	g.calls.add(func() { g.askSink(t) })
}

// askSink asks the user where a message goes.
func (g *Group) askSink(t *Transfer) {
	sink, err := g.cfg.Incoming(t.announcement.Size)
	if err == nil && sink == nil {
		err = fmt.Errorf("%w: Incoming returned no sink", ErrInvalid)
	}
	if err != nil {
		g.mu.Lock()
		g.core.fail(ReasonSink, g.cfg.Rank, []int{g.cfg.Rank}, err)
		g.engine.attend(g)
		g.drain()
		g.mu.Unlock()
	} else {
		t.sink = sink
	}
	close(t.ready)
}
