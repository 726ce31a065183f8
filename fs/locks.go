package fs

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/internal/clusterlock"
	"github.com/rdmcfs/rdmcfs/internal/filelock"
)

// fileLocks are the file locks of a node, which its mounts share. The kernel keeps none: it has an inode for each
// version that is open, and locks belong to files. The zero value is ready.
//
// mu comes before nodeTable.mu.
type fileLocks struct {
	// cluster decides instead of table, if the locks hold between nodes. It is constant while there are mounts.
	cluster *clusterlock.Locks
	guards  atomic.Pointer[clusterlock.Locks] // cluster, also for what ends after the mounts

	mu      sync.Mutex
	table   filelock.Table
	waits   map[filelock.Ticket]*lockWait
	changed chan struct{} // closed and made again when a lock was given back

	// closing are open files with locks that had a descriptor closed, perhaps the last one; silent are those whose
	// closed descriptors the kernel does not tell of.
	closing, silent map[openFile]struct{}
	locked          map[uint64]struct{} // files on which a lock was ever asked for
	allOf           bool                // these are too many to remember: it may be any
}

// lockedMax bounds the files that are remembered because of their locks.
const lockedMax = 1 << 16

// silentLag is how long a request that must not wait does so for the RELEASE of a silent open file.
const silentLag = 100 * time.Millisecond

// openFile is an open file of a mount.
type openFile struct{ space, handle uint64 }

// lockWait is a request that waits. ended is set before done is closed.
type lockWait struct {
	done  chan struct{}
	ended bool // with its mount; else the lock is held
}

// newsLocked is closed when a lock is given back next, and patience is for how long it is worth waiting for that: 0 if
// a lock that is in the way is not about to be given back. The kernel sends RELEASE after close has returned, so that a
// program may ask for a lock before it is handled. mu is held.
func (lk *fileLocks) newsLocked(holder filelock.Lock) (news <-chan struct{}, patience time.Duration) {
	by := openFile{holder.Owner.Space, holder.Handle}
	if _, silent := lk.silent[by]; silent {
		patience = silentLag
	} else if _, closing := lk.closing[by]; closing {
		patience = releaseLag
	} else {
		return nil, 0
	}
	if lk.changed == nil {
		lk.changed = make(chan struct{})
	}
	return lk.changed, patience
}

// soonFree waits until a lock that is in the way may have been given back; false if that is not to be expected.
func (lk *fileLocks) soonFree(p *patience, file uint64, holder filelock.Lock) bool {
	lk.mu.Lock()
	news, limit := lk.newsLocked(holder)
	here := holder.Owner.Space != 0
	gone := here && !lk.holdsLocked(file, holder.Owner.Space, holder.Handle) // since it was found in the way
	lk.mu.Unlock()
	switch {
	case gone:
		return p.again()
	case p.await(news, limit):
		return true
	case p.over:
		lk.isNotClosing(holder)
	}
	return false
}

// noteLocked notes that a file has locks: from now on the kernel tells of each close of its descriptors. mu is held.
func (lk *fileLocks) noteLocked(file uint64, h *handle, l filelock.Lock) {
	if h.silent {
		note(&lk.silent, openFile{l.Owner.Space, l.Handle})
	}
	lk.rememberLocked(file)
}

// rememberLocked notes that a file may have locks. mu is held.
func (lk *fileLocks) rememberLocked(file uint64) {
	switch {
	case lk.allOf:
	case len(lk.locked) == lockedMax:
		lk.allOf, lk.locked = true, nil
	default:
		note(&lk.locked, file)
	}
}

func note[K comparable](set *map[K]struct{}, k K) {
	if *set == nil {
		*set = map[K]struct{}{}
	}
	(*set)[k] = struct{}{}
}

// hadAny reports whether a file may have locks.
func (lk *fileLocks) hadAny(n *node) bool {
	lk.mu.Lock()
	defer lk.mu.Unlock()
	_, had := lk.locked[uint64(n.ino())]
	return had || lk.allOf
}

// gaveLocked wakes whoever waits after locks were given back. mu is held.
func (lk *fileLocks) gaveLocked(granted []filelock.Ticket) {
	lk.wakeLocked(granted, false)
	if lk.changed != nil {
		close(lk.changed)
		lk.changed = nil
	}
}

