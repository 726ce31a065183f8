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
		holder, found, err := lk.cluster.Conflict(ctx, interrupted, file, want)
		if err != nil || !found {
			return syscall.EAGAIN
		}
		lk.mu.Lock()
		news, limit := lk.newsLocked(holder)
		lk.mu.Unlock()
		if p.await(news, limit) {
			continue
		}
		if p.over {
			lk.isNotClosing(holder)
		}
		return syscall.EAGAIN
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

// conflictShared is a lock that excludes another one, of any node.
func (lk *fileLocks) conflictShared(
	ctx context.Context, interrupted <-chan struct{}, h *handle, want filelock.Lock,
) (filelock.Lock, bool, syscall.Errno) {
	l, found, err := lk.cluster.Conflict(ctx, interrupted, uint64(h.node.ino()), want)
	if err != nil {
		return l, false, lockErrno(err)
	}
	return l, found, 0
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

// errLockLost says why a file is not published. A program had a lock of it, under which it may have been written, that
// ended with an incarnation of the node. The next holder may have changed the file since.
var errLockLost = errors.New("fs: a lock of the file was lost when the node was taken for down, so what was written " +
	"under it is not published")

// checkLocks returns errLockLost if a live file may have been written under a lock that was lost. A new file without a
// version is its writer's alone.
func (t *nodeTable) checkLocks(l *live) error {
	l.mu.Lock()
	guard, alone, lost := l.guard, l.reserved, l.lockLost
	l.mu.Unlock()
	if lost {
		return errLockLost
	}
	if guard == (meta.Lease{}) || alone {
		return nil
	}
	if lk := t.locks.guards.Load(); lk != nil && lk.Ended(guard) {
		return errLockLost
	}
	return nil
}

// hasLostLock reports whether a live file has bytes that are never published: opens do not share it any more.
func (l *live) hasLostLock() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lockLost
}

// guard notes under which incarnation a live file is locked, if it is. A lock that was lost before the live file began
// counts until there is another one.
func (t *nodeTable) guard(l *live, begins bool) {
	lk := t.locks.guards.Load()
	if lk == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	held, lost := lk.Guard(uint64(l.node.ino()), t.space)
	if begins {
		l.lost = lost
	}
	none := meta.Lease{}
	switch {
	case lost != none && (begins || lost != l.lost):
		l.guard = lost
	case held != none:
		l.guard = held
	default:
		return
	}
	l.guarded++
}

// unheldLocked reports whether no lock guards what is written to a live file from now on. l.mu is held.
func (t *nodeTable) unheldLocked(l *live) bool {
	lk := t.locks.guards.Load()
	if lk == nil {
		return true
	}
	held, lost := lk.Guard(uint64(l.node.ino()), t.space)
	return held == meta.Lease{} && (lost == meta.Lease{} || lost == l.lost)
}

// free begins a look at a live file that is locked no more: if all that it has is published, the function that it
// returns ends its guard, unless it was locked meanwhile. It is nil if there is nothing to end.
func (t *nodeTable) free(l *live) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.guard == (meta.Lease{}) || !t.unheldLocked(l) {
		return nil
	}
	locks := l.guarded
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.guarded == locks && t.unheldLocked(l) {
			l.guard = meta.Lease{}
		}
	}
}

// unlocked notes that locks of a file may have been given back.
func (o *openFiles) unlocked(n *node) {
	l := o.liveOf(n)
	if l == nil {
		return
	}
	defer o.unhold(l)
	if end := o.nodes.free(l); end != nil {
		if st, err := l.stage.Stat(); err == nil && l.isPublished(st) {
			end()
		}
	}
}

// liveOf is the live file of a node, held, or nil if there is none that is prepared, or no lock holds between nodes.
func (o *openFiles) liveOf(n *node) *live {
	if o.nodes.locks.guards.Load() == nil {
		return nil
	}
	return o.readyLive(ended(), n)
}

// guardFile checks and guards the live files of a file that was locked. Programs may have it open by an older node.
func (o *openFiles) guardFile(ctx context.Context, n *node) error {
	err := o.guardNode(ctx, n)
	if now := o.nodes.known(n.ino()); now != nil && now != n && err == nil {
		err = o.guardNode(ctx, now)
	}
	return err
}

// guardNode is guardFile for the live file of a node, if it has one. What was written under a lock that was lost must
// not be seen under this one.
func (o *openFiles) guardNode(ctx context.Context, n *node) error {
	o.nodes.mu.Lock()
	l := n.live
	if l == nil || l.users.ended {
		o.nodes.mu.Unlock()
		return nil
	}
	l.users.holds++
	o.nodes.mu.Unlock()
	defer o.unhold(l)
	if err := o.nodes.checkLocks(l); err != nil {
		if published, lookErr := o.isWhole(ctx, l); lookErr != nil || !published {
			return errors.Join(err, lookErr)
		}
	}
	o.nodes.guard(l, false)
	return o.nodes.checkLocks(l)
}

// isWhole compares the bytes of a live file whose lock was lost with those that are published, and ends its guard if
// they are the same. Otherwise they never are published.
func (o *openFiles) isWhole(ctx context.Context, l *live) (bool, error) {
	if !l.awaitReady(ctx) || l.err != 0 {
		return false, syscall.EIO
	}
	if err := l.awaitRounds(ctx); err != nil {
		return false, err
	}
	c, err := l.changes()
	c.end(meta.ContentID{}, false)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil && c.any:
		l.lockLost = true
	case err == nil && !l.lockLost:
		l.guard = meta.Lease{}
	}
	return err == nil && !l.lockLost, err
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
