package replicate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// Errors that callers act on.
var (
	// ErrUnknown is returned when a proposal's outcome is not known after the log's time limit. It is resolved from the
	// log later.
	ErrUnknown = errors.New("replicate: outcome not known yet")
	// ErrCopies is returned when fewer members than the policy's minimum hold the bytes; nothing was published.
	ErrCopies = errors.New("replicate: too few copies")
	// ErrCut is returned when bytes of a push went away before they were read; nothing was published.
	ErrCut = errors.New("replicate: the staged bytes were cut while they were read")
	// ErrNoSpace is returned when the local store has no room, or too few nodes have; nothing was published.
	ErrNoSpace = errors.New("replicate: no space")
	// ErrFenced is returned when this node's incarnation ended in mid-push and no newer one has begun.
	ErrFenced = errors.New("replicate: incarnation fenced")
	// ErrNoInode is returned when the inode of a new file is gone in mid-push, and nothing was published: a fence
	// freed its name, or a program removed it.
	ErrNoInode = errors.New("replicate: the new file has no inode any more")
	// ErrUnavailable is returned when no reachable node holds a content.
	ErrUnavailable = errors.New("replicate: no holder reachable")
	// ErrDamaged is returned when bytes do not match the root that the log committed.
	ErrDamaged = errors.New("replicate: bytes do not match the committed root")
	// ErrClosed is returned by calls after Close.
	ErrClosed = errors.New("replicate: closed")
)

// Kind says what a control message of this package is about. docs/WIRE.md lists them.
type Kind uint8

// Peers calls other nodes. Implemented over internal/control by internal/node.
type Peers interface {
	// Call sends one request and waits for its answer, ctx's end, or the loss of the connection. The request may have
	// been handled even when Call fails. Requests and answers are at most MaxMessageBytes long. The payload stays the
	// caller's after Call has returned.
	Call(ctx context.Context, node meta.NodeID, kind Kind, payload []byte) ([]byte, error)
}

// MovingPeers is implemented by Peers that can report how the bytes of a call move.
type MovingPeers interface {
	// CallMoving is Call for requests and answers of many bytes. moved is called from another goroutine, and no longer
	// once CallMoving has returned. It is called whenever bytes went that have to go before the call's end. These are
	// bytes of the request and of what is queued ahead of it, with how many of them are left (below 0: all, they wait
	// for room), or bytes of answers.
	CallMoving(ctx context.Context, node meta.NodeID, kind Kind, payload []byte, moved func(left int64)) ([]byte, error)
}

// callMoving calls with moved if the peers can report.
func callMoving(
	ctx context.Context, peers Peers, node meta.NodeID, kind Kind, payload []byte, moved func(left int64),
) ([]byte, error) {
	if p, ok := peers.(MovingPeers); ok {
		return p.CallMoving(ctx, node, kind, payload, moved)
	}
	return peers.Call(ctx, node, kind, payload)
}

// errSilent ends a call of which nothing moves.
var errSilent = errors.New("replicate: no bytes and no answer")

// callWhileMoving calls, and gives up when nothing of the call has moved for a while.
func callWhileMoving(
	ctx context.Context, cfg *Config, node meta.NodeID, kind Kind, payload []byte, idle time.Duration,
) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	beat := make(chan struct{}, 1)
	go func() {
		for {
			silent, stop := cfg.Clock.After(idle)
			select {
			case <-beat:
				stop()
			case <-silent:
				cancel(errSilent)
				return
			case <-ctx.Done():
				stop()
				return
			}
		}
	}()
	answer, err := callMoving(ctx, cfg.Peers, node, kind, payload, func(int64) {
		select {
		case beat <- struct{}{}:
		default:
		}
	})
	if err != nil && context.Cause(ctx) == errSilent {
		err = fmt.Errorf("%w for %v", errSilent, idle)
	}
	return answer, err
}

// Log proposes to the replicated log. Implemented over internal/consensus by internal/node.
type Log interface {
	// Propose puts an operation into the log and returns its result once this node has applied it. The same
	// proposal is repeated under its sequence number until the time limit, then the error wraps ErrUnknown. While the
	// log has no quorum it fails at once with an error of the log's own: nothing was proposed.
	Propose(ctx context.Context, op meta.Op) (meta.Result, error)
	// Barrier waits until each up member has made the index visible, and returns the members that had not in time. It
	// is not an error that some are behind. An error means that this cannot be known, since this node has no leader; it
	// comes after the log has waited for a leader for its time limit.
	Barrier(ctx context.Context, index uint64) (behind []meta.NodeID, err error)
}

// Store is the local store of contents: content.Store, or one that fails on command.
type Store interface {
	Begin(id content.ID, shape content.Shape) (*content.Receiving, error)
	BeginFrom(id, left content.ID, shape content.Shape) (r *content.Receiving, from bool, err error)
	Put(ctx context.Context, id content.ID, shape content.Shape, src io.ReaderAt) (content.Hash, error)
	Commit(id content.ID) error
	Abort(id content.ID) error
	Delete(id content.ID) error
	State(id content.ID) (content.State, bool)
	Stat(id content.ID) (content.Info, error)
	List(state content.State) []content.ID
	Damaged() []content.ID
	DamageFound() <-chan struct{}
	Whole(id content.ID, size int64) bool
	Check(ctx context.Context, id content.ID) (*content.Damage, error)
	Mend(ctx context.Context, id content.ID, i int64, p []byte) error
	Merge(ctx context.Context, id content.ID) error
	Open(id content.ID) (*content.Reader, error)
	OpenUndecided(id content.ID) (*content.Reader, error)
	Space() (content.Space, error)
}

var _ Store = (*content.Store)(nil)

func storeID(c meta.ContentID) content.ID { return content.ID(c.Bytes()) }

func metaID(id content.ID) meta.ContentID { return meta.ContentIDFromBytes(id) }

// Clock is where the shells of this package take the time from.
type Clock interface {
	Now() time.Time
	// After is like time.After; stop releases it early.
	After(d time.Duration) (c <-chan time.Time, stop func())
}

// SystemClock is the Clock of the machine.
func SystemClock() Clock { return systemClock{} }

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

func isNotFound(err error) bool { return errors.Is(err, meta.ErrNotFound) }