// wakeLocked ends waits. mu is held.
func (lk *fileLocks) wakeLocked(tickets []filelock.Ticket, ended bool) {
	for _, ticket := range tickets {
		w := lk.waits[ticket]
		delete(lk.waits, ticket)
		w.ended = ended
		close(w.done)
	}
}

// take takes a lock of an open file. With wait it waits for other owners, until interrupted is closed or ctx ends.
// Before, waits is called with mu held: an flock that waits to change its mode is not held any more.
func (lk *fileLocks) take(
	ctx context.Context, interrupted <-chan struct{}, h *handle, want filelock.Lock, wait bool, waits func(),
) syscall.Errno {
	p := patience{ctx: ctx, interrupted: interrupted}
	defer p.stop()
	for {
		lk.mu.Lock()
		file := uint64(h.node.ino())
		lk.noteLocked(file, h, want)
		answer, ticket, granted := lk.table.Set(file, want, wait)
		lk.wakeLocked(granted, false)
		var w *lockWait
		var holder filelock.Lock
		switch answer {
		case filelock.Waiting:
			w = lk.addWaitLocked(ticket)
			waits()
		case filelock.Refused:
			holder, _ = lk.table.Conflict(file, want)
		}
		lk.mu.Unlock()
		switch {
		case w != nil:
			return lk.await(ctx, interrupted, w, ticket)
		case answer == filelock.Refused && lk.soonFree(&p, file, holder):
			continue
		}
		return errnoOf(answer)
	}
}

// isNotClosing notes that an open file has other descriptors.
func (lk *fileLocks) isNotClosing(holder filelock.Lock) {
	lk.mu.Lock()
	defer lk.mu.Unlock()
	delete(lk.closing, openFile{holder.Owner.Space, holder.Handle})
}

func errnoOf(answer filelock.Answer) syscall.Errno {
	switch answer {
	case filelock.Refused:
		return syscall.EAGAIN
	case filelock.Deadlock:
		return syscall.EDEADLK
	}
	return 0
}

func (lk *fileLocks) addWaitLocked(ticket filelock.Ticket) *lockWait {
	if lk.waits == nil {
		lk.waits = map[filelock.Ticket]*lockWait{}
	}
	w := &lockWait{done: make(chan struct{})}
	lk.waits[ticket] = w
	return w
}

// await waits for a lock. Whoever is interrupted at the moment in which the lock is granted has it.
func (lk *fileLocks) await(
	ctx context.Context, interrupted <-chan struct{}, w *lockWait, ticket filelock.Ticket,
) syscall.Errno {
	no := syscall.EIO
	select {
	case <-w.done:
	case <-interrupted:
		no = syscall.EINTR
	case <-ctx.Done():
	}
	lk.mu.Lock()
	defer lk.mu.Unlock()
	if lk.table.Cancel(ticket) {
		delete(lk.waits, ticket)
		return no
	}
	if w.ended {
		return syscall.EIO
	}
	return 0
}

// patience is a bounded wait for the RELEASE of an open file whose lock is in the way.
type patience struct {
	ctx         context.Context
	interrupted <-chan struct{}
	timer       *time.Timer // nil until the first wait
	over        bool
	looks       int // that found the lock in the way gone
}

func (p *patience) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
}

// await waits for news; false if there is nothing to wait for, or not any longer.
func (p *patience) await(news <-chan struct{}, limit time.Duration) bool {
	if news == nil || p.over {
		return false
	}
	if p.timer == nil {
		p.timer = time.NewTimer(limit)
	}
	select {
	case <-news:
		return true
	case <-p.timer.C:
		p.over = true
		return true // one last look
	case <-p.interrupted:
	case <-p.ctx.Done():
	}
	return false
}

// lookAgainMost is how often a request asks again since the lock that was in its way is gone.
const lookAgainMost = 16

// again reports whether it is worth asking again since the lock that was in the way is gone. Others may go on taking
// and giving back locks for ever.
func (p *patience) again() bool {
	p.looks++
	return p.looks <= lookAgainMost && !p.stopped()
}

// stopped reports whether nobody waits for the answer any more.
func (p *patience) stopped() bool {
	select {
	case <-p.interrupted:
		return true
	default:
		return p.ctx.Err() != nil
	}
}

