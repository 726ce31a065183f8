package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// ErrNoCopy means that a damaged state can't be remade: no other node has one, and the log does not reach back to the beginning.
var ErrNoCopy = errors.New("consensus: no other node has the state, and the log does not hold all of it any more: restore the data directory from a backup")

const (
	// rebuildPatience is how long the other nodes are asked before a log that holds everything is applied again.
	rebuildPatience = 10 * time.Second
	rebuildPause    = time.Second // between two rounds of asking
)

// RebuildOptions say how to remake a state.
type RebuildOptions struct {
	// Promised is the index that the lost state had reached. An observer takes no older one, since it has no log to go on from.
	Promised uint64
	// StartOver makes the state machine that of index 0, durably.
	StartOver func() error
	// Say hears what is being done and what went wrong, for status.
	Say func(text string)
}

// Rebuild replaces a state machine that has lost its state, before Open: by a snapshot of another node, or from this node's own log if
// that still holds everything. The log is kept, and so is what this node has promised with it. Rebuild tries until ctx ends or it is
// clear that nobody has the state.
func Rebuild(ctx context.Context, cfg Config, opts RebuildOptions) error {
	disk, state, err := raftlog.Open(cfg.logOptions())
	if err != nil {
		return fmt.Errorf("consensus: rebuild: %w", err)
	}
	r := &rebuilder{n: newNode(cfg), disk: disk, state: state, opts: opts}
	defer r.n.cancel(ErrClosed)
	err = r.run(ctx)
	return errors.Join(err, disk.Close())
}

type rebuilder struct {
	n     *Node // not started: it only dials
	disk  *raftlog.Log
	state *raftlog.State
	opts  RebuildOptions
}

func (r *rebuilder) run(ctx context.Context) error {
	member := contains(raftMembersOf(r.state.Base.Conf), r.n.id)
	whole := member && r.state.Base.Index == 0
	least := r.opts.Promised
	if member {
		least = r.state.Base.Index // the log goes on from there
	}
	for began := time.Now(); ; {
		peers := r.peers()
		for _, peer := range peers {
			r.opts.Say(fmt.Sprintf("taking the state of node %d", peer>>32))
			err := r.take(ctx, peer, least)
			if err == nil {
				return nil
			}
			r.n.log.Warn("rebuild", "peer", fmt.Sprintf("%x", peer), "error", err)
			r.opts.Say(fmt.Sprintf("node %d: %v", peer>>32, err))
		}
		switch {
		case whole && (len(peers) == 0 || time.Since(began) > rebuildPatience):
			r.opts.Say("applying this node's own log from its beginning")
			return r.opts.StartOver()
		case len(peers) == 0:
			return ErrNoCopy
		}
		r.n.pause(ctx.Done(), rebuildPause)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// peers are the other nodes, voters first.
func (r *rebuilder) peers() []ID {
	ids := votersOf(r.state.Base.Conf)
	for _, id := range append(raftMembersOf(r.state.Base.Conf), r.n.peers()...) {
		if !contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return slices.DeleteFunc(ids, func(id ID) bool { return id == r.n.id || id == 0 })
}

// take replaces the state by a peer's, if that is not below least. The log learns of it before, as in fetchSnapshot.
func (r *rebuilder) take(ctx context.Context, peer ID, least uint64) error {
	conn, head, err := r.n.openSnapshot(ctx, peer)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if head.index < least {
		return fmt.Errorf("consensus: snapshot of %x is at %d, %d is needed", peer, head.index, least)
	}
	base := head.base()
	if err := r.disk.Append(&raftlog.Batch{Intent: &base}); err != nil {
		return err
	}
	if err := r.n.cfg.StateMachine.Restore(head.index, head.term, &chunkReader{conn: conn}); err != nil {
		return err
	}
	r.n.log.Info("state rebuilt", "peer", fmt.Sprintf("%x", peer), "index", head.index)
	return nil
}
