package rdmc

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// sharePartMin bounds what shareCost makes of ranks that relay few blocks.
const sharePartMin = 0.25

// shareCosts is what a byte costs a rank. A rank that relays only a part of the blocks needs only that part of the
// bytes to keep the pace of a group, and others need not wait until it has had as many bytes as they. A rank that sends
// a single block three times needs them all. A rank that sends each block of a long message several times, by an
// algorithm that does not relay, gets no more for it.
type shareCosts struct {
	single int64 // of a message of one block
	long   int64 // of one of more blocks: such messages overlap, so that even short ones go as a long one does
	leaf   bool  // long messages end here: nothing is relayed
}

func newShareCosts(plan *schedule.Plan, rank int) shareCosts {
	part := plan.Part(rank, schedule.PartBlocks)
	return shareCosts{single: shareCost(plan.Part(rank, 1)), long: shareCost(min(1, part)), leaf: part == 0}
}

func (c shareCosts) of(blocks uint64) int64 {
	if blocks == 1 {
		return c.single
	}
	return c.long
}

func shareCost(part float64) int64 { return max(1, int64(shareUnit/max(part, sharePartMin))) }

// gate is where a core asks for its turn. A core without one sends when it can.
type gate interface {
	ask(bytes int, cost int64, now time.Time) bool // may be posted, and then is booked, each byte at cost
	done(bytes int, now time.Time)                 // has completed
	rest(now time.Time)                            // was refused, and is not ready any more
}

// myTurn reports whether the engine's other groups leave a send of so many bytes to this one now, all else allowing it.
func (c *core) myTurn(bytes int, cost int64) bool {
	if c.gate == nil || c.gate.ask(bytes, cost, c.now) {
		return true
	}
	c.refused = true
	return false
}

// sendDone says that a send of so many bytes has completed.
func (c *core) sendDone(bytes int) {
	if c.gate != nil {
		c.gate.done(bytes, c.now)
	}
}

// settleTurn takes a refused wish back when there is nothing to send any more.
func (c *core) settleTurn() {
	if c.waits && !c.refused {
		c.gate.rest(c.now)
	}
	c.waits, c.refused = c.refused, false
}

// turns is an engine's arbiter with its lock.
type turns struct {
	due atomic.Bool // somebody is woken

	mu      sync.Mutex // taken after Group.mu, and none after it
	arbiter arbiter
}

// turn is a group's place at the arbiter.
type turn struct {
	share
	turns *turns
	gone  bool
}

func (t *turns) newTurn(class Priority, wake func()) *turn {
	n := &turn{share: share{class: int(class - PriorityLow), wake: wake}, turns: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.arbiter.add(&n.share)
	return n
}

func (t *turn) ask(bytes int, cost int64, now time.Time) bool {
	t.turns.mu.Lock()
	defer t.turns.unlock()
	return t.gone || t.turns.arbiter.ask(&t.share, bytes, cost, now)
}

func (t *turn) done(bytes int, now time.Time) {
	t.turns.mu.Lock()
	defer t.turns.unlock()
	if !t.gone {
		t.turns.arbiter.done(&t.share, bytes, now)
	}
}

func (t *turn) rest(now time.Time) {
	t.turns.mu.Lock()
	defer t.turns.unlock()
	if !t.gone {
		t.turns.arbiter.rest(&t.share, now)
	}
}

// leave is for a group that sends no more.
func (t *turn) leave() {
	t.turns.mu.Lock()
	defer t.turns.unlock()
	if !t.gone {
		t.gone = true
		t.turns.arbiter.leave(&t.share)
	}
}

func (t *turns) unlock() {
	if len(t.arbiter.woken) > 0 {
		t.due.Store(true)
	}
	t.mu.Unlock()
}

// run wakes the groups whose turn it is. No lock is held: it takes the locks of groups, one after another.
func (t *turns) run() {
	for t.due.Load() {
		t.mu.Lock()
		s := t.arbiter.next()
		if s == nil {
			t.due.Store(false)
		}
		t.mu.Unlock()
		if s != nil {
			s.wake()
		}
	}
}

// unlock ends a user's call. If that made it the turn of other groups, the engine wakes them.
func (g *Group) unlock() {
	g.mu.Unlock()
	g.engine.passTurns()
}

// tick passes the time to the arbiter.
func (t *turns) tick(now time.Time) {
	t.mu.Lock()
	t.arbiter.tick(now)
	t.unlock()
	t.run()
}

// takeTurn runs when it has become the group's turn.
func (g *Group) takeTurn() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead {
		return
	}
	g.look()
	g.core.pump()
	g.drain()
}

func (p Priority) check() error {
	if p < PriorityLow || p > PriorityHigh {
		return fmt.Errorf("%w: priority %d", ErrInvalid, p)
	}
	return nil
}