// conflict is a lock that excludes another one, if there is any that will not be given back at once.
func (lk *fileLocks) conflict(
	ctx context.Context, interrupted <-chan struct{}, h *handle, want filelock.Lock,
) (filelock.Lock, bool, syscall.Errno) {
	p := patience{ctx: ctx, interrupted: interrupted}
	defer p.stop()
	for {
		file := uint64(h.node.ino())
		l, found, err := lk.inTheWay(ctx, interrupted, file, want)
		switch {
		case err != nil:
			return l, false, lockErrno(err)
		case !found || !lk.soonFree(&p, file, l):
			return l, found, 0
		}
	}
}

// inTheWay is a lock that excludes another one now, if there is any.
func (lk *fileLocks) inTheWay(
	ctx context.Context, interrupted <-chan struct{}, file uint64, want filelock.Lock,
) (l filelock.Lock, found bool, err error) {
	if lk.cluster != nil {
		return lk.cluster.Conflict(ctx, interrupted, file, want)
	}
	lk.mu.Lock()
	defer lk.mu.Unlock()
	l, found = lk.table.Conflict(file, want)
	return l, found, nil
}

// own is the first lock that an owner has himself, if there is any.
func (lk *fileLocks) own(n *node, l filelock.Lock) (filelock.Lock, bool) {
	if lk.cluster != nil {
		return lk.cluster.Own(uint64(n.ino()), l)
	}
	lk.mu.Lock()
	defer lk.mu.Unlock()
	return lk.table.Own(uint64(n.ino()), l)
}

// give gives a lock back.
func (lk *fileLocks) give(n *node, l filelock.Lock) {
	lk.mu.Lock()
	defer lk.mu.Unlock()
	lk.gaveLocked(lk.table.Unlock(uint64(n.ino()), l))
}

// closedDescriptor gives back the record locks of a process that has closed a descriptor.
func (lk *fileLocks) closedDescriptor(ctx context.Context, n *node, owner filelock.Owner, handle uint64) {
	if lk.cluster != nil {
		lk.closedDescriptorShared(ctx, n, owner, handle)
		return
	}
	lk.mu.Lock()
	defer lk.mu.Unlock()
	if lk.table.Empty() {
		return
	}
	file := uint64(n.ino())
	lk.gaveLocked(lk.table.CloseDescriptor(file, owner))
	if lk.table.Holds(file, owner.Space, handle) {
		note(&lk.closing, openFile{owner.Space, handle})
	}
}

// closedHandle gives back what was taken by an open file that has no descriptor any more.
func (lk *fileLocks) closedHandle(ctx context.Context, n *node, space, handle uint64) {
	if lk.cluster != nil {
		ctx, stop := context.WithTimeout(ctx, unlockPatience)
		defer stop()
		lk.cluster.CloseHandle(ctx, uint64(n.ino()), space, handle)
	}
	lk.mu.Lock()
	defer lk.mu.Unlock()
	if lk.cluster != nil {
		lk.gaveLocked(nil)
	}
	delete(lk.closing, openFile{space, handle})
	delete(lk.silent, openFile{space, handle})
	if !lk.table.Empty() {
		lk.gaveLocked(lk.table.CloseHandle(uint64(n.ino()), space, handle))
	}
}

// closedSpace gives back the locks of a mount that has ended.
func (lk *fileLocks) closedSpace(space uint64) {
	if lk.cluster != nil {
		lk.cluster.CloseSpace(ended(), space)
	}
	lk.mu.Lock()
	defer lk.mu.Unlock()
	granted, ended := lk.table.CloseSpace(space)
	lk.wakeLocked(ended, true)
	lk.gaveLocked(granted)
	for _, files := range []map[openFile]struct{}{lk.closing, lk.silent} {
		maps.DeleteFunc(files, func(f openFile, _ struct{}) bool { return f.space == space })
	}
}

// renaming has do give a node of a mount another inode number; its locks move along. Those of other mounts do not: they
// have the file open by nodes of their own, which keep the number.
func (lk *fileLocks) renaming(space uint64, n *node, do func()) {
	lk.mu.Lock()
	defer lk.mu.Unlock()
	from := uint64(n.ino())
	do()
	to := uint64(n.ino())
	if to == from {
		return
	}
	if lk.cluster != nil {
		lk.cluster.Rename(space, from, to)
	}
	lk.gaveLocked(lk.table.Rename(space, from, to))
	if _, had := lk.locked[from]; had {
		lk.rememberLocked(to)
	}
}

