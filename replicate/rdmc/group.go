package rdmc

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// Group is one member's end of a group. Its methods may be called from several goroutines.
type Group struct {
	engine *Engine
	cfg    GroupConfig
	log    *slog.Logger
	busy   atomic.Bool // the engine ticks this group
	joined atomic.Bool // Connect was called
	turn   *turn
	calls  callbacks
	jobs   chan job // written under mu, room for one per slot; closed by end
	work   sync.WaitGroup
	ending sync.Once
	ended  chan struct{} // closed when nothing of the group is in use any more

	failed  chan struct{} // closed when the group has failed
	closed  chan struct{} // closed when everything was delivered and the root closed the group
	settled chan struct{} // closed when the neighbours know of either

	mu         sync.Mutex // protects all below; never held across network, disk or a caller's code
	core       *core.Member
	spare      []core.Action // the core's list of actions and this are used in turn
	links      links
	blocks     blockBuffers
	smalls     smallBuffers
	waits      waits
	timer      *time.Timer // of pace, nil until needed
	reserved   int64       // bytes of the engine's memory
	toldStored uint64      // messages for which Stored was called
	idleSince  time.Time
	dead       bool // queue pairs are closed: late completions mean nothing
	err        error
	transfers  map[uint64]*Transfer
	heardMsg   core.ControlMessage // decoded into, used again
}

// MemberProgress is how far a member is, as the root knows.
type MemberProgress struct {
	Rank int
	// Done is the number of the last message that the member has stored whole; all before it are too.
	Done uint64
	// Blocks counts the blocks of message Done+1 that had to move and are stored there.
	Blocks uint64
	// Sending is for how long, in all, a block was on its way to the member from this one; Waiting for how long none
	// was, and the next one waited for room there. Both are 0 of members that this one sends no blocks to.
	Sending, Waiting time.Duration
}

// NewGroup makes a member's end of a group, not yet connected. It must be ended by Close or Abort.
func (e *Engine) NewGroup(cfg GroupConfig) (*Group, error) {
	cfg.setDefaults()
	if err := cfg.check(e.device.Limits()); err != nil {
		return nil, fmt.Errorf("rdmc: new group %d: %w", cfg.Number, err)
	}
	plan, err := cfg.plan()
	if err != nil {
		return nil, fmt.Errorf("rdmc: new group %d: %w", cfg.Number, err)
	}
	g := &Group{
		engine:    e,
		cfg:       cfg,
		log:       e.log.With("group", cfg.Number, "epoch", cfg.Epoch, "rank", cfg.Rank),
		jobs:      make(chan job, cfg.Window+len(plan.Neighbours(cfg.Rank))+cfg.smallWindow()),
		ended:     make(chan struct{}),
		failed:    make(chan struct{}),
		closed:    make(chan struct{}),
		settled:   make(chan struct{}),
		transfers: make(map[uint64]*Transfer),
	}
	if err := g.reserve(plan); err != nil {
		e.yield(int64(g.registeredMax()))
		return nil, fmt.Errorf("rdmc: new group %d: %w", cfg.Number, err)
	}
	g.turn = e.turns.newTurn(cfg.Priority, g.takeTurn)
	g.core.Begin(time.Now(), g.turn)
	if err := g.open(); err != nil {
		g.turn.leave()
		g.closeLinks()
		return nil, fmt.Errorf("rdmc: new group %d: %w", cfg.Number, err)
	}
	return g, nil
}

// open makes the queue pairs and adds the group to the engine.
func (g *Group) open() error {
	if err := g.smalls.open(g.engine.device); err != nil {
		return err
	}
	if err := g.links.open(g); err != nil {
		return err
	}
	if err := g.openStanding(); err != nil {
		return err
	}
	g.calls.wake = make(chan struct{}, 1)
	return g.engine.add(g)
}

// start starts the workers.
func (g *Group) start() {
	g.work.Go(func() { userCode(g.runCallbacks) })
	for range workers {
		g.work.Go(func() { userCode(g.runJobs) })
	}
}

// Send queues a message at the root and does not wait. The transfer ends when every member has stored every block. The
// caller must pass Transfer.Announcement to the members; blocks flow to each as soon as it calls Receive.
func (g *Group) Send(out Outgoing) (*Transfer, error) {
	g.mu.Lock()
	defer g.unlock()
	if g.cfg.Rank != 0 {
		return nil, fmt.Errorf("%w: send by rank %d, only the root can", ErrInvalid, g.cfg.Rank)
	}
	if g.cfg.Unannounced && (out.Partial || out.Size == 0) {
		return nil, fmt.Errorf("%w: partial or empty message in an unannounced group", ErrInvalid)
	}
	blocks := BlockCount(out.Size, g.cfg.BlockSize)
	a := Announcement{Seq: g.core.Messages().Next(), Size: out.Size, Blocks: slices.Clone(out.Blocks)}
	if !out.Partial {
		a.Blocks = AllBlocks(blocks)
	}
	if out.Source == nil && len(a.Blocks) > 0 {
		return nil, fmt.Errorf("%w: a message without a source", ErrInvalid)
	}
	t := &Transfer{group: g, announcement: a, source: out.Source}
	t.placed, _ = out.Source.(Placed)
	if err := g.begin(t, nil); err != nil {
		return nil, err
	}
	return t, nil
}

