package fs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

const (
	// timesTick is the coarsest step of file times. A change this soon after a sample may leave ctime as it was.
	timesTick = 20 * time.Millisecond
	// deltaBytesMin is the size from which only the changed leaves of a staged file are published.
	deltaBytesMin = 4 << 20
	// releasePoll is how often a close looks whether writers that have closed before are released.
	releasePoll = time.Millisecond
)

// round is one publish that any number of callers wait for. err is set before done is closed.
type round struct {
	done  chan struct{}
	err   error
	attrs bool // only attributes; protected by live.mu until it begins
}

// publish sees to it that a snapshot taken after now is published: by a new round, or by the one that is queued
// behind a running one.
func (f *fileSystem) publish(l *live) *round {
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	return f.roundLocked(l, false)
}

// roundLocked is publish; with attrs it is enough that attributes are. table.mu is held.
func (f *fileSystem) roundLocked(l *live, attrs bool) *round {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.cur == nil:
		r := &round{done: make(chan struct{}), attrs: attrs}
		l.cur = r
		l.busy++
		f.work.Go(func() { f.runRounds(l, r) })
		return r
	case l.next == nil:
		l.next = &round{done: make(chan struct{}), attrs: attrs}
	case !attrs:
		l.next.attrs = false
	}
	return l.next
}

// runRounds publishes until no round is waiting.
func (f *fileSystem) runRounds(l *live, r *round) {
	for r != nil {
		switch {
		case !r.attrs:
			r.err = f.publishOnce(f.ctx, l)
		default:
			r.err = f.attrsOnce(f.late, l)
		}
		l.mu.Lock()
		done := r
		l.cur, l.next = l.next, nil
		r = l.cur
		l.mu.Unlock()
		close(done.done)
	}
	f.unbusy(l)
}

// attrsOnce sees to it that a file has a name, and that attributes which wait for no publish are in the log. Those of
// a file without a version go with its first one, unless they are too many: with a reserved name they would be lost
// in the next fence.
func (f *fileSystem) attrsOnce(ctx context.Context, l *live) error {
	if err := f.reserveAgain(ctx, l); err != nil {
		return err
	}
	l.mu.Lock()
	crowded := l.crowded
	l.crowded = false
	l.mu.Unlock()
	if l.wasReserved() && !crowded {
		return nil
	}
	return f.publishLeft(ctx, l)
}

// change is what a live file holds that was not published.
type change struct {
	any   bool
	mtime int64 // that the log had just before stat
	stat  StageStat
	state state
	snap  Snapshot           // zero when nothing changed for certain
	dirty []replicate.Extent // nil: everywhere

	taking *taking // until end; nil when nothing was read
}

// end tells the staged file what became of a snapshot.
func (c *change) end(published meta.ContentID, ok bool) {
	if c.taking != nil {
		c.taking.end()
	}
	if c.snap.Done != nil {
		c.snap.Done(published, ok)
	}
}

// publishOnce publishes what has changed, or only attributes, or nothing.
func (f *fileSystem) publishOnce(ctx context.Context, l *live) error {
	if f.isRemoved(l.node) {
		return nil
	}
	if err := l.awaitLinked(ctx); err != nil {
		return err
	}
	if l.isTmp() {
		return l.stage.Sync()
	}
	return retaken(func() error {
		if err := f.reserveAgain(ctx, l); err != nil || f.isRemoved(l.node) {
			return err
		}
		return f.take(ctx, l)
	})
}

// takesMax bounds how often a publish is begun anew. It takes a cut, or a fence, in an attempt to publish that is not
// the first.
const takesMax = 3

// retaken does what takes the bytes of a live file, and again if they were cut away under it or the file has lost its
// name.
func retaken(do func() error) (err error) {
	for range takesMax {
		if err = do(); !errors.Is(err, replicate.ErrCut) && !isNameless(err) {
			break
		}
	}
	return err
}

// isNameless reports whether a new file had no name in mid-publish.
func isNameless(err error) bool {
	return errors.Is(err, errNameless) || errors.Is(err, replicate.ErrNoInode)
}

// take publishes what has changed by now.
func (f *fileSystem) take(ctx context.Context, l *live) error {
	c, err := f.changes(l)
	if err != nil || !c.any {
		c.end(meta.ContentID{}, false)
	}
	if err != nil {
		l.mu.Lock()
		l.kept = fmt.Sprintf("compare: %v", err)
		l.mu.Unlock()
		return fmt.Errorf("fs: compare inode %d: %w", l.node.ino(), err)
	}
	if !c.any {
		f.rewritten(l, c)
		return f.publishAttr(ctx, l)
	}
	err = f.push(ctx, l, c, tmpName{})
	if (errors.Is(err, syscall.ENOENT) || isNameless(err)) && f.isRemoved(l.node) {
		return nil // removed here while it was being pushed
	}
	return err
}

