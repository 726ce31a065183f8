package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/durable"
	"github.com/rdmcfs/rdmcfs/meta"
)

// A node whose state is damaged serves nothing. It takes the state of another node; its log, its votes, its contents
// and its unpublished files stay, as none of them is in the state.

// stateRebuilding is the state of such a node, as status shows it.
const stateRebuilding = "rebuilding"

// rebuilding is why a state is remade and how far that is.
type rebuilding struct {
	why      error
	state    uint64 // the number of the wrong state, see meta.DB.State; 0: it was not opened
	promised uint64 // the damaged state had reached this index
	doing    atomic.Pointer[string]
	done     atomic.Bool
}

func (r *rebuilding) say(text string) { r.doing.Store(&text) }

func (n *node) isRebuilding() bool {
	r := n.rebuilding.Load()
	return r != nil && !r.done.Load()
}

// rebuilt notes that the wrong state is replaced, unless the one in its place is known to be wrong too.
func (n *node) rebuilt() {
	n.verdicts.Lock()
	defer n.verdicts.Unlock()
	if r := n.rebuilding.Load(); r != nil && r.state < n.db.State() {
		r.done.Store(true)
	}
}

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

// openState opens the state. A damaged one is noted, to be rebuilt.
func (n *node) openState() (err error) {
	if n.id.Recovering {
		return fmt.Errorf("node: %w", ErrHalfRecovered)
	}
	dir, opts := n.dir.path("state"), meta.Options{Log: n.log}
	n.db, err = n.cfg.Host.openState(dir, opts)
	if !errors.Is(err, meta.ErrDamaged) {
		if err == nil && n.db.Index() > 0 && n.db.Generation() != n.id.Generation {
			err = errors.Join(fmt.Errorf("node: %w", ErrHalfRecovered), n.db.Close())
		}
		return err
	}
	n.log.Error("the state is damaged: this node serves nothing until it has taken another node's", "err", err)
	r := &rebuilding{why: err}
	n.rebuilding.Store(r)
	n.db, r.promised, err = meta.OpenEmpty(dir, opts)
	return err
}

// rebuild remakes a damaged state. Meanwhile the command line reports why nothing else works.
func (n *node) rebuild() error {
	r := n.rebuilding.Load()
	if r == nil {
		return nil
	}
	server, err := n.serveAdmin(admin.Handlers{
		Status: func(context.Context) (admin.Status, error) { return n.rebuildStatus(), nil },
		Stop:   func(context.Context) error { n.cancel(); return nil },
	})
	if err != nil {
		return err
	}
	err = consensus.Rebuild(n.ctx, n.consensusConfig(),
		consensus.RebuildOptions{Promised: r.promised, Say: r.say, StartOver: n.db.StartOver})
	if err := errors.Join(err, server.Close()); err != nil {
		return fmt.Errorf("node: rebuild: %w: %w", r.why, err)
	}
	if err := n.members.refresh(); err != nil {
		return err
	}
	n.log.Info("the damaged state is replaced", "index", n.db.Index(), "was", r.promised)
	return nil
}

// awaitRebuilt waits until a rebuilt state is no older than the one it replaces: nothing is served before.
func (n *node) awaitRebuilt() error {
	r := n.rebuilding.Load()
	if r == nil {
		return nil
	}
	raft, err := n.raft.get()
	if err != nil {
		return err
	}
	if err := r.learnPromised(n.ctx, raft.ReadBarrier, raft.Err); err != nil {
		return err
	}
	if n.db.Index() < r.promised {
		r.say(fmt.Sprintf("applying the log up to %d", r.promised))
	}
	if err := raft.WaitApplied(n.ctx, r.promised); err != nil {
		return fmt.Errorf("node: rebuild: %w", err)
	}
	n.rebuilt()
	return nil
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

func (n *node) rebuildStatus() admin.Status {
	st := admin.Status{
		Version: n.cfg.Version, Cluster: n.id.Cluster, Generation: n.id.Generation, Node: uint32(n.id.Node), Name: n.id.Name,
		Listen: n.id.Listen, State: stateRebuilding, Started: n.started, Fabric: n.device.String(), Space: n.space(),
		Unpublished: n.unpublished(),
	}
	st.Warnings = append(st.Warnings, n.rebuilding.Load().warning(""))
	return st
}

// peersFile holds where the other nodes are, for a node that has no state to read it from.
const peersFile = "peers.json"

// loadPeers adds the nodes of the peers file to those of the join.
func (d dataDir) loadPeers(joined map[meta.NodeID]peerAddr) map[meta.NodeID]peerAddr {
	out := map[meta.NodeID]peerAddr{}
	maps.Copy(out, joined)
	var known map[meta.NodeID]peerAddr
	if raw, err := os.ReadFile(d.path(peersFile)); err == nil && json.Unmarshal(raw, &known) == nil {
		maps.Copy(out, known)
	}
	return out
}

// keepPeers writes the peers file if another node came, moved or went.
func (n *node) keepPeers() {
	now := map[meta.NodeID]peerAddr{}
	for id, rec := range n.members.book().nodes {
		if id != n.id.Node && rec.Addr != "" && rec.State != meta.NodeEvicted {
			now[id] = peerAddr{Addr: rec.Addr, Store: fmt.Sprintf("%x", rec.Store)}
		}
	}
	if maps.Equal(now, n.keptPeers) {
		return
	}
	raw, err := json.MarshalIndent(now, "", "  ")
	if err == nil {
		err = durable.WriteFile(n.dir.path(peersFile), append(raw, '\n'))
	}
	if err != nil {
		n.log.Warn("peers file", "err", err)
		return
	}
	n.keptPeers = now
}
