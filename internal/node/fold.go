package node

import (
	"context"
	"time"
)

// foldEvery is how often the store looks for deltas that can become plain contents.
const foldEvery = time.Minute

// foldIdle folds what nobody has open, until ctx ends.
func (n *node) foldIdle(ctx context.Context) {
	for range ticks(ctx, foldEvery) {
		folded, err := n.store.FoldIdle(ctx)
		if err != nil && ctx.Err() == nil {
			n.log.Warn("deltas not folded", "err", err)
		}
		if folded > 0 {
			n.log.Debug("deltas folded", "count", folded)
		}
	}
}
