package fs

import (
	"context"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// Cluster is what the file system needs from the node it runs on. Implemented by internal/node.
type Cluster interface {
	replicate.Publisher
	replicate.Contents
	// Self is this node's lease: number and current incarnation.
	Self() meta.Lease
	// Names is the applied state of this node.
	Names() meta.Reader
	// Propose puts an operation into the log and returns its result once this node has applied it, so that
	// the caller sees its own writes. It is exactly-once. Errors: ErrReadOnly at once while there is no quorum (EROFS),
	// ErrUnknown when the outcome is not known after its time limit (EIO), as an UnknownError if it may be known later.
	Propose(ctx context.Context, op meta.Op) (meta.Result, error)
	// ProposePatient is Propose for what a close or fsync needs: ErrReadOnly comes when no quorum has answered for 25
	// s, since the node may be back any moment. Publish waits like it. It must not be called under a directory's lock.
	ProposePatient(ctx context.Context, op meta.Op) (meta.Result, error)
	// Settle waits, as Propose does, until the outcome of each earlier change of this node is known. It reports
	// whether it had to: names may have changed then. ErrReadOnly: some outcome stays unknown.
	Settle(ctx context.Context) (waited bool, err error)
	// Confirm returns nil if a quorum says, after the call began, that an incarnation of this node is up, and ErrFenced
	// if it is not. The applied state then has all that was acknowledged anywhere before the call.
	Confirm(ctx context.Context, l meta.Lease) error
	// TakesChanges returns nil if a quorum answers after the call began and this node may change something. It waits
	// for a leader like ProposePatient.
	TakesChanges(ctx context.Context) error
	// Show waits until each live node shows what is in the log up to index: the barrier of G3, bounded as there. It
	// returns the nodes that a leader has named as behind. An error means that this can't be known: no leader answers.
	// A patient caller waits for a leader like ProposePatient.
	Show(ctx context.Context, index uint64, patient bool) (behind []meta.NodeID, err error)
}