// GetLk answers FUSE_GETLK: which lock would be in the way of another one. F_OFD_GETLK with F_UNLCK asks which lock the
// open file has itself (Linux 6.6).
func (f *fileSystem) GetLk(cancel <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	h := f.files.handles.get(in.Fh)
	if h == nil {
		return fuse.EBADF
	}
	l, found, no := f.lockOf(in), false, syscall.Errno(0)
	if in.Lk.Typ == syscall.F_UNLCK {
		l, found = f.siblings.locks.own(h.node, l)
	} else {
		l, found, no = f.siblings.locks.conflict(f.life.ctx, cancel, h, l)
	}
	if !found {
		out.Lk = fuse.FileLock{Typ: syscall.F_UNLCK}
		return fuse.Status(no)
	}
	out.Lk = fuse.FileLock{Start: l.First, End: l.End, Typ: syscall.F_RDLCK, Pid: l.PID}
	if l.Mode == filelock.Exclusive {
		out.Lk.Typ = syscall.F_WRLCK
	}
	return fuse.OK
}

// SetLk answers FUSE_SETLK: flock(2) with LOCK_NB, F_SETLK and F_OFD_SETLK.
func (f *fileSystem) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return f.lock(cancel, in, false)
}

// SetLkw answers FUSE_SETLKW: those that wait.
func (f *fileSystem) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return f.lock(cancel, in, true)
}

func (f *fileSystem) lock(cancel <-chan struct{}, in *fuse.LkIn, wait bool) fuse.Status {
	h := f.files.handles.get(in.Fh)
	l := f.lockOf(in)
	switch {
	case h == nil:
		return fuse.EBADF
	case l.End < l.First:
		return fuse.EINVAL
	case in.Lk.Typ == syscall.F_UNLCK:
		if lk := f.siblings.locks.cluster; lk != nil && !lk.CanUnlock(uint64(h.node.ino()), l) {
			return fuse.Status(syscall.ENOLCK)
		}
		f.give(cancel, in.Pid, h, l)
		f.files.follow.unlocked(h)
		return fuse.OK
	}
	no := f.take(cancel, h, l, wait)
	if no != 0 {
		f.files.follow.unlocked(h) // an flock may be lost, and a lock that waits may come too late
		return fuse.Status(no)
	}
	ctx, stop := f.life.callContext(cancel, in.Pid)
	defer stop()
	if f.files.follow.locked(ctx, h, in.Fh) != nil {
		f.give(cancel, in.Pid, h, l)
		return fuse.EIO
	}
	return fuse.OK
}

// take takes a lock, on this node or between nodes.
func (f *fileSystem) take(cancel <-chan struct{}, h *handle, l filelock.Lock, wait bool) syscall.Errno {
	if f.siblings.locks.cluster != nil {
		return f.lockShared(cancel, h, l, wait)
	}
	waits := func() { f.files.follow.unlockedLocked(h) }
	return f.siblings.locks.take(f.life.ctx, cancel, h, l, wait, waits)
}

// give gives a lock back.
func (f *fileSystem) give(cancel <-chan struct{}, pid uint32, h *handle, l filelock.Lock) {
	if f.siblings.locks.cluster != nil {
		f.giveShared(cancel, pid, h, l)
		return
	}
	f.siblings.locks.give(h.node, l)
}

// holdsLocked reports whether anything is held by an open file. mu is held.
func (lk *fileLocks) holdsLocked(file, space, handle uint64) bool {
	if lk.cluster != nil {
		return lk.cluster.Holds(file, space, handle)
	}
	return lk.table.Holds(file, space, handle)
}

// lockOf is the lock that a request is about.
func (f *fileSystem) lockOf(in *fuse.LkIn) filelock.Lock {
	l := filelock.Lock{
		Kind: filelock.Record, Mode: filelock.Shared, First: in.Lk.Start, End: in.Lk.End,
		Owner: filelock.Owner{Space: f.space, ID: in.Owner}, Handle: in.Fh, PID: in.Lk.Pid,
	}
	if in.LkFlags&fuse.LK_FLOCK != 0 {
		l.Kind = filelock.Flock
	}
	if in.Lk.Typ == syscall.F_WRLCK {
		l.Mode = filelock.Exclusive
	}
	return l
}
