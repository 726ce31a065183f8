package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

// Errors of a node that the cluster does not let in.
var (
	// ErrStoreReplaced means that the log knows another store under this node's number.
	ErrStoreReplaced = errors.New("the cluster knows another data directory under this node's name: this one was " +
		"replaced, or is a copy; remove it and join again")
	// ErrEvicted means that the node was removed for good.
	ErrEvicted = errors.New("this node was evicted")
	// ErrCloned means that another process runs as this node.
	ErrCloned = errors.New("another machine runs as this node, from a copy of its data directory: stop one of them; " +
		"let the copy join anew")
)

// enterPatience is how long a start waits for the cluster before it goes on cut off: reads work then.
const enterPatience = 10 * time.Second

// enter makes a new incarnation of this node in the log. Without a quorum the node goes on cut off, and stayIn goes on
// trying.
func (n *node) enter() error {
	ctx, cancel := context.WithTimeout(n.ctx, enterPatience)
	defer cancel()
	if n.members.evicted(uint32(n.id.Node)) {
		return n.wasEvicted()
	}
	if old, moved := n.movedFrom(); moved && n.peers.Twin(ctx, old) {
		return fmt.Errorf("node: %w", ErrCloned)
	}
	err := n.boot(ctx)
	if isFinal(err) {
		return err
	}
	if err != nil {
		if why := n.raft.status().Diverged; why != "" {
			err = errors.New(why)
		}
		n.log.Warn("cut off: no quorum of voters lets this node in; reads work, changes do not", "err", err)
		return n.ctx.Err()
	}
	n.repl.Settle(ctx) // what is not taken in time is reported as behind
	return n.ctx.Err()
}

// isFinal reports whether the log has refused this node for good, or must not be used.
func isFinal(err error) bool {
	for _, final := range []error{ErrStoreReplaced, ErrEvicted, ErrCloned, consensus.ErrLogShort, consensus.ErrSafety} {
		if errors.Is(err, final) {
			return true
		}
	}
	return false
}

// boot proposes until the log has taken or refused this node.
func (n *node) boot(ctx context.Context) error {
	var raw [8]byte
	rand.Read(raw[:])
	op := &meta.Boot{Node: n.id.Node, Store: n.id.store(), Addr: n.id.Advertise}
	number := coder.Reader(raw[:], coder.Big)
	number.U64(&op.Nonce)
	for {
		err := n.bootOnce(ctx, op)
		if err == nil || isFinal(err) {
			return err
		}
		if n.putOut.Load() { // those who refuse this node have said why
			return n.wasEvicted()
		}
		if _, moved := n.movedFrom(); moved {
			n.askIn(ctx, op)
		}
		tellAddress(n)
		if !pause(ctx, bootRetry) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

func (n *node) bootOnce(ctx context.Context, op *meta.Boot) error {
	if n.id.Founder {
		if err := n.found(ctx); err != nil {
			return err
		}
	}
	res, err := n.proposeAnonymous(ctx, op)
	switch {
	case err != nil:
		return err
	case res.Errno == syscall.EEXIST:
		return fmt.Errorf("node: %w", ErrStoreReplaced)
	case res.Errno == syscall.EPERM || res.Errno == syscall.ENOENT:
		return n.wasEvicted()
	case res.Errno != 0:
		return fmt.Errorf("node: boot: %w", res.Errno)
	}
	n.proposer.beginIncarnation(res.Incarnation)
	n.log.Info("the cluster let this node in", "incarnation", res.Incarnation, "index", res.Index)
	return nil
}

// found puts the first node and its token into an empty log, again until the node has booted: a start may have been
// cut short between the two.
func (n *node) found(ctx context.Context) error {
	if rec, err := n.db.Node(n.id.Node); err == nil && rec.State != meta.NodeJoined {
		return nil
	}
	res, err := n.proposeAnonymous(ctx, &meta.Join{Name: orDefault(n.id.Name, "node1"), Addr: n.id.Advertise,
		Labels: n.id.Labels})
	if err == nil && res.Errno != 0 && res.Errno != syscall.EACCES { // EACCES: it is there already
		err = res.Errno
	}
	if err != nil {
		return fmt.Errorf("node: found the cluster: %w", err)
	}
	res, err = n.proposeAnonymous(ctx, &meta.AddToken{Hash: decodeHash(n.id.TokenHash), Expires: n.id.TokenExpires,
		Uses: FirstTokenUses})
	if err == nil && res.Errno != 0 && res.Errno != syscall.EEXIST {
		err = res.Errno
	}
	if err != nil {
		return fmt.Errorf("node: first join token: %w", err)
	}
	return nil
}

// proposeAnonymous orders an operation that is harmless to repeat and needs no incarnation.
func (n *node) proposeAnonymous(ctx context.Context, op meta.Op) (meta.Result, error) {
	data := meta.EncodeEntry(meta.Entry{Node: n.id.Node, Generation: n.id.Generation, Op: op})
	out, err := n.raft.Propose(ctx, data, consensus.ProposeOptions{})
	if err != nil {
		return meta.Result{}, err
	}
	res, ok := out.Result.(meta.Result)
	if !ok {
		return res, fmt.Errorf("node: %T: no result: %w", op, consensus.ErrUnknown)
	}
	return res, nil
}

// stayIn makes a new incarnation whenever the log has ended the current one although this node lives.
func (n *node) stayIn(ctx context.Context) {
	var overtaken Overtaken
	for range ticks(ctx, bootRetry) {
		rec, ok := n.members.book().nodes[n.id.Node]
		lease := n.proposer.lease()
		switch {
		case n.members.evicted(uint32(n.id.Node)), n.putOut.Load():
			n.fail(n.wasEvicted())
			return
		case n.raft.status().NoQuorum:
			tellAddress(n)
			continue
		case ok && rec.State == meta.NodeUp && rec.Incarnation == lease.Incarnation:
			continue
		case rec.Incarnation > lease.Incarnation && lease.Incarnation > 0 && overtaken.Cloned(time.Now()):
			n.fail(fmt.Errorf("node: %w", ErrCloned))
			return
		}
		if err := n.boot(ctx); isFinal(err) {
			n.fail(err)
			return
		}
	}
}

// fail ends the node because of an error.
func (n *node) fail(err error) {
	n.log.Error("node must end", "err", err)
	n.failure.CompareAndSwap(nil, &err)
	n.cancel()
}
