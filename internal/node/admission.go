package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
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

// admission is how this node is let in by the cluster: at its start, whenever the log has ended its incarnation, and
// from a new address.
type admission struct {
	id        identity
	db        *meta.DB
	members   *members
	peers     *control.Peers
	raft      *lateRaft
	proposer  *proposer
	anonymous anonymous
	evicted   func() error // the end of a node that was evicted, with what is in its data directory
	life      *lifetime
	log       *slog.Logger

	putOut      atomic.Bool // a peer says that this node was evicted
	addressTold time.Time   // when this node's address was last sent to the others
}

// enterPatience is how long a start waits for the cluster before it goes on cut off: reads work then.
const enterPatience = 10 * time.Second

// enter makes a new incarnation of this node in the log. Without a quorum the node goes on cut off, and stayIn goes on
// trying. settle makes known what this node is ready for.
func (a *admission) enter(settle func(context.Context)) error {
	ctx, cancel := context.WithTimeout(a.life.ctx, enterPatience)
	defer cancel()
	if a.members.evicted(uint32(a.id.Node)) {
		return a.evicted()
	}
	if old, moved := a.movedFrom(); moved && a.peers.Twin(ctx, old) {
		return fmt.Errorf("node: %w", ErrCloned)
	}
	err := a.boot(ctx)
	if isFinal(err) {
		return err
	}
	if err != nil {
		if why := a.raft.status().Diverged; why != "" {
			err = errors.New(why)
		}
		a.log.Warn("cut off: no quorum of voters lets this node in; reads work, changes do not", "err", err)
		return a.life.ctx.Err()
	}
	settle(ctx) // what is not taken in time is reported as behind
	return a.life.ctx.Err()
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
func (a *admission) boot(ctx context.Context) error {
	var raw [8]byte
	rand.Read(raw[:])
	op := &meta.Boot{Node: a.id.Node, Store: a.id.store(), Addr: a.id.Advertise}
	number := coder.Reader(raw[:], coder.Big)
	number.U64(&op.Nonce)
	for {
		err := a.bootOnce(ctx, op)
		if err == nil || isFinal(err) {
			return err
		}
		if a.putOut.Load() { // those who refuse this node have said why
			return a.evicted()
		}
		if _, moved := a.movedFrom(); moved {
			a.askIn(ctx, op)
		}
		a.tellAddress()
		if !pause(ctx, bootRetry) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

func (a *admission) bootOnce(ctx context.Context, op *meta.Boot) error {
	if a.id.Founder {
		if err := a.found(ctx); err != nil {
			return err
		}
	}
	res, err := a.anonymous.propose(ctx, op)
	switch {
	case err != nil:
		return err
	case res.Errno == syscall.EEXIST:
		return fmt.Errorf("node: %w", ErrStoreReplaced)
	case res.Errno == syscall.EPERM || res.Errno == syscall.ENOENT:
		return a.evicted()
	case res.Errno != 0:
		return fmt.Errorf("node: boot: %w", res.Errno)
	}
	a.proposer.beginIncarnation(res.Incarnation)
	a.log.Info("the cluster let this node in", "incarnation", res.Incarnation, "index", res.Index)
	return nil
}

// found puts the first node and its token into an empty log, again until the node has booted: a start may have been
// cut short between the two.
func (a *admission) found(ctx context.Context) error {
	if rec, err := a.db.Node(a.id.Node); err == nil && rec.State != meta.NodeJoined {
		return nil
	}
	res, err := a.anonymous.propose(ctx, &meta.Join{Name: orDefault(a.id.Name, "node1"), Addr: a.id.Advertise,
		Labels: a.id.Labels})
	if err == nil && res.Errno != 0 && res.Errno != syscall.EACCES { // EACCES: it is there already
		err = res.Errno
	}
	if err != nil {
		return fmt.Errorf("node: found the cluster: %w", err)
	}
	res, err = a.anonymous.propose(ctx, &meta.AddToken{Hash: decodeHash(a.id.TokenHash), Expires: a.id.TokenExpires,
		Uses: FirstTokenUses})
	if err == nil && res.Errno != 0 && res.Errno != syscall.EEXIST {
		err = res.Errno
	}
	if err != nil {
		return fmt.Errorf("node: first join token: %w", err)
	}
	return nil
}

// stayIn makes a new incarnation whenever the log has ended the current one although this node lives.
func (a *admission) stayIn(ctx context.Context) {
	var overtaken Overtaken
	for range ticks(ctx, bootRetry) {
		rec, ok := a.members.book().nodes[a.id.Node]
		lease := a.proposer.lease()
		switch {
		case a.members.evicted(uint32(a.id.Node)), a.putOut.Load():
			a.life.fail(a.evicted())
			return
		case a.raft.status().NoQuorum:
			a.tellAddress()
			continue
		case ok && rec.State == meta.NodeUp && rec.Incarnation == lease.Incarnation:
			continue
		case rec.Incarnation > lease.Incarnation && lease.Incarnation > 0 && overtaken.Cloned(time.Now()):
			a.life.fail(fmt.Errorf("node: %w", ErrCloned))
			return
		}
		if err := a.boot(ctx); isFinal(err) {
			a.life.fail(err)
			return
		}
	}
}

// dialRaft makes a connection to a peer for the log. A node that was evicted while it was away, or on its way from
// voter to follower, learns of that only because peers refuse it: no entry of the log comes to it any more.
func (a *admission) dialRaft(ctx context.Context, peer consensus.ID) (net.Conn, error) {
	conn, err := a.peers.DialRaft(ctx, uint32(nodeOf(peer)))
	if errors.Is(err, credentials.ErrEvicted) {
		a.putOut.Store(true)
	}
	if errors.Is(err, control.ErrUnknownPeer) && a.members.evicted(uint32(nodeOf(peer))) {
		err = errors.Join(consensus.ErrPeerGone, err)
	}
	return conn, err
}

// decodeHash reads 64 hex digits that init wrote; anything else is zero, which no token has.
func decodeHash(s string) (out [32]byte) {
	half := len(s) / 2
	lo, hi := decodeID(s[:half]), decodeID(s[half:])
	copy(out[:], lo[:])
	copy(out[16:], hi[:])
	return out
}