// rewritten notes the times of a live file that was written and holds the bytes that it had: they are changed all the
// same. Times that were set since it was looked at stay.
func (f *fileSystem) rewritten(l *live, c change) {
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.stat.Mtime == l.published.mtime || c.mtime != l.published.mtime || l.superseded || l.node.gone {
		return
	}
	l.published.mtime = c.stat.Mtime
	l.attr = mergePatch(l.attr, meta.AttrPatch{Mask: meta.AttrMtime, Mtime: c.stat.Mtime})
}

// unchanged reports whether a live file certainly holds what was published, without reading it.
func (f *fileSystem) unchanged(l *live, st StageStat) bool {
	mediated := !l.backing.on()
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.published
	switch {
	case !p.valid || p.size != st.Size || p.dirty != l.dirty:
		return false
	case mediated:
		return true // each write came by here and was counted
	case l.mayMap || p.ctime != st.Ctime:
		return false
	}
	return f.fineTimes || p.at-p.ctime > int64(timesTick)
}

// changes compares a live file with what was published.
func (f *fileSystem) changes(l *live) (change, error) {
	l.mu.Lock()
	c := change{state: state{dirty: l.dirty}, mtime: l.published.mtime}
	published, sums := l.published, l.sums
	l.mu.Unlock()
	var err error
	if c.stat, err = l.stage.Stat(); err != nil {
		return c, err
	}
	c.state = sample(c.stat, c.state.dirty) // before anything is read: what is written from now on is another change
	if f.unchanged(l, c.stat) {
		return c, nil
	}
	c.taking = l.takings.begin()
	if c.snap, err = l.stage.Snapshot(); err != nil {
		return c, err
	}
	c.snap.Source = uncut{c.snap.Source, c.taking}
	c.snap.Data = replicate.AlignExtents(c.snap.Data, largeLeafBytes, c.snap.Size)
	size := c.snap.Size
	if c.snap.Exact {
		c.dirty = c.snap.Dirty
		c.any = !published.valid || c.snap.Changed || published.size != size
		return c, nil
	}
	if sums == nil && published.valid {
		sums, err = f.baseSums(l)
	}
	if err != nil || sums == nil {
		c.any = !published.valid || size != 0 || published.size != 0
		return c, err
	}
	c.dirty, err = sums.diff(c.snap.Source, size, c.snap.Data)
	c.any = !published.valid || len(c.dirty) > 0 || sums.size != size
	if !c.any && err == nil {
		l.mu.Lock()
		c.state.mtime = l.published.mtime // until the log has the other one
		l.published = c.state
		l.mu.Unlock()
	}
	return c, err
}

// clone is a staged file that may share the bytes of what it was made from. Sound fails if those were found damaged:
// what differs from their sums then need not be what somebody wrote.
type clone interface{ Sound() error }

// baseSums reads what the staged file was made from, as long as nothing newer was published. nil means unknown.
func (f *fileSystem) baseSums(l *live) (*leafSums, error) {
	if l.base == nil {
		return nil, nil
	}
	sums, err := sumsOf(l.base, l.base.Size())
	if s, ok := l.stage.(clone); ok && err == nil {
		err = s.Sound()
	}
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sums == nil {
		l.sums = sums
	}
	return l.sums, nil
}

// push publishes one snapshot and ends it.
func (f *fileSystem) push(ctx context.Context, l *live, c change, link tmpName) error {
	p, sums := f.preparePush(l, c, link)
	own := &pushOwn{f: f, l: l}
	own.begin(p)
	p.Rename = own.rename
	if p.LinkName != "" {
		p.Rename = nil
	}
	out, err := f.cluster.Publish(ctx, p)
	own.over()
	if err == nil && out.Result.Errno != 0 {
		err = out.Result.Errno
	}
	if err == nil && out.Result.Orphan && f.fenced(l) {
		err = errNameless
	}
	c.end(out.Content, err == nil)
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attrsTookLocked(err == nil)
	if err != nil {
		l.kept = fmt.Sprintf("publish: %v", err)
		l.unknown = errors.Is(err, ErrUnknown)
		return fmt.Errorf("fs: publish inode %d: %w", l.node.ino(), err)
	}
	raise(&f.shown.visible, out.Result.Index)
	l.reserved, l.kept, l.superseded = false, "", false
	l.current, l.published, l.sums = out.Content, c.state, sums
	l.linked = out.Result.Inode
	return nil
}

