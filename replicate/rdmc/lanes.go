package rdmc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// laneEnd is one queue pair of a lane, and the User of it.
type laneEnd struct {
	group     *Group
	lane      int
	isControl bool
	qp        rdma.QueuePair
}

// laneEnds is the two queue pairs of a lane. Block receives are consumed by blocks only, and small receives by
// control messages only, so each kind has a queue pair of its own.
type laneEnds struct {
	blocks, control laneEnd
}

// openLanes makes the queue pairs, and posts all receives for control messages.
func (g *Group) openLanes() error {
	if err := g.openSmall(); err != nil {
		return err
	}
	g.lanes = make([]laneEnds, g.core.Lanes().Count())
	if len(g.lanes) == 0 {
		return nil
	}
	var err error
	if g.control, err = g.engine.device.AllocRegion(len(g.lanes)*(core.ControlWindow+1)*core.MaxControl, 0); err != nil {
		return err
	}
	for i := range g.lanes {
		if err := g.openLane(i); err != nil {
			return fmt.Errorf("neighbour %d: %w", g.core.Lanes().Peer(i), err)
		}
	}
	return nil
}

func (g *Group) openLane(i int) error {
	l := &g.lanes[i]
	l.blocks = laneEnd{group: g, lane: i}
	l.control = laneEnd{group: g, lane: i, isControl: true}
	if g.core.Lanes().HasBlocks(i) {
		if err := l.blocks.open(g.cfg.MaxSends, g.cfg.Window); err != nil {
			return err
		}
	}
	receives := g.controlReceives(i)
	if err := l.control.open(2+g.cfg.smallWindow(), receives); err != nil {
		return err
	}
	for n := range receives {
		if err := g.postControlRecv(i, n); err != nil {
			return err
		}
	}
	return nil
}

func (l *laneEnd) open(sends, receives int) error {
	cq := l.group.engine.cq
	var err error
	l.qp, err = l.group.engine.device.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, SendDepth: sends, RecvDepth: receives,
		WantCRC: !l.isControl, User: l})
	return err
}

// closeLanes ends all queue pairs and waits for their work, then frees the memory.
func (g *Group) closeLanes() {
	for i := range g.lanes {
		for _, l := range []*laneEnd{&g.lanes[i].blocks, &g.lanes[i].control} {
			if l.qp != nil {
				g.logClose(l.qp.Close())
			}
		}
	}
	g.mu.Lock()
	g.dead = true
	if g.timer != nil {
		g.timer.Stop()
	}
	control, smalls, pool := g.control, g.smalls, g.pool
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

// Addresses are this end's fabric addresses, by neighbour. Each must be given to that neighbour's Connect. They are
// secrets: anyone who knows one can connect in the neighbour's place.
func (g *Group) Addresses() map[int][]byte {
	addresses := make(map[int][]byte, len(g.lanes))
	for i := range g.lanes {
		blocks, control := g.lanes[i].blocks.address(), g.lanes[i].control.address()
		c := coder.Writer(nil, coder.Little)
		codeAddresses(&c, &blocks, &control)
		addresses[g.core.Lanes().Peer(i)] = c.Written()
	}
	return addresses
}

// address is the fabric's, empty if there is no queue pair.
func (l *laneEnd) address() []byte {
	if l.qp == nil {
		return nil
	}
	return l.qp.Address()
}

// codeAddresses are the addresses of the queue pairs of one end of a lane.
func codeAddresses(c *coder.Coder, blocks, control *[]byte) {
	c.View(blocks, coder.Unbounded)
	c.View(control, coder.Unbounded)
}

// splitAddress takes apart what Addresses made.
func splitAddress(b []byte) (blocks, control []byte, err error) {
	c := coder.Reader(b, coder.Little)
	if codeAddresses(&c, &blocks, &control); c.Finish() != nil {
		return nil, nil, fmt.Errorf("%w: address: %w", ErrInvalid, c.Err())
	}
	return blocks, control, nil
}

// Connect joins this end with its neighbours, whose addresses for this member are given by rank. All members call it at
// the same time. It returns when all neighbours are connected; when one is not, or ctx is done, the group has failed.
// It also ends when the group fails otherwise, such as at another member: then the error wraps the *GroupError. A
// caller that cancels ctx gives up, as by Abort: that is held against no neighbour. A second call is refused, and
// changes nothing.
func (g *Group) Connect(ctx context.Context, remote map[int][]byte) error {
	if g.joined.Swap(true) {
		return fmt.Errorf("rdmc: connect group %d: %w: it was called before", g.cfg.Number, ErrInvalid)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, len(g.lanes))
	var wg sync.WaitGroup
	for i := range g.lanes {
		wg.Go(func() {
			if errs[i] = g.connectLane(ctx, i, remote); errs[i] != nil {
				cancel(errLaneFailed)
			}
		})
	}
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-g.failed:
			cancel(errLaneFailed)
		case <-ctx.Done():
		}
	})
	wg.Wait()
	cancel(nil)
	watch.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("rdmc: connect group %d: %w", g.cfg.Number, errors.Join(g.Err(), err))
	}
	return g.Err()
}

// errLaneFailed is why connecting a lane is given up when another lane, or the group, has failed; otherwise the caller
// gave up.
var errLaneFailed = errors.New("rdmc: another neighbour was not connected")

func (g *Group) connectLane(ctx context.Context, i int, remote map[int][]byte) error {
	peer := g.core.Lanes().Peer(i)
	blocks, control, err := splitAddress(remote[peer])
	if err == nil {
		err = connectBoth(ctx, &g.lanes[i], blocks, control)
	}
	g.mu.Lock()
	defer g.unlock()
	if err != nil {
		g.core.NotConnected(i)
		if ctx.Err() == context.Canceled && context.Cause(ctx) != errLaneFailed {
			g.core.Fail(ReasonAborted, g.cfg.Rank, g.leaver(), err)
		}
		g.core.Fail(ReasonDisconnected, g.cfg.Rank, []int{peer}, err) // if it has not failed
		err = fmt.Errorf("member %d (%s): %w", peer, g.cfg.Members[peer], err)
	} else {
		g.core.Connected(i)
	}
	g.engine.attend(g)
	g.drain()
	return err
}

// connectBoth joins both queue pairs of a lane. When one is refused the other stops waiting: the end that dials notices
// that the neighbour has ended, the end that is dialled would not.
func connectBoth(ctx context.Context, l *laneEnds, blocks, control []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var once sync.Once
	var first error
	join := func(l *laneEnd, remote []byte) {
		if err := l.qp.Connect(ctx, remote); err != nil {
			once.Do(func() { first = err })
			cancel()
		}
	}
	var wg sync.WaitGroup
	if l.blocks.qp != nil {
		wg.Go(func() { join(&l.blocks, blocks) })
	}
	join(&l.control, control)
	wg.Wait()
	return first
}
