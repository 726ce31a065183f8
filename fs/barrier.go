package fs

import (
	"context"
	"sync/atomic"
)

// barrier tells how far the changes of this mount are visible on the other nodes.
type barrier struct {
	changed atomic.Uint64 // log index of the newest change
	visible atomic.Uint64 // up to here every live node shows them, or was waited for
}

func raise(v *atomic.Uint64, to uint64) {
	for now := v.Load(); now < to && !v.CompareAndSwap(now, to); now = v.Load() {
	}
}

// showFor is show for a request of a process.
func (ns *namespace) showFor(cancel <-chan struct{}, pid uint32) {
	ctx, stop := ns.life.callContext(cancel, pid)
	defer stop()
	ns.show(ctx)
}

// show waits until each live node shows all that this mount has changed: after each change of names, and with close
// and fsync also when they have nothing to publish. Changes of attributes do not wait; they ride along with the next
// of these. A node that does not answer is waited for as long as at a publish, and then is behind: that is no error
// of the call.
func (ns *namespace) show(ctx context.Context) {
	index := ns.barrier.changed.Load()
	if index <= ns.barrier.visible.Load() {
		return
	}
	if err := ns.cluster.Show(ctx, index); err != nil {
		ns.log.Warn("not shown everywhere in time", "index", index, "err", err)
		if ctx.Err() != nil {
			return // the caller was killed: nobody has waited, and the next call has to
		}
	}
	raise(&ns.barrier.visible, index)
}
