package replicate

import (
	"context"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// upWait is how long this node may be behind another one that knows a third one to be up.
const upWait = time.Second

// viewLook is how often a goroutine that waits for a view checks whether it is there.
const viewLook = 20 * time.Millisecond

// whileUp returns a ctx that also ends when the log declares a node down or the node restarts: an answer of the former
// process would never come. A node that is not up, as far as the log was applied here, gets upWait to come up. views
// gives a channel that is closed when that may have changed; with a nil views, nothing is watched. The caller calls
// cancel.
func whileUp(
	ctx context.Context, wg *sync.WaitGroup, cfg Config, views func() <-chan struct{}, node meta.NodeID,
) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if views == nil {
		return ctx, cancel
	}
	changed := views() // before the look, so that no change is missed
	before, err := cfg.Names.Node(node)
	if err != nil {
		return ctx, cancel
	}
	late, stop := cfg.Clock.After(upWait)
	wg.Go(func() {
		defer stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-late:
				late = nil
			case <-changed:
			}
			changed = views()
			now, err := cfg.Names.Node(node)
			if late == nil && err == nil && now.State != meta.NodeUp {
				cancel()
				return
			}
			if err != nil || before.State == meta.NodeUp && (now.State != meta.NodeUp || now.Incarnation != before.Incarnation) {
				cancel()
				return
			}
			before = now
		}
	})
	return ctx, cancel
}
