package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/newnames"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// kindReplicate is the kind of all calls of package replicate; its own kind is the first byte of the payload.
const kindReplicate = 1

// replicaPeers carries the calls of package replicate.
type replicaPeers struct{ peers *control.Peers }

// Call implements replicate.Peers.
func (p replicaPeers) Call(ctx context.Context, node meta.NodeID, kind replicate.Kind, payload []byte) ([]byte, error) {
	return p.peers.Call(ctx, uint32(node), kindReplicate, framed(kind, payload))
}

// CallMoving implements replicate.MovingPeers.
func (p replicaPeers) CallMoving(
	ctx context.Context, node meta.NodeID, kind replicate.Kind, payload []byte, moved func(left int64),
) ([]byte, error) {
	return p.peers.CallMoving(ctx, uint32(node), kindReplicate, framed(kind, payload), moved)
}

var _ replicate.MovingPeers = replicaPeers{}

func framed(kind replicate.Kind, payload []byte) []byte {
	return append(append(make([]byte, 0, 1+len(payload)), byte(kind)), payload...)
}

func (n *node) handleReplicate(ctx context.Context, from control.Caller, payload []byte) ([]byte, error) {
	if len(payload) == 0 {
		return nil, fmt.Errorf("node: empty call: %w", control.ErrProtocol)
	}
	return n.repl.Handle(ctx, meta.NodeID(from.Node), replicate.Kind(payload[0]), payload[1:])
}

// replicaLog is the log as package replicate sees it.
type replicaLog struct{ n *node }

// Propose implements replicate.Log.
func (l replicaLog) Propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	return l.n.newNames.Propose(ctx, op, l.n.proposer.with(forReplicate(op)))
}

// forReplicate says how an operation of package replicate is proposed. A publish, whose barrier comes next, waits for a
// quorum. A publish that gives a file its first name comes from link(2), which holds the directory's lock: it is
// refused like other changes of names.
func forReplicate(op meta.Op) consensus.ProposeOptions {
	publish, ok := op.(*meta.Publish)
	return consensus.ProposeOptions{Announce: ok, Patient: ok && publish.LinkName == ""}
}

// Barrier implements replicate.Log.
func (l replicaLog) Barrier(ctx context.Context, index uint64) ([]meta.NodeID, error) {
	raft, err := l.n.raft.get()
	if err != nil {
		return nil, err
	}
	behind, err := raft.Barrier(ctx, index, consensus.ProposeOptions{Announced: true, Patient: true})
	return numbers(behind), err
}

// cluster is the node as the file system sees it.
type cluster struct{ n *node }

var _ fs.Cluster = cluster{}

// Self implements fs.Cluster.
func (c cluster) Self() meta.Lease { return c.n.proposer.lease() }

// Names implements fs.Cluster.
func (c cluster) Names() meta.Reader { return c.n.newNames.View() }

// Show implements fs.Cluster.
func (c cluster) Show(ctx context.Context, index uint64, patient bool) ([]meta.NodeID, error) {
	raft, err := c.n.raft.get()
	if err != nil {
		return nil, err
	}
	behind, err := raft.Barrier(ctx, index, consensus.ProposeOptions{Patient: patient})
	return numbers(behind), err
}

// Confirm implements fs.Cluster.
func (c cluster) Confirm(ctx context.Context, l meta.Lease) error {
	raft, err := c.n.raft.get()
	if err != nil {
		return err
	}
	if _, err := raft.ReadBarrier(ctx); err != nil {
		return readOnly(err)
	}
	rec, err := c.n.db.Node(l.Node)
	switch {
	case err != nil:
		return err
	case rec.State != meta.NodeUp || rec.Incarnation != l.Incarnation:
		return fs.ErrFenced
	}
	return nil
}

// Propose implements fs.Cluster.
func (c cluster) Propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	return c.propose(ctx, op, consensus.ProposeOptions{Announce: showsNext(op)})
}

// ProposePatient implements fs.Cluster.
func (c cluster) ProposePatient(ctx context.Context, op meta.Op) (meta.Result, error) {
	return c.propose(ctx, op, consensus.ProposeOptions{Announce: showsNext(op), Patient: true})
}

// newNamesOf makes the part of a node that gives names by itself.
func newNamesOf(n *node) *newnames.Holder {
	return newnames.New(n.ctx, newnames.Config{State: n.db, Self: n.proposer.lease, Log: n.proposer.propose,
		Confirm: cluster{n}.Confirm, Settled: n.proposer.isSettled, Settle: n.proposer.settleAll, Now: time.Now,
		Awake: n.cfg.Host.awake, Changed: func(events []meta.Event) { n.mounts.apply(events) }, Logger: n.log})
}

// Settle implements fs.Cluster.
func (c cluster) Settle(ctx context.Context) (waited bool, err error) {
	waited, err = c.n.proposer.awaitKnown(ctx, c.n.proposer.lease(), false)
	return waited, readOnly(err)
}

func (c cluster) propose(ctx context.Context, op meta.Op, opts consensus.ProposeOptions) (meta.Result, error) {
	if err := c.unsound(); err != nil {
		return meta.Result{}, fmt.Errorf("%w: %w", fs.ErrReadOnly, err)
	}
	if !c.n.db.SpaceFor(op) {
		return meta.Result{}, fmt.Errorf("node: the disk of %s is full: %w", c.n.cfg.DataDir, replicate.ErrNoSpace)
	}
	res, err := c.n.newNames.Propose(ctx, op, c.n.proposer.with(opts))
	return res, readOnly(err)
}

// unsound is why nothing may be changed by this node's mounts now: its state is wrong, or another sound state differs
// from it.
func (c cluster) unsound() error {
	return errors.Join(c.n.db.Distrusted(), c.n.digests.split.err())
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
func (c cluster) Publish(ctx context.Context, p replicate.Push) (replicate.Outcome, error) {
	if err := c.unsound(); err != nil {
		return replicate.Outcome{}, fmt.Errorf("%w: %w", fs.ErrReadOnly, err)
	}
	out, err := c.n.repl.Publish(ctx, p)
	return out, readOnly(err)
}

// OpenContent implements fs.Cluster.
func (c cluster) OpenContent(ctx context.Context, id meta.ContentID) (replicate.ContentReader, error) {
	return c.n.repl.OpenContent(ctx, id)
}

// decodeHash reads 64 hex digits that init wrote; anything else is zero, which no token has.
func decodeHash(s string) (out [32]byte) {
	half := len(s) / 2
	lo, hi := decodeID(s[:half]), decodeID(s[half:])
	copy(out[:], lo[:])
	copy(out[16:], hi[:])
	return out
}
