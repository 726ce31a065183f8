package rdmc

import (
	"context"
	"fmt"
	"slices"
)

// WaitDelivered waits, at the root, until all members have the message with the number, and all before it: for a
// small one until GroupConfig.Small has returned there. It returns the group's failure, or ctx's error.
func (g *Group) WaitDelivered(ctx context.Context, seq uint64) error {
	if seq == 0 {
		return nil // before the first
	}
	return g.wait(ctx, seq)
}

// WaitRoom waits, at the root of a group with small messages, until SendSmall finds room. It returns the group's
// failure, or ctx's error.
func (g *Group) WaitRoom(ctx context.Context) error {
	if g.cfg.Rank != 0 || g.cfg.SmallBytes == 0 {
		return fmt.Errorf("%w: wait for room by rank %d, for small messages of up to %d bytes", ErrInvalid, g.cfg.Rank,
			g.cfg.SmallBytes)
	}
	return g.wait(ctx, 0)
}

// waiter is a caller that waits for a message's delivery, or with seq 0 for room.
type waiter struct {
	seq  uint64
	wake chan struct{} // holds one
}

// newWaiter adds a waiter; past waiters are used again, so that waiting does not allocate. The lock is held.
func (g *Group) newWaiter(seq uint64) *waiter {
	var w *waiter
	if n := len(g.pastWaiters); n > 0 {
		w = g.pastWaiters[n-1]
		g.pastWaiters = g.pastWaiters[:n-1]
	} else {
		w = &waiter{wake: make(chan struct{}, 1)}
	}
	w.seq = seq
	g.waiters = append(g.waiters, w)
	return w
}

// met reports whether what a waiter waits for has happened. The lock is held.
func (g *Group) met(seq uint64) bool {
	if seq == 0 {
		return g.core.Small().Room() >= 0
	}
	return g.core.Messages().IsOver(seq)
}

func (g *Group) wait(ctx context.Context, seq uint64) error {
	g.mu.Lock()
	if g.met(seq) || g.core.Ended() {
		defer g.mu.Unlock()
		return g.outcome(seq)
	}
	w := g.newWaiter(seq)
	g.mu.Unlock()
	var err error
	select {
	case <-w.wake:
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forget(w)
	if err != nil {
		return err
	}
	return g.outcome(seq)
}

// outcome is what a wait that is over returns. The lock is held.
func (g *Group) outcome(seq uint64) error {
	if g.met(seq) {
		return nil
	}
	return g.refused()
}

// forget takes a waiter off the list. The lock is held.
func (g *Group) forget(w *waiter) {
	if i := slices.Index(g.waiters, w); i >= 0 {
		g.waiters = slices.Delete(g.waiters, i, i+1)
	}
	select {
	case <-w.wake:
	default:
	}
	g.pastWaiters = append(g.pastWaiters, w)
}

// wakeWaiters wakes the callers that have waited long enough. The lock is held.
func (g *Group) wakeWaiters() {
	for _, w := range g.waiters {
		if g.core.Ended() || g.met(w.seq) {
			select {
			case w.wake <- struct{}{}:
			default:
			}
		}
	}
}