// Receive makes a member ready for an announced message and does not wait. Announcements may come in any
// order within a bound; the messages are received in order of their numbers.
func (g *Group) Receive(a Announcement, r Receiver) (*Transfer, error) {
	g.mu.Lock()
	defer g.unlock()
	if g.cfg.Rank == 0 || g.cfg.Unannounced {
		return nil, fmt.Errorf("%w: receive by the root or in an unannounced group", ErrInvalid)
	}
	if err := a.Validate(g.cfg.BlockSize); err != nil {
		return nil, err
	}
	if r.Sink == nil && len(a.Blocks) > 0 {
		return nil, fmt.Errorf("%w: a message without a sink", ErrInvalid)
	}
	blocks := BlockCount(a.Size, g.cfg.BlockSize)
	have := NewBitmap(blocks)
	if r.Have != nil {
		if r.Have.Blocks() != blocks {
			return nil, fmt.Errorf("%w: bitmap of %d blocks for a message of %d", ErrInvalid, r.Have.Blocks(), blocks)
		}
		have = r.Have.Clone()
	}
	t := &Transfer{group: g, announcement: a, sink: r.Sink}
	t.placed, _ = r.Sink.(Placed)
	if err := g.begin(t, have); err != nil {
		return nil, err
	}
	return t, nil
}

// begin gives the message to the core. The lock is held.
func (g *Group) begin(t *Transfer, have *Bitmap) error {
	if err := g.refused(); err != nil {
		return err
	}
	g.look()
	a := t.announcement
	if err := a.Validate(g.cfg.BlockSize); err != nil {
		return err
	}
	if err := g.blocks.open(g.engine.device); err != nil {
		return err
	}
	t.open(have)
	close(t.ready)
	if g.cfg.goesSmall(a.Size) {
		return g.beginSmall(t)
	}
	before := g.transfers[a.Seq]
	g.transfers[a.Seq] = t
	if err := g.core.Announce(a, have); err != nil {
		if g.transfers[a.Seq] = before; before == nil {
			delete(g.transfers, a.Seq)
		}
		return err
	}
	g.engine.attend(g)
	g.drain()
	return nil
}

// refused is why no message can begin any more, or nil. The lock is held.
func (g *Group) refused() error {
	if g.err != nil {
		return g.err
	}
	if g.core.Ended() || g.core.IsClosing() {
		return ErrClosed
	}
	return nil
}

// Progress returns, at the root, how far each member is, by rank. Elsewhere it holds the members below in the tree of
// reports.
func (g *Group) Progress() []MemberProgress {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]MemberProgress, len(g.cfg.Members))
	for rank := range all {
		p := &all[rank]
		p.Rank = rank
		p.Done, p.Blocks = g.core.Done(rank)
		if lane := g.core.Lanes().To(rank); lane >= 0 {
			p.Sending, p.Waiting = g.core.Waits(lane)
		}
	}
	return all
}

// Failed is closed when the group has failed; Err then says how.
func (g *Group) Failed() <-chan struct{} { return g.failed }

// Err is nil, or the *GroupError that ended the group.
func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Fail ends the group on all members, with the given suspects. It does not wait; Abort does.
func (g *Group) Fail(suspects []int, cause error) {
	g.mu.Lock()
	defer g.unlock()
	g.core.Fail(ReasonAborted, g.cfg.Rank, suspects, cause)
	g.engine.attend(g)
	g.drain()
}

// Close waits until all queued messages are delivered to all members, which all of them learn, then ends the group.
// All members call it. If it returns nil, every message reached every member whole. It returns the group's failure,
// or ctx's error, in which case the group is aborted. A callback, Source or Sink, for whose return the group may wait,
// has to give a ctx that ends: with another one it gets ErrWithin, and nothing happens. As with Abort, Close does not
// wait there until nothing of the group is in use.
func (g *Group) Close(ctx context.Context) error {
	if ctx.Done() == nil && within() {
		return fmt.Errorf("rdmc: close group %d: %w", g.cfg.Number, ErrWithin)
	}
	g.mu.Lock()
	if g.cfg.Rank == 0 {
		g.core.CloseWhenDone()
	} else {
		g.look()
		g.core.AwaitEnd()
		g.engine.attend(g)
	}
	g.drain()
	g.unlock()
	select {
	case <-g.closed:
		g.endHere()
		return nil
	case <-g.failed:
		g.endHere()
		return g.Err()
	case <-ctx.Done():
		g.Abort()
		select {
		case <-g.closed:
			return nil // before that
		default:
		}
		return fmt.Errorf("rdmc: close group %d: %w", g.cfg.Number, ctx.Err())
	}
}

// Abort ends the group at once; the other members see it fail, with this member as the suspect unless it is the root.
// It waits until no buffer, Source or Sink of the group is in use any more, unless a callback, Source or Sink of a
// group calls it: then the rest is done when that has returned, at the latest by Engine.Close.
func (g *Group) Abort() {
	g.Fail(g.cfg.leaver(), ErrClosed)
	g.endHere()
}

// endHere ends the group, or leaves it to the engine where ending it might wait for the caller.
func (g *Group) endHere() {
	if within() {
		g.engine.endLater(g)
		return
	}
	g.end()
}
