package rdmc

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
)

// turns is an engine's arbiter with its lock.
type turns struct {
	due atomic.Bool // somebody is woken

	mu      sync.Mutex // taken after Group.mu, and none after it
	arbiter share.Arbiter
}

// turn is a group's place at the arbiter.
type turn struct {
	share share.Share
	turns *turns
	gone  bool
}

func (t *turns) newTurn(class Priority, wake func()) *turn {
	n := &turn{share: share.Share{Class: class.Class(), Wake: wake}, turns: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.arbiter.Add(&n.share)
	return n
}

func (t *turn) Ask(bytes int, cost int64, now time.Time) bool {
	t.turns.mu.Lock()
	defer t.turns.unlock()
	return t.gone || t.turns.arbiter.Ask(&t.share, bytes, cost, now)
}

func (t *turn) Done(bytes int, now time.Time) {
	t.turns.mu.Lock()
	defer t.turns.unlock()
	if !t.gone {
		t.turns.arbiter.Done(&t.share, bytes, now)
	}
}

func (t *turn) Rest(now time.Time) {
	t.turns.mu.Lock()
	defer t.turns.unlock()
	if !t.gone {
		t.turns.arbiter.Rest(&t.share, now)
	}
}

// leave is for a group that sends no more.
func (t *turn) leave() {
	t.turns.mu.Lock()
	defer t.turns.unlock()
	if !t.gone {
		t.gone = true
		t.turns.arbiter.Leave(&t.share)
	}
}

func (t *turns) unlock() {
	if t.arbiter.HasWoken() {
		t.due.Store(true)
	}
	t.mu.Unlock()
}

// run wakes the groups whose turn it is. No lock is held: it takes the locks of groups, one after another.
func (t *turns) run() {
	for t.due.Load() {
		t.mu.Lock()
		s := t.arbiter.Next()
		if s == nil {
			t.due.Store(false)
		}
		t.mu.Unlock()
		if s != nil {
			s.Wake()
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
	t.arbiter.Tick(now)
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
	g.core.Pump()
	g.drain()
}
