package content

import (
	"context"
	"errors"
	"fmt"
)

// FoldIdle makes plain contents of deltas that nobody has open and whose bases were deleted and are kept for them
// alone: they then take no more room than they should and can be read without the daemon. It writes what the deltas
// changed and no more. It returns how many it has folded; one that fails does not keep the others. Who calls it now
// and then keeps the store flat.
func (s *Store) FoldIdle(ctx context.Context) (folded int, err error) {
	for _, id := range s.idleDeltas() {
		if ctx.Err() != nil {
			break
		}
		done, foldErr := s.foldIdle(ctx, id)
		if errors.Is(foldErr, ErrNotFound) || errors.Is(foldErr, ErrBusy) {
			continue // it is in use now, or gone
		}
		err = errors.Join(err, foldErr)
		if done {
			folded++
		}
	}
	if ctx.Err() != nil {
		return folded, fmt.Errorf("content: fold: %w", ctx.Err())
	}
	return folded, err
}

// idleDeltas lists the deltas that are worth it.
func (s *Store) idleDeltas() []ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []ID
	for id, e := range s.index {
		if e.base.IsZero() || e.state != Committed || e.dead || e.busy || e.folding || e.damaged || e.pins > 0 || e.deps > 0 {
			continue
		}
		if b := s.index[e.base]; b != nil && b.dead && b.pins == 0 && b.deps == 1 {
			list = append(list, id)
		}
	}
	return list
}

// foldIdle merges a chain into one delta, and folds that. What can't be done in place is copied if it is small.
func (s *Store) foldIdle(ctx context.Context, id ID) (done bool, err error) {
	info, err := s.Stat(id)
	if err != nil {
		return false, err
	}
	if info.Depth > 1 {
		if err := s.Merge(ctx, id); err != nil {
			return false, err
		}
	}
	if done, err = s.foldInPlace(ctx, id); done || err != nil {
		return done && err == nil, err
	}
	if info.Size > CopyUpBytesMax || info.Depth > 1 {
		return false, nil // the next time
	}
	err = s.Fold(ctx, id)
	return err == nil, err
}
