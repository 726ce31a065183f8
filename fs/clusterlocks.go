package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/clusterlock"
	"github.com/rdmcfs/rdmcfs/internal/filelock"
	"github.com/rdmcfs/rdmcfs/meta"
)

// ErrOtherLocks says that a mount wants other locks than those that its node has already.
var ErrOtherLocks = errors.New("all mounts of a node have the same locks: unmount the others first")

// ErrFenced says that an incarnation of a node is not up any more.
var ErrFenced = clusterlock.ErrEnded

// lockLog is the log as the locks of a node see it.
type lockLog struct {
	s       *Siblings
	cluster Cluster
	log     *slog.Logger
}

// Self implements clusterlock.Log.
func (l *lockLog) Self() meta.Lease { return l.cluster.Self() }

// FileLocks implements clusterlock.Log.
func (l *lockLog) FileLocks(ino meta.Ino) (meta.FileLocks, error) {
	return l.cluster.Names().FileLocks(ino)
}

// Alive implements clusterlock.Log.
func (l *lockLog) Alive(lease meta.Lease) bool {
	rec, err := l.cluster.Names().Node(lease.Node)
	return err == nil && rec.State == meta.NodeUp && rec.Incarnation == lease.Incarnation
}

// Propose implements clusterlock.Log: it waits for an outcome that is unknown at first.
func (l *lockLog) Propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	res, err := l.cluster.Propose(ctx, op)
	var unknown *UnknownError
	if !errors.As(err, &unknown) {
		return res, err
	}
	select {
	case res, known := <-unknown.Outcome:
		if known {
			return res, nil
		}
	case <-ctx.Done():
	}
	return res, err
}

// Confirm implements clusterlock.Log.
func (l *lockLog) Confirm(ctx context.Context, lease meta.Lease) error {
	return l.cluster.Confirm(ctx, lease)
}

// Publish implements clusterlock.Log.
func (l *lockLog) Publish(ctx context.Context, ino meta.Ino) {
	l.s.mu.Lock()
	all := append([]*fileSystem(nil), l.s.all...)
	l.s.mu.Unlock()
	for _, f := range all {
		if err := f.files.publishLocked(ctx, ino); err != nil {
			l.log.Error("publish before a lock goes to another node", "inode", uint64(ino), "err", err)
		}
	}
}

// publishLocked publishes what programs have written into a file.
func (o *openFiles) publishLocked(ctx context.Context, ino meta.Ino) error {
	n := o.nodes.known(ino)
	if n == nil {
		return nil
	}
	l := o.readyLive(ctx, n)
	if l == nil {
		return nil
	}
	defer o.unhold(l)
	if st, err := l.stage.Stat(); err != nil || l.isPublished(st) {
		return err
	}
	r := o.publisher.publish(l, roundBytes)
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// share makes the locks of the node's mounts hold between nodes, or not; all mounts have the same. A mount that did not
// come about, or has ended, is to be unshared.
func (s *Siblings) share(o Options) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lk := &s.locks
	if s.sharing > 0 && o.ClusterLocks != (lk.cluster != nil) {
		return fmt.Errorf("fs: mount %s: %w", o.Dir, ErrOtherLocks)
	}
	s.sharing++
	if s.sharing > 1 {
		return nil
	}
	lk.cluster = nil
	lk.guards.Store(nil)
	if !o.ClusterLocks {
		return nil // what was shared goes on, and gives back what the log has delegated to it
	}
	if s.applied.Load() == nil {
		log := &lockLog{s: s, cluster: o.Cluster, log: o.Log}
		s.applied.Store(clusterlock.New(log, func(file uint64) bool { return file >= tmpInoBase }))
	}
	lk.cluster = s.applied.Load()
	lk.guards.Store(lk.cluster)
	return nil
}

func (s *Siblings) unshare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sharing--
}

// Apply takes the effects of applied entries on the locks of the node. It is called after all mounts show them.
func (s *Siblings) Apply(events []meta.Event) {
	if lk := s.applied.Load(); lk != nil {
		lk.Apply(events)
	}
}

// Restored is called instead of Apply when the whole state was replaced.
func (s *Siblings) Restored() {
	if lk := s.applied.Load(); lk != nil {
		lk.Restored()
	}
}

// Close ends the work of the locks, when the node ends.
func (s *Siblings) Close() {
	if lk := s.applied.Load(); lk != nil {
		lk.Close()
	}
}

// ended is a context that has ended: for those who do not wait.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// unlockPatience is for how long an unlock or a close waits until the log has taken it. It takes it in any case.
const unlockPatience = 10 * time.Second

