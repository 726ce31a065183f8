package rdmc

import (
	"context"
	"fmt"
	"slices"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// waits are the callers that wait for a delivery or for room. The group's lock is held in all methods.
type waits struct {
	core *core.Member
	list []*waiter
	past []*waiter // used again, so that waiting does not allocate
}

// waiter is a caller that waits for a message's delivery, or with seq 0 for room.
type waiter struct {
	seq  uint64
	woke chan struct{} // holds one
}

// add adds a waiter.
func (s *waits) add(seq uint64) *waiter {
	var w *waiter
	if n := len(s.past); n > 0 {
		w = s.past[n-1]
		s.past = s.past[:n-1]
	} else {
		w = &waiter{woke: make(chan struct{}, 1)}
	}
	w.seq = seq
	s.list = append(s.list, w)
	return w
}

// remove takes a waiter off the list.
func (s *waits) remove(w *waiter) {
	if i := slices.Index(s.list, w); i >= 0 {
		s.list = slices.Delete(s.list, i, i+1)
	}
	select {
	case <-w.woke:
	default:
	}
	s.past = append(s.past, w)
}

// met reports whether what a waiter with the number waits for has happened.
func (s *waits) met(seq uint64) bool {
	if seq == 0 {
		return s.core.Small().Room() >= 0
	}
	return s.core.Messages().IsOver(seq)
}

// wake wakes the callers that have waited long enough.
func (s *waits) wake() {
	for _, w := range s.list {
		if s.core.Ended() || s.met(w.seq) {
			select {
			case w.woke <- struct{}{}:
			default:
			}
		}
	}
}

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

// wait waits for the delivery of a message, or with 0 for room.
func (g *Group) wait(ctx context.Context, seq uint64) error {
	g.mu.Lock()
	if g.waits.met(seq) || g.core.Ended() {
		defer g.mu.Unlock()
		return g.outcome(seq)
	}
	w := g.waits.add(seq)
	g.mu.Unlock()
	var err error
	select {
	case <-w.woke:
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits.remove(w)
	if err != nil {
		return err
	}
	return g.outcome(seq)
}

// outcome is what a wait that is over returns. The lock is held.
func (g *Group) outcome(seq uint64) error {
	if g.waits.met(seq) {
		return nil
	}
	return g.refused()
}
