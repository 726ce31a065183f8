package rdmc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// Addresses are this end's fabric addresses, by neighbour. Each must be given to that neighbour's Connect. They are
// secrets: anyone who knows one can connect in the neighbour's place.
func (g *Group) Addresses() map[int][]byte {
	addresses := make(map[int][]byte, len(g.links.ends))
	for i := range g.links.ends {
		blocks, control := g.links.ends[i].blocks.address(), g.links.ends[i].control.address()
		c := coder.Writer(nil, coder.Little)
		codeAddresses(&c, &blocks, &control)
		addresses[g.core.Lanes().Peer(i)] = c.Written()
	}
	return addresses
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
	errs := make([]error, len(g.links.ends))
	var wg sync.WaitGroup
	for i := range g.links.ends {
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
		err = connectBoth(ctx, &g.links.ends[i], blocks, control)
	}
	g.mu.Lock()
	defer g.unlock()
	if err != nil {
		g.core.NotConnected(i)
		if ctx.Err() == context.Canceled && context.Cause(ctx) != errLaneFailed {
			g.core.Fail(ReasonAborted, g.cfg.Rank, g.cfg.leaver(), err)
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