// lockShared takes a lock that holds between nodes. The file is then as the last holder left it.
func (f *fileSystem) lockShared(cancel <-chan struct{}, h *handle, l filelock.Lock, wait bool) syscall.Errno {
	no := f.siblings.locks.takeShared(f.life.ctx, cancel, h, l, wait)
	if no != 0 {
		return no
	}
	if err := f.files.guardFile(f.life.ctx, h.node); err != nil {
		no = fail(f.log, "lock", h.node.ino(), err)
	} else {
		no = f.files.newest(f.life.ctx, h)
	}
	if no != 0 {
		f.siblings.locks.cluster.Unlock(f.life.ctx, uint64(h.node.ino()), l)
	}
	return no
}

// takeShared takes a lock that holds between nodes.
func (lk *fileLocks) takeShared(
	ctx context.Context, interrupted <-chan struct{}, h *handle, want filelock.Lock, wait bool,
) syscall.Errno {
	p := patience{ctx: ctx, interrupted: interrupted}
	defer p.stop()
	for {
		lk.mu.Lock()
		file := uint64(h.node.ino())
		lk.noteLocked(file, h, want)
		lk.mu.Unlock()
		answer, err := lk.cluster.Take(ctx, interrupted, file, want, wait)
		if err != nil {
			return lockErrno(err)
		}
		if answer != filelock.Refused {
			return errnoOf(answer)
		}
		holder, found, err := lk.inTheWay(ctx, interrupted, file, want)
		switch {
		case err != nil:
			return syscall.EAGAIN
		case !found && p.again(): // it was given back since
		case !found || !lk.soonFree(&p, file, holder):
			return syscall.EAGAIN
		}
	}
}

// lockErrno is the answer to a request for a lock that failed.
func lockErrno(err error) syscall.Errno {
	switch {
	case errors.Is(err, clusterlock.ErrInterrupted):
		return syscall.EINTR
	case errors.Is(err, clusterlock.ErrTooMany):
		return syscall.ENOLCK
	case errors.Is(err, ErrReadOnly):
		return syscall.ENOLCK // nobody can grant it now
	}
	return syscall.EIO
}

// giveShared gives a lock back; what was written under it is published before, if other nodes hear of that.
func (f *fileSystem) giveShared(cancel <-chan struct{}, pid uint32, h *handle, want filelock.Lock) {
	lk := &f.siblings.locks
	file := uint64(h.node.ino())
	if lk.cluster.Leaves(file, want) {
		f.publisher.publishUnlocked(cancel, pid, h)
	}
	ctx, stop := context.WithTimeout(f.life.ctx, unlockPatience)
	defer stop()
	lk.cluster.Unlock(ctx, file, want)
	lk.gave()
	f.files.unlocked(h.node)
}

// publishUnlocked publishes what was written under a lock that is given back. An unlock can't fail: what can't be
// published stays staged, and the close says so.
func (pub *publisher) publishUnlocked(cancel <-chan struct{}, pid uint32, h *handle) {
	l := h.staged()
	if l == nil {
		return
	}
	if st, err := l.stage.Stat(); err == nil && l.isPublished(st) {
		return
	}
	if no := pub.publishFor(cancel, pid, l); no != 0 {
		pub.log.Error("publish before an unlock", "inode", uint64(h.node.ino()), "errno", no)
	}
}

// gave wakes whoever waits after locks were given back.
func (lk *fileLocks) gave() {
	lk.mu.Lock()
	defer lk.mu.Unlock()
	lk.gaveLocked(nil)
}

// hasRecords reports whether a process has record locks of a file that hold between nodes: a close gives them back, and
// what was written under them is published before.
func (lk *fileLocks) hasRecords(n *node, owner filelock.Owner) bool {
	return lk.cluster != nil && lk.cluster.HasRecords(uint64(n.ino()), owner)
}

// closedDescriptorShared gives back the record locks of a process that has closed a descriptor.
func (lk *fileLocks) closedDescriptorShared(ctx context.Context, n *node, owner filelock.Owner, handle uint64) {
	file := uint64(n.ino())
	ctx, stop := context.WithTimeout(ctx, unlockPatience)
	defer stop()
	lk.cluster.CloseDescriptor(ctx, file, owner)
	lk.mu.Lock()
	defer lk.mu.Unlock()
	lk.gaveLocked(nil)
	if lk.cluster.Holds(file, owner.Space, handle) {
		note(&lk.closing, openFile{owner.Space, handle})
	}
}
