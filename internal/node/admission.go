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
	"github.com/rdmcfs/rdmcfs/internal/format"
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
		"let the copy join again")
)

// errBehind means that this node has had an incarnation which the state here does not know yet.
var errBehind = errors.New("a later incarnation than the one that is known here")

// errOtherStore means that peers refuse this node's store. They may be wrong: what they know may be old.
var errOtherStore = errors.New("they know another data directory under this node's name: it was replaced or is a " +
	"copy, or they are behind the log; see 'rdmcfs status' of the leader before you remove it")

// admission is how this node is let in by the cluster: at its start, whenever the log has ended its incarnation, and
// from a new address.
type admission struct {
	id        identity
	formats   formats
	db        *meta.DB
	members   *members
	peers     *control.Peers
	raft      *lateRaft
	proposer  *proposer
	anonymous anonymous
	evicted   func() error // the end of a node that was evicted, with what is in its data directory
	life      *lifetime
	log       *slog.Logger

	look        chan struct{}         // buffered 1: stayIn looks at once
	putOut      atomic.Bool           // a peer says that this node was evicted
	outdated    atomic.Pointer[error] // a peer says that the program is too old or too new
	addressTold time.Time             // when this node's address was last sent to the others
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
	err := a.boot(ctx)
	if isFinal(err) {
		return err
	}
	if err != nil {
		if st := a.raft.status(); st.Diverged != "" {
			err = errors.New(st.Diverged)
		} else if len(st.RefusedBy) > 0 {
			err = errOtherStore
		}
		a.log.Warn("cut off: no quorum of voters lets this node in; reads work, changes do not", "err", err)
		return a.life.ctx.Err()
	}
	settle(ctx) // what is not taken in time is reported as behind
	return a.life.ctx.Err()
}

// refuseTwin refuses to start beside a process that runs as this node at the address that the log knows. It is called
// before this one listens: the two addresses may be names of one machine.
func (a *admission) refuseTwin() error {
	if old, moved := a.movedFrom(); moved && a.peers.Twin(a.life.ctx, old) {
		return fmt.Errorf("node: %w", ErrCloned)
	}
	return nil
}

// isFinal reports whether the log has refused this node for good, or must not be used.
func isFinal(err error) bool {
	for _, final := range []error{ErrStoreReplaced, ErrEvicted, ErrCloned, consensus.ErrLogShort, consensus.ErrSafety,
		format.ErrUnknown} {
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
	op := &meta.Boot{Node: a.id.Node, Store: a.id.store(), Addr: a.id.Advertise, Next: a.nextIncarnation(),
		Program: a.formats.program()}
	number := coder.Reader(raw[:], coder.Big)
	number.U64(&op.Nonce)
	for {
		err := a.bootOnce(ctx, op)
		if err == nil || isFinal(err) {
			return err
		}
		if errors.Is(err, errBehind) {
			continue
		}
		if a.putOut.Load() { // those who refuse this node have said why
			return a.evicted()
		}
		if why := a.outdated.Load(); why != nil {
			return *why
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

// nextIncarnation follows the node's last one as far as the state here knows.
func (a *admission) nextIncarnation() uint64 {
	rec, err := a.db.Node(a.id.Node)
	if err != nil {
		return 1
	}
	return uint64(rec.Incarnation) + 1
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
	case res.Errno == syscall.EAGAIN:
		op.Next = uint64(res.Incarnation) + 1
		return errBehind
	case res.Errno == syscall.EEXIST:
		return fmt.Errorf("node: %w", ErrStoreReplaced)
	case res.Errno == syscall.EPERM || res.Errno == syscall.ENOENT:
		return a.evicted()
	case res.Errno == syscall.EPROTONOSUPPORT:
		return fmt.Errorf("node: %w", a.formats.refused())
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
		Labels: a.id.Labels, Program: a.formats.program()})
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

// stayLook is how often stayIn looks whether there is a quorum, while the cluster has let this node in.
const stayLook = time.Second

// stayIn makes a new incarnation whenever the log has ended the current one although this node lives. A later
// incarnation that this process did not ask for is of a process that knew this one's: it lives, or lived until a moment
// ago, from a copy of this data directory.
func (a *admission) stayIn(ctx context.Context) {
	for wait := bootRetry; a.looks(ctx, wait); {
		wait = bootRetry
		rec, ok := a.members.book().nodes[a.id.Node]
		lease := a.proposer.lease()
		switch {
		case a.members.evicted(uint32(a.id.Node)), a.putOut.Load():
			a.life.fail(a.evicted())
			return
		case a.outdated.Load() != nil:
			a.life.fail(*a.outdated.Load())
			return
		case a.raft.status().NoQuorum:
			a.tellAddress()
			continue
		case ok && rec.State == meta.NodeUp && rec.Incarnation == lease.Incarnation:
			wait = stayLook
			continue
		case rec.Incarnation > lease.Incarnation && lease.Incarnation > 0:
			a.life.fail(fmt.Errorf("node: %w", ErrCloned))
			return
		}
		if err := a.boot(ctx); isFinal(err) {
			a.life.fail(err)
			return
		}
	}
}

// looks waits until stayIn is to look again: for a time, or until there is news. It returns false if ctx ends before.
func (a *admission) looks(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-a.look:
	case <-timer.C:
	}
	return true
}

// dialRaft makes a connection to a peer for the log. A node that was evicted while it was away, or on its way from
// voter to follower, learns of that only because peers refuse it: no entry of the log comes to it any more.
func (a *admission) dialRaft(ctx context.Context, peer consensus.ID) (net.Conn, error) {
	conn, err := a.peers.DialRaft(ctx, uint32(nodeOf(peer)))
	if errors.Is(err, credentials.ErrEvicted) {
		a.putOut.Store(true)
		signalAlarm(a.look)
	}
	if errors.Is(err, format.ErrUnknown) {
		why := fmt.Errorf("node: %w", err)
		a.outdated.Store(&why)
		signalAlarm(a.look)
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
