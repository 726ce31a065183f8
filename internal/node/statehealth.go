package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

// A node whose state is damaged serves nothing. It takes the state of another node; its log, its votes, its contents
// and its unpublished files stay, as none of them is in the state.

// stateRebuilding is the state of such a node, as status shows it.
const stateRebuilding = "rebuilding"

// stateHealth is what this node knows of the soundness of its own state.
type stateHealth struct {
	db   *meta.DB
	raft *lateRaft
	log  *slog.Logger

	verdicts   sync.Mutex                 // held to distrust a state, and to note that another is in its place
	rebuilding atomic.Pointer[rebuilding] // the state was damaged: at the start, or since
}

// distrust ends the use of a state of this node, and makes another node's state take its place. The mounts stay, and
// answer EIO until then. A verdict about a state that is no longer in use changes nothing.
func (h *stateHealth) distrust(state uint64, why error) {
	h.verdicts.Lock()
	defer h.verdicts.Unlock()
	if !h.db.Distrust(state, why) {
		return
	}
	r := &rebuilding{why: why, state: state}
	if before := h.rebuilding.Load(); before != nil {
		r.promised = before.promised
	}
	r.say("taking the state of another node")
	h.rebuilding.Store(r)
	h.log.Error("the state is wrong: this node serves nothing until it has taken another node's", "err", why)
	h.replace(why)
}

// replace lets the log take another node's state, if it is open.
func (h *stateHealth) replace(why error) {
	if raft, err := h.raft.get(); err == nil {
		raft.Rebuild(fmt.Errorf("%w: %w", consensus.ErrStateWrong, why))
	}
}

func (h *stateHealth) isRebuilding() bool {
	r := h.rebuilding.Load()
	return r != nil && !r.done.Load()
}

// rebuilt notes that the wrong state is replaced, unless the one in its place is known to be wrong too.
func (h *stateHealth) rebuilt() {
	h.verdicts.Lock()
	defer h.verdicts.Unlock()
	if r := h.rebuilding.Load(); r != nil && r.state < h.db.State() {
		r.done.Store(true)
	}
}

// await waits until a rebuilt state is no older than the one it replaces: nothing is served before.
func (h *stateHealth) await(ctx context.Context) error {
	r := h.rebuilding.Load()
	if r == nil {
		return nil
	}
	raft, err := h.raft.get()
	if err != nil {
		return err
	}
	if err := r.learnPromised(ctx, raft.ReadBarrier, raft.Err); err != nil {
		return err
	}
	if h.db.Index() < r.promised {
		r.say(fmt.Sprintf("applying the log up to %d", r.promised))
	}
	if err := raft.WaitApplied(ctx, r.promised); err != nil {
		return fmt.Errorf("node: rebuild: %w", err)
	}
	h.rebuilt()
	return nil
}

// rebuilding is why a state is remade and how far that is.
type rebuilding struct {
	why      error
	state    uint64 // the number of the wrong state, see meta.DB.State; 0: it was not opened
	promised uint64 // the damaged state had reached this index
	doing    atomic.Pointer[string]
	done     atomic.Bool
}

func (r *rebuilding) say(text string) { r.doing.Store(&text) }

// warning is what status says: also after the rebuild, until the next start, since a disk that damages one file may
// damage others. trouble is what the log says of the last try.
func (r *rebuilding) warning(trouble string) string {
	doing := "starting"
	if text := r.doing.Load(); text != nil {
		doing = *text
	}
	if trouble != "" {
		doing = trouble
	}
	if r.done.Load() {
		return fmt.Sprintf("the state was damaged, and was rebuilt (%s); check the disk and the memory of this machine: %v",
			doing, r.why)
	}
	return fmt.Sprintf("this node serves nothing while it rebuilds its state from the others: %v; now: %s", r.why, doing)
}

// learnPromised finds an index that is no older than the damaged state's, where that can't be read any more: what is
// committed now.
func (r *rebuilding) learnPromised(
	ctx context.Context, barrier func(context.Context) (uint64, error), failed func() error,
) error {
	for r.promised == 0 {
		r.say("asking the voters how far the log is")
		index, err := barrier(ctx)
		if err == nil {
			r.promised = index
			return nil
		}
		if err := errors.Join(ctx.Err(), failed()); err != nil {
			return fmt.Errorf("node: rebuild: %w", err)
		}
		pause(ctx, rebuildRetry)
	}
	return nil
}

// rebuildRetry is the pause between two questions about how far the log is.
const rebuildRetry = time.Second
