package fs

import (
	"context"
	"fmt"
	"sync/atomic"
)

// barrier records how far the changes of this mount are visible on the other nodes.
type barrier struct {
	changed atomic.Uint64 // log index of the newest change
	visible atomic.Uint64 // up to here every live node shows them, or was waited for
}

func raise(v *atomic.Uint64, to uint64) {
	for now := v.Load(); now < to && !v.CompareAndSwap(now, to); now = v.Load() {
	}
}

// published notes a version of this mount at an index of the log. If shown is set, the publish has waited until the
// version is shown. Else it is not known where it is shown, and close and fsync ask again.
func (b *barrier) published(index uint64, shown bool) {
	if shown {
		raise(&b.visible, index)
	} else {
		raise(&b.changed, index)
	}
}

// showFor is show for a close or fsync of a process: it waits for a quorum, and fails if it can't be known which nodes
// show the changes.
func (ns *namespace) showFor(cancel <-chan struct{}, pid uint32) error {
	ctx, stop := ns.life.callContext(cancel, pid)
	defer stop()
	return ns.show(ctx, true)
}

// showNames is show for a change of names, which stands even if it can't be shown: the next close or fsync asks again.
func (ns *namespace) showNames(ctx context.Context) {
	if err := ns.show(ctx, false); err != nil {
		ns.log.Warn("a change of names may not be shown everywhere", "err", err)
	}
}

// show waits until each live node shows all that this mount has changed: after each change of names, and with close and
// fsync also when they have nothing to publish. Changes of attributes do not wait; they ride along with the next of
// these. A node that does not answer is waited for as long as at a publish, and then is behind: that is no error. It is
// an error if it can't be known which nodes show the changes, or if the caller was killed: then the next call has to
// wait.
func (ns *namespace) show(ctx context.Context, patient bool) error {
	index := ns.barrier.changed.Load()
	if index <= ns.barrier.visible.Load() {
		return nil
	}
	behind, err := ns.cluster.Show(ctx, index, patient)
	if err != nil {
		return fmt.Errorf("fs: nobody can tell who shows what was changed up to %d: %w", index, err)
	}
	if len(behind) > 0 {
		ns.log.Warn("not shown everywhere in time", "index", index, "behind", behind)
	}
	raise(&ns.barrier.visible, index)
	return nil
}
