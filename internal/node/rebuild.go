package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// openState opens the state. A damaged one is noted, to be rebuilt.
func (n *node) openState() (err error) {
	damaged, err := n.openDB()
	if err != nil {
		return err
	}
	n.formats = formats{db: n.db, version: n.cfg.Version, known: n.cfg.Host.formats()}
	n.health = &stateHealth{db: n.db, raft: &n.raft, log: n.log}
	n.health.rebuilding.Store(damaged)
	return nil
}

// openDB opens the database of the state. Instead of a damaged one it opens an empty one, and says what is to be
// rebuilt.
func (n *node) openDB() (damaged *rebuilding, err error) {
	if n.id.Recovering {
		return nil, fmt.Errorf("node: %w", ErrHalfRecovered)
	}
	damagedByRead := func(state uint64, why error) { n.health.distrust(state, why) } // nothing is read before there is one
	dir, opts := n.dir.path("state"), meta.Options{Log: n.log, Damaged: damagedByRead, Formats: n.cfg.Host.formats(),
		Raised: n.raised}
	n.db, err = n.cfg.Host.openState(dir, opts)
	if !errors.Is(err, meta.ErrDamaged) {
		if err == nil && n.db.Index() > 0 && n.db.Generation() != n.id.Generation {
			err = errors.Join(fmt.Errorf("node: %w", ErrHalfRecovered), n.db.Close())
		}
		return nil, err
	}
	n.log.Error("the state is damaged: this node serves nothing until it has taken another node's", "err", err)
	damaged = &rebuilding{why: err}
	n.db, damaged.promised, err = meta.OpenEmpty(dir, opts)
	return damaged, err
}

// rebuild remakes a damaged state. Meanwhile the command line reports why nothing else works.
func (n *node) rebuild() error {
	r := n.health.rebuilding.Load()
	if r == nil {
		return nil
	}
	server, err := n.serveAdmin(admin.Handlers{
		Status: func(context.Context) (admin.Status, error) { return n.rebuildStatus(), nil },
		Stop:   func(context.Context) error { n.life.cancel(); return nil },
	})
	if err != nil {
		return err
	}
	err = consensus.Rebuild(n.life.ctx, n.consensusConfig(),
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

func (n *node) rebuildStatus() admin.Status {
	st := n.about()
	st.State, st.Space, st.Unpublished = stateRebuilding, spaceOf(n.store, n.db), n.staging.list()
	st.Warnings = append(st.Warnings, n.health.rebuilding.Load().warning(""))
	return st
}
