package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// cluster is the node as the file system sees it.
type cluster struct {
	dataDir  string
	db       *meta.DB
	members  *members
	proposer *proposer
	raft     *lateRaft
	repl     *replicate.Replicator
	split    *splitState
}

var _ fs.Cluster = (*cluster)(nil)

// Self implements fs.Cluster.
func (c *cluster) Self() meta.Lease { return c.proposer.lease() }

// Names implements fs.Cluster.
func (c *cluster) Names() meta.Reader { return c.proposer.view(c.db) }

// Show implements fs.Cluster.
func (c *cluster) Show(ctx context.Context, index uint64, patient bool) ([]meta.NodeID, error) {
	raft, err := c.raft.get()
	if err != nil {
		return nil, err
	}
	behind, err := raft.Barrier(ctx, index, consensus.ProposeOptions{Patient: patient})
	return numbers(behind), err
}

// Confirm implements fs.Cluster.
func (c *cluster) Confirm(ctx context.Context, l meta.Lease) error {
	raft, err := c.raft.get()
	if err != nil {
		return err
	}
	if _, err := raft.ReadBarrier(ctx); err != nil {
		return readOnly(err)
	}
	rec, err := c.db.Node(l.Node)
	switch {
	case err != nil:
		return err
	case rec.State != meta.NodeUp || rec.Incarnation != l.Incarnation:
		return fs.ErrFenced
	}
	return nil
}

// TakesChanges implements fs.Cluster.
func (c *cluster) TakesChanges(ctx context.Context) error {
	raft, err := c.raft.get()
	if err != nil {
		return err
	}
	if _, err := raft.AwaitBarrier(ctx, consensus.ProposeOptions{Patient: true}); err != nil {
		return readOnly(err)
	}
	if why := c.changesRefused(raft.Status()); why != "" {
		return fmt.Errorf("%w: %s", fs.ErrReadOnly, why)
	}
	return nil
}

// Propose implements fs.Cluster.
func (c *cluster) Propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	return c.propose(ctx, op, consensus.ProposeOptions{Announce: showsNext(op)})
}

// ProposePatient implements fs.Cluster.
func (c *cluster) ProposePatient(ctx context.Context, op meta.Op) (meta.Result, error) {
	return c.propose(ctx, op, consensus.ProposeOptions{Announce: showsNext(op), Patient: true})
}

// Settle implements fs.Cluster.
func (c *cluster) Settle(ctx context.Context) (waited bool, err error) {
	waited, err = c.proposer.awaitKnown(ctx, c.proposer.lease(), false)
	return waited, readOnly(err)
}

func (c *cluster) propose(ctx context.Context, op meta.Op, opts consensus.ProposeOptions) (meta.Result, error) {
	if err := c.unsound(); err != nil {
		return meta.Result{}, fmt.Errorf("%w: %w", fs.ErrReadOnly, err)
	}
	if !c.db.SpaceFor(op) {
		return meta.Result{}, fmt.Errorf("node: the disk of %s is full: %w", c.dataDir, replicate.ErrNoSpace)
	}
	res, err := c.proposer.order(ctx, op, opts)
	return res, readOnly(err)
}

// unsound is why nothing may be changed by this node's mounts now: its state is wrong, or another sound state differs
// from it.
func (c *cluster) unsound() error {
	return errors.Join(c.db.Distrusted(), c.split.err())
}

// changesRefused is why this node's mounts can change nothing though there is a quorum.
func (c *cluster) changesRefused(log consensus.Status) string {
	if log.NoQuorum {
		return ""
	}
	if err := c.unsound(); err != nil {
		return err.Error()
	}
	switch {
	case !c.db.SpaceFor(&meta.Unlink{}):
		return "the disk of the data directory is full"
	case c.db.SpaceLow():
		return "the disk of the data directory is nearly full; files can still be removed"
	case log.ReadOnly != "" && log.Leader == log.ID:
		return log.ReadOnly
	case leaderReadOnly(log, time.Now()):
		return c.members.name(nodeOf(log.Leader)) + ", which leads, can't write its log: its disk is full or broken"
	}
	if c.proposer.lease().Incarnation == 0 {
		return notLetIn
	}
	return ""
}

// showsNext reports whether the file system waits, after an operation, until all nodes show it.
func showsNext(op meta.Op) bool {
	switch op := op.(type) {
	case *meta.Create:
		return op.Kind != meta.KindFile
	case *meta.Link, *meta.Unlink, *meta.Rmdir, *meta.Rename:
		return true
	}
	return false
}

// readOnly tells the file system that nothing can be changed now.
func readOnly(err error) error {
	if err != nil && !errors.Is(err, replicate.ErrUnknown) &&
		(errors.Is(err, consensus.ErrNoQuorum) || errors.Is(err, consensus.ErrReadOnly)) {
		return fmt.Errorf("%w: %w", fs.ErrReadOnly, err)
	}
	return err
}

// Publish implements fs.Cluster.
func (c *cluster) Publish(ctx context.Context, p replicate.Push) (replicate.Outcome, error) {
	if err := c.unsound(); err != nil {
		return replicate.Outcome{}, fmt.Errorf("%w: %w", fs.ErrReadOnly, err)
	}
	out, err := c.repl.Publish(ctx, p)
	return out, readOnly(err)
}

// OpenContent implements fs.Cluster.
func (c *cluster) OpenContent(ctx context.Context, id meta.ContentID) (replicate.ContentReader, error) {
	return c.repl.OpenContent(ctx, id)
}
