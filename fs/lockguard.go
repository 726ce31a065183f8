package fs

import (
	"context"
	"errors"
	"syscall"

	"github.com/rdmcfs/rdmcfs/meta"
)

// lockGuard says under which lock between nodes the bytes of a live file were written: they are published under that
// lock's incarnation of this node, or never.
type lockGuard struct {
	lease  meta.Lease // zero if no lock was held, or all that was written under one is published
	times  int        // counts the locks that were noted in lease
	before meta.Lease // with which other open files had lost a lock when the live file began
	lost   bool       // there are bytes that are never published: see errLockLost
}

// errLockLost says why a file is not published. A program had a lock of it, under which it may have been written, that
// ended with an incarnation of the node. The next holder may have changed the file since.
var errLockLost = errors.New("fs: a lock of the file was lost when the node was taken for down, so what was written " +
	"under it is not published")

// checkLocks returns errLockLost if a live file may have been written under a lock that was lost. A new file without a
// version is its writer's alone.
func (t *nodeTable) checkLocks(l *live) error {
	l.mu.Lock()
	guard, alone := l.guard, l.reserved
	l.mu.Unlock()
	if guard.lost {
		return errLockLost
	}
	if guard.lease == (meta.Lease{}) || alone {
		return nil
	}
	if lk := t.locks.guards.Load(); lk != nil && lk.Ended(guard.lease) {
		return errLockLost
	}
	return nil
}

// hasLostLock reports whether a live file has bytes that are never published: opens do not share it any more.
func (l *live) hasLostLock() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.guard.lost
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
		l.guard.before = lost
	}
	none := meta.Lease{}
	switch {
	case lost != none && (begins || lost != l.guard.before):
		l.guard.lease = lost
	case held != none:
		l.guard.lease = held
	default:
		return
	}
	l.guard.times++
}

// unheldLocked reports whether no lock guards what is written to a live file from now on. l.mu is held.
func (t *nodeTable) unheldLocked(l *live) bool {
	lk := t.locks.guards.Load()
	if lk == nil {
		return true
	}
	held, lost := lk.Guard(uint64(l.node.ino()), t.space)
	return held == meta.Lease{} && (lost == meta.Lease{} || lost == l.guard.before)
}

// free begins a look at a live file that is locked no more: if all that it has is published, the function that it
// returns ends its guard, unless it was locked meanwhile. It is nil if there is nothing to end.
func (t *nodeTable) free(l *live) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.guard.lease == (meta.Lease{}) || !t.unheldLocked(l) {
		return nil
	}
	times := l.guard.times
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.guard.times == times && t.unheldLocked(l) {
			l.guard.lease = meta.Lease{}
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
	l := o.holdLive(n)
	if l == nil {
		return nil
	}
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
		l.guard.lost = true
	case err == nil && !l.guard.lost:
		l.guard.lease = meta.Lease{}
	}
	return err == nil && !l.guard.lost, err
}
