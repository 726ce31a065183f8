package rdmc

import (
	"fmt"
	"sync"
)

// callbacks is a queue of calls of the user's code, made one after another by a goroutine of the group.
type callbacks struct {
	wake chan struct{} // holds one

	mu    sync.Mutex
	queue []call
	ended bool
}

// call is one call: run, or if that is nil the handing over of a small message.
type call struct {
	run   func()
	small smallCall
}

// add queues a call. The group's lock may be held.
func (c *callbacks) add(run func()) { c.put(call{run: run}) }

func (c *callbacks) put(one call) {
	c.mu.Lock()
	c.queue = append(c.queue, one)
	c.mu.Unlock()
	c.nudge()
}

func (c *callbacks) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// end makes runCallbacks return when it has made the queued calls.
func (c *callbacks) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.nudge()
}

// take returns the queued calls. made are the calls of the time before, whose memory is used again.
func (c *callbacks) take(made []call) (calls []call, ended bool) {
	clear(made)
	c.mu.Lock()
	defer c.mu.Unlock()
	calls, c.queue = c.queue, made[:0]
	return calls, c.ended
}

// runCallbacks makes the queued calls until the group ends.
func (g *Group) runCallbacks() {
	var calls []call
	for {
		var ended bool
		calls, ended = g.calls.take(calls)
		for i := range calls {
			if calls[i].run != nil {
				calls[i].run()
			} else {
				g.callSmall(calls[i].small)
			}
			g.engine.turns.run()
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
	if err := g.blocks.open(g.engine.device); err != nil {
		return err
	}
	g.core.Pump()
	g.drain()
	return nil
}

// incoming begins a message that was not announced. The lock is held.
func (g *Group) incoming(seq, size uint64) {
	blocks := BlockCount(size, g.cfg.BlockSize)
	t := &Transfer{group: g, announcement: Announcement{Seq: seq, Size: size, Blocks: AllBlocks(blocks)}}
	have := g.core.Messages().Have(seq)
	if have == nil {
		have = NewBitmap(blocks) // a small message
	}
	t.open(have)
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
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.core.Fail(ReasonSink, g.cfg.Rank, []int{g.cfg.Rank}, err)
		g.engine.attend(g)
		sink = nil
	}
	g.look()
	t.goesTo(sink)
	g.drain()
}