// preparePush takes the pending attributes of a live file into a push.
func (f *fileSystem) preparePush(l *live, c change, link tmpName) (replicate.Push, *leafSums) {
	path := link.name
	if path == "" {
		path = f.path(f.record(l.node))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := replicate.Push{
		Ino: l.node.ino(), Path: path, Base: l.current, Size: c.snap.Size, Holes: c.snap.Holes, Data: c.snap.Data, Source: c.snap.Source,
		Attr: withTimes(l.takeAttrsLocked(), c.stat), LinkParent: link.parent, LinkName: link.name,
		Urgent: c.taking.urgent, Taken: c.taking.read,
	}
	if link.name != "" {
		p.Ino = 0 // it gets one by this publish
	}
	if !l.current.IsZero() && c.worthDelta() {
		p.Dirty = c.dirty
	}
	if c.snap.Exact {
		return p, nil
	}
	sums := newSums(p.Size, p.Data, p.Dirty, l.sums)
	p.Source = &recorder{src: p.Source, sums: sums}
	return p, sums
}

// worthDelta reports whether only what changed should be moved.
func (c *change) worthDelta() bool {
	return c.dirty != nil && c.snap.Size >= deltaBytesMin && extentBytes(c.dirty) < c.snap.Size/2
}

// withTimes makes a publish carry the times that stat showed here, so that all nodes show the same.
func withTimes(attr meta.AttrPatch, st StageStat) meta.AttrPatch {
	attr.Mask |= meta.AttrAtime | meta.AttrMtime | meta.AttrCtime
	attr.Atime, attr.Mtime = st.Atime, st.Mtime
	attr.Ctime = max(st.Ctime, attr.Ctime)
	return attr
}

// publishAttr proposes attributes that were to ride in a publish which turned out not to be needed.
func (f *fileSystem) publishAttr(ctx context.Context, l *live) error {
	l.mu.Lock()
	if !l.pendingAttrLocked() {
		l.mu.Unlock()
		return nil
	}
	attr := l.takeAttrsLocked()
	l.mu.Unlock()
	defer f.ownInode(l.node.ino())()
	res, err := f.proposePatient(ctx, &meta.SetAttr{Ino: l.node.ino(), Patch: attr})
	if err == nil && res.Errno != 0 {
		err = res.Errno
	}
	l.mu.Lock()
	l.attrsTookLocked(err == nil)
	l.mu.Unlock()
	if err == nil {
		return nil
	}
	return fmt.Errorf("fs: set attributes of inode %d: %w", l.node.ino(), err)
}

// attrsLeftLocked reports whether attributes wait for a publish, of an inode that is in the log. table.mu is held.
func (l *live) attrsLeftLocked() bool {
	if l.node.removed || l.node.gone {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.reserved && l.tmp == nil && l.pendingAttrLocked()
}

// publishLeft is publishAttr of what waits for no publish. When nobody may write any more, what the log does not take
// then is lost. Times go with the bytes that they were set on, also where those are kept unpublished.
func (f *fileSystem) publishLeft(ctx context.Context, l *live) error {
	l.mu.Lock()
	if l.kept != "" {
		l.attr.Mask &^= meta.AttrAtime | meta.AttrMtime
	}
	l.mu.Unlock()
	err := f.publishAttr(ctx, l)
	f.nodes.mu.Lock()
	last := l.writers == 0 || l.ended
	f.nodes.mu.Unlock()
	if err == nil || !last {
		return err
	}
	f.log.Error("changes of attributes are lost", "inode", uint64(l.node.ino()), "err", err)
	l.mu.Lock()
	l.attr = meta.AttrPatch{}
	l.mu.Unlock()
	f.notifier.attr(l.node.id) // the kernel remembers them
	return err
}

// flushLive is FLUSH and FSYNC of a handle that may write; closing is the handle if a descriptor of it is closed.
func (f *fileSystem) flushLive(cancel <-chan struct{}, pid uint32, l *live, closing *handle) syscall.Errno {
	st, err := l.stage.Stat()
	if err != nil {
		return f.fail("flush", l.node.ino(), err)
	}
	if f.unchanged(l, st) && !l.pendingAttr() {
		f.showFor(cancel, pid)
		return 0
	}
	if closing != nil && wasKilled(pid) {
		return f.keepForKilled(l)
	}
	if closing != nil && f.defers(closing, pid, st.Size) {
		return 0
	}
	r := f.publish(l)
	if f.waitRound(cancel, pid, r) {
		return syscall.EIO
	}
	if r.err != nil {
		return f.fail("publish", l.node.ino(), r.err)
	}
	f.showFor(cancel, pid) // when there was nothing to publish after all
	return 0
}

// defers reports whether a file need not be published when a process closes a descriptor of it, since it is not
// finished: nobody is shown a version before its writer is done. That is so while the process that opened it has it
// open, and another one closes what it inherited; and while the file is empty and the process itself has another
// descriptor of it, for dup2 and close are how a shell or dd opens its output. If no other FLUSH follows, the file is
// published after its last close. What the process still has must be the open that is closed here: a descriptor that
// may write, of a file that was opened for writing once.
func (f *fileSystem) defers(h *handle, pid uint32, size int64) bool {
	l := h.live
	ino := uint64(l.node.ino())
	if !(size == 0 && holdsWriter(pid, ino, procWait)) && !(otherProcess(pid, h.opener) && holdsWriter(h.opener, ino, openerWait)) {
		return false
	}
	if !f.onlyWriter(h) {
		return false
	}
	l.mu.Lock()
	l.deferred = true
	l.mu.Unlock()
	return true
}

// onlyWriter reports whether a handle is the only one of its live file that may write. Others that have closed may
// not be released yet: it waits for them, in vain once for a live file at most.
func (f *fileSystem) onlyWriter(h *handle) bool {
	l := h.live
	deadline := time.Now().Add(releaseLag)
	tick := time.NewTicker(releasePoll)
	defer tick.Stop()
	for {
		f.nodes.mu.Lock()
		others, closing := l.writers-1, l.closing
		if h.flushed {
			closing--
		}
		wait := others > 0 && closing == others && !l.dups
		if wait && time.Now().After(deadline) {
			l.dups, wait = true, false
		}
		f.nodes.mu.Unlock()
		if !wait {
			return others == 0
		}
		select {
		case <-tick.C:
		case <-f.ctx.Done():
			return false
		}
	}
}

// keepForKilled marks what a killed process had written as kept and not published. A file without a name goes with it.
func (f *fileSystem) keepForKilled(l *live) syscall.Errno {
	if l.isTmp() {
		return 0
	}
	c, err := f.changes(l)
	c.end(meta.ContentID{}, false)
	if err == nil && !c.any {
		return 0
	}
	l.mu.Lock()
	l.kept = "the writing process was killed"
	l.mu.Unlock()
	return syscall.EIO
}

// waitRound waits for a round and reports whether the caller was killed meanwhile; the round then goes on without
// it. Other signals than SIGKILL do not end the wait: close would lose its descriptor and say EINTR.
func (f *fileSystem) waitRound(cancel <-chan struct{}, pid uint32, r *round) (killed bool) {
	select {
	case <-r.done:
		return false
	case <-cancel:
	}
	tick := time.NewTicker(killPoll)
	defer tick.Stop()
	for {
		if killPending(pid) || f.ctx.Err() != nil {
			return true
		}
		select {
		case <-r.done:
			return false
		case <-tick.C:
		}
	}
}

func (l *live) pendingAttr() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pendingAttrLocked()
}

// pendingAttrLocked reports whether attributes wait for a publish. live.mu is held.
func (l *live) pendingAttrLocked() bool { return !isEmpty(l.attr) }

func isEmpty(p meta.AttrPatch) bool {
	return p.Mask == 0 && len(p.SetXattr) == 0 && len(p.DelXattr) == 0
}

// takeAttrsLocked gives the attributes that ride in the publish that begins. live.mu is held.
func (l *live) takeAttrsLocked() meta.AttrPatch {
	l.riding, l.attr = l.attr, meta.AttrPatch{}
	return l.riding
}

// attrsTookLocked ends what takeAttrsLocked began: they are in the log, or wait again. live.mu is held.
func (l *live) attrsTookLocked(ok bool) {
	if !ok {
		l.attr = mergePatch(l.riding, l.attr)
	}
	l.riding = meta.AttrPatch{}
}

// shownAttrLocked is what was changed and is not in the log, as far as this node knows. live.mu is held.
func (l *live) shownAttrLocked() meta.AttrPatch { return mergePatch(l.riding, l.attr) }
