package fs

import (
	"context"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// namespace is the cluster's names as this mount reads and changes them: reads are of the applied state of this node,
// changes go through the log.
type namespace struct {
	cluster Cluster
	life    *lifetime
	log     *slog.Logger
	reads   bool // it changes nothing, even if somebody remounts it for writing

	own     *ownChanges
	barrier barrier
}

func newNamespace(c Cluster, life *lifetime, log *slog.Logger) *namespace {
	return &namespace{cluster: c, life: life, log: log, own: new(ownChanges)}
}

// state is the applied state of this node.
func (ns *namespace) state() meta.Reader { return ns.cluster.Names() }

// settle waits until it is known what earlier changes did that were answered with EIO. A program whose unlink or rename
// failed in this way may go on and write the file under that name: the change must come first, or it would take away
// the name of what is written now. ESTALE makes the kernel look the name up again.
func (ns *namespace) settle(ctx context.Context, n *node) syscall.Errno {
	waited, err := ns.cluster.Settle(ctx)
	switch {
	case err != nil:
		return fail(ns.log, "open", n.ino(), err)
	case waited:
		return syscall.ESTALE
	}
	return 0
}

// proposeMax bounds a proposal whatever the cluster does; it has a shorter limit of its own.
const proposeMax = time.Minute

// propose puts an operation into the log and waits for it, at most proposeMax.
func (ns *namespace) propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	return ns.proposeBy(ns.cluster.Propose, ctx, op)
}

// proposePatient is propose for what an open file needs: it waits for a quorum.
func (ns *namespace) proposePatient(ctx context.Context, op meta.Op) (meta.Result, error) {
	return ns.proposeBy(ns.cluster.ProposePatient, ctx, op)
}

func (ns *namespace) proposeBy(
	do func(context.Context, meta.Op) (meta.Result, error), ctx context.Context, op meta.Op,
) (meta.Result, error) {
	if ns.reads {
		return meta.Result{}, fmt.Errorf("fs: a mount with follow changes nothing: %w", syscall.EROFS)
	}
	ctx, stop := context.WithTimeout(ctx, proposeMax)
	defer stop()
	res, err := do(ctx, op)
	if err == nil {
		raise(&ns.barrier.changed, res.Index)
	}
	return res, err
}

// outcome is the errno of a proposal.
func (ns *namespace) outcome(what string, ino meta.Ino, res meta.Result, err error) syscall.Errno {
	if err != nil {
		return fail(ns.log, what, ino, err)
	}
	return known(res.Errno)
}

// refresh reads a record again; it stays as it was when it is gone.
func (ns *namespace) refresh(rec meta.Inode) (meta.Inode, error) {
	now, err := ns.state().Inode(rec.Ino)
	if err != nil {
		return rec, err
	}
	return now, nil
}

// path is the name of an inode for progress and lists of the unpublished.
func (ns *namespace) path(rec meta.Inode) string {
	const depthMax = 64
	path := rec.Name
	for range depthMax {
		if rec.Parent == 0 || rec.Parent == meta.RootIno {
			break
		}
		up, err := ns.state().Inode(rec.Parent)
		if err != nil {
			break
		}
		path = up.Name + "/" + path
		rec = up
	}
	return "/" + path
}

// leaseEnded reports whether an incarnation of this node has ended.
func (ns *namespace) leaseEnded(lease meta.Lease) bool {
	if ns.cluster.Self() != lease {
		return true
	}
	rec, err := ns.state().Node(lease.Node)
	return err != nil || rec.State != meta.NodeUp || rec.Incarnation != lease.Incarnation
}
