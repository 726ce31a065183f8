package rdmc

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
)

// EngineConfig says how to make an engine.
type EngineConfig struct {
	// Device is the fabric. The engine does not close it.
	Device rdma.Device
	// Memory bounds the registered bytes of all groups together: with little of it they have fewer block buffers.
	// Default: no bound.
	Memory *Memory
	// Logger may be nil.
	Logger *slog.Logger
}

// Engine drives all groups of one device with one poller. Its methods may be called from several goroutines.
type Engine struct {
	device rdma.Device
	memory *Memory
	log    *slog.Logger
	cq     rdma.CompletionQueue
	ctx    context.Context // done when the engine closes
	stop   context.CancelFunc
	done   sync.WaitGroup // poller and ticker
	ends   sync.WaitGroup // ends of groups that their own goroutines have aborted; added to under mu
	wake   chan struct{}  // holds one; the ticker has groups to tick
	turns  turns          // whose turn it is to send
	passed chan struct{}  // holds one; the ticker has turns to pass on

	mu     sync.Mutex // taken before no other lock
	closed bool
	groups map[*Group]struct{}
	ticked map[*Group]struct{} // groups that must get the time
}

// NewEngine starts an engine.
func NewEngine(cfg EngineConfig) (*Engine, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cq, err := cfg.Device.NewCQ(1024)
	if err != nil {
		return nil, fmt.Errorf("rdmc: new engine on %s: %w", cfg.Device.Name(), err)
	}
	e := &Engine{
		device: cfg.Device,
		memory: cmp.Or(cfg.Memory, NewMemory(0)),
		log:    cfg.Logger,
		cq:     cq,
		wake:   make(chan struct{}, 1),
		passed: make(chan struct{}, 1),
		groups: make(map[*Group]struct{}),
		ticked: make(map[*Group]struct{}),
	}
	e.ctx, e.stop = context.WithCancel(context.Background())
	e.done.Go(e.poll)
	e.done.Go(e.tick)
	return e, nil
}

// Close aborts all groups and waits for them and the poller to end. A callback, Source or Sink of a group gets
// ErrWithin, and nothing happens.
func (e *Engine) Close() error {
	if within() {
		return fmt.Errorf("rdmc: close engine on %s: %w", e.device.Name(), ErrWithin)
	}
	groups := e.list(true)
	var aborts sync.WaitGroup
	for _, g := range groups {
		aborts.Go(g.Abort)
	}
	aborts.Wait()
	e.ends.Wait()
	e.stop()
	e.done.Wait()
	return e.cq.Close()
}

// list returns all groups. With last, no groups are added from then on.
func (e *Engine) list(last bool) []*Group {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = e.closed || last
	return slices.Collect(maps.Keys(e.groups))
}

// endLater ends a group that one of its own goroutines has aborted. Once the engine closes, Close does that.
func (e *Engine) endLater(g *Group) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.ends.Go(g.end)
	}
}

// tick passes the time to the groups that need it, and rests while there are none. In between, it wakes groups whose
// turn has come by a user's call.
func (e *Engine) tick() {
	ticker := time.NewTicker(share.TickInterval)
	defer ticker.Stop()
	var groups []*Group
	for {
		groups = e.due(groups)
		for _, g := range groups {
			if !g.tick(time.Now()) {
				e.rest(g)
			}
		}
		e.turns.tick(time.Now())
		wait := ticker.C
		if len(groups) == 0 {
			wait = nil
			ticker.Stop()
		}
		for again := false; !again; {
			select {
			case <-wait:
				again = true
			case <-e.wake:
				ticker.Reset(share.TickInterval)
				again = true
			case <-e.passed:
				e.turns.run()
			case <-e.ctx.Done():
				return
			}
		}
	}
}

// passTurns makes the ticker wake groups whose turn has come. A user's call does not do so itself: it may hold a lock
// that a Placed of another group takes.
func (e *Engine) passTurns() {
	if !e.turns.due.Load() {
		return
	}
	select {
	case e.passed <- struct{}{}:
	default:
	}
}

// due returns the groups to tick, in the order of their numbers so that simulations repeat. into is used again.
func (e *Engine) due(into []*Group) []*Group {
	clear(into)
	into = into[:0]
	e.mu.Lock()
	defer e.mu.Unlock()
	for g := range e.ticked {
		into = append(into, g)
	}
	slices.SortFunc(into, func(a, b *Group) int { return cmp.Compare(a.cfg.Number, b.cfg.Number) })
	return into
}

// rest stops ticking a group, unless it has become busy meanwhile.
func (e *Engine) rest(g *Group) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !g.busy.Load() {
		delete(e.ticked, g)
	}
}

// attend starts ticking a group. It may be called with the group's lock held.
func (e *Engine) attend(g *Group) {
	if g.busy.Swap(true) {
		return
	}
	e.mu.Lock()
	e.ticked[g] = struct{}{}
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// add adds a group and starts it: Close may end it from then on.
func (e *Engine) add(g *Group) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	e.groups[g] = struct{}{}
	g.start()
	return nil
}

func (e *Engine) remove(g *Group) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.groups, g)
	delete(e.ticked, g)
}
