package content

import (
	"context"
	"errors"
	"fmt"
)

// FoldIdle makes plain contents from deltas that nobody has open and whose bases were deleted and are kept for them
// alone: they then take no more room than they should and can be read without the daemon. It writes only what the
// deltas changed. It returns how many it has folded; a failure at one does not stop the others. A caller that calls it
// now and then keeps the store flat.
func (s *Store) FoldIdle(ctx context.Context) (folded int, err error) {
	return s.forms.foldAllIdle(ctx)
}

func (fo *forms) foldAllIdle(ctx context.Context) (folded int, err error) {
	for _, id := range fo.index.idleDeltas() {
		if ctx.Err() != nil {
			break
		}
		done, foldErr := fo.foldIdle(ctx, id)
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

// foldIdle merges a chain into one delta, and folds that. What can't be done in place is copied if it is small.
func (fo *forms) foldIdle(ctx context.Context, id ID) (done bool, err error) {
	info, err := fo.opener.stat(id)
	if err != nil {
		return false, err
	}
	if info.Depth > 1 {
		if err := fo.merge(ctx, id); err != nil {
			return false, err
		}
	}
	if done, err = fo.foldInPlace(ctx, id); done || err != nil {
		return done && err == nil, err
	}
	if info.Size > CopyUpBytesMax || info.Depth > 1 {
		return false, nil // the next time
	}
	err = fo.fold(ctx, id)
	return err == nil, err
}
