package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// roundKind is what a round has to publish. A round of a later kind does what the earlier ones do.
type roundKind int

const (
	roundAttrs roundKind = iota // attributes
	roundIdle                   // bytes, unless somebody has the file open for writing: then it is not finished
	roundBytes                  // bytes
)

// errUnfinished says that an idle round published no bytes: somebody has the file open for writing.
var errUnfinished = errors.New("fs: the file is open for writing")

// round is one publish that any number of callers wait for. err and unfinished are set before done is closed.
type round struct {
	done       chan struct{}
	err        error
	unfinished bool      // no bytes were published: see errUnfinished
	kind       roundKind // protected by live.mu until it begins
}

// rounds are the publishes of a live file: one under way, and one that waits. Protected by live.mu.
type rounds struct{ cur, next *round }

// add returns the round that publishes what is there now: a new one, which begins if begun says so, or the one that
// waits behind a running one.
func (rs *rounds) add(kind roundKind) (r *round, begun bool) {
	switch {
	case rs.cur == nil:
		rs.cur = &round{done: make(chan struct{}), kind: kind}
		return rs.cur, true
	case rs.next == nil:
		rs.next = &round{done: make(chan struct{}), kind: kind}
	default:
		rs.next.kind = max(rs.next.kind, kind)
	}
	return rs.next, false
}

// advance ends the round under way and gives the next one, nil if none waits.
func (rs *rounds) advance() *round {
	rs.cur, rs.next = rs.next, nil
	return rs.cur
}

// last is the round that ends last, nil if there is none.
func (rs *rounds) last() *round {
	if rs.next != nil {
		return rs.next
	}
	return rs.cur
}

// publisher brings what live files hold to the log: bytes as versions, and attributes. Each live file has one publish
// under way at most, and one that waits.
type publisher struct {
	names    *namespace
	reserved *reservations
	nodes    *nodeTable
	cache    *kernelCache
	pass     *passthrough
	life     *lifetime
	log      *slog.Logger

	device string      // of the mount, as in mountinfo; "" if not known. Constant from the mount on
	done   func(*live) // takes back the count of busy that a publish or watch has of a live file
}

// publish makes sure that a snapshot taken after now is published: by a new round, or by the one that is queued behind
// a running one.
func (pub *publisher) publish(l *live, kind roundKind) *round {
	pub.nodes.mu.Lock()
	defer pub.nodes.mu.Unlock()
	return pub.roundLocked(l, kind)
}

// roundLocked is publish. nodeTable.mu is held.
func (pub *publisher) roundLocked(l *live, kind roundKind) *round {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, begun := l.rounds.add(kind)
	if begun {
		l.users.busy++
		pub.life.work.Go(func() { pub.runRounds(l, r) })
	}
	return r
}

// runRounds publishes until no round is waiting.
func (pub *publisher) runRounds(l *live, r *round) {
	for r != nil {
		free := pub.nodes.free(l)
		if r.kind != roundAttrs {
			r.err = pub.publishOnce(pub.life.ctx, l, r.kind)
		}
		r.unfinished = errors.Is(r.err, errUnfinished)
		if r.kind == roundAttrs || r.unfinished {
			r.err = pub.attrsOnce(pub.life.late, l)
		}
		if r.err == nil && free != nil && r.kind != roundAttrs {
			free() // all was compared, also what mappings hold
		}
		l.mu.Lock()
		done := r
		r = l.rounds.advance()
		l.mu.Unlock()
		close(done.done)
	}
	pub.done(l)
}

// attrsOnce makes sure that a file has a name, and that attributes which wait for no publish are in the log. Attributes
// of a file without a version go with its first one, unless they are too many: with a reserved name they would be lost
// in the next fence.
func (pub *publisher) attrsOnce(ctx context.Context, l *live) error {
	if err := pub.reserved.reserveAgain(ctx, l); err != nil {
		return err
	}
	l.mu.Lock()
	crowded := l.attrs.takeCrowded()
	l.mu.Unlock()
	if l.wasReserved() && !crowded {
		return nil
	}
	return pub.publishLeft(ctx, l)
}

// publishOnce publishes what has changed, or only attributes, or nothing.
func (pub *publisher) publishOnce(ctx context.Context, l *live, kind roundKind) error {
	if pub.nodes.isRemoved(l.node) {
		return nil
	}
	if err := l.awaitLinked(ctx); err != nil {
		return err
	}
	if l.isTmp() {
		return l.stage.Sync()
	}
	return retaken(func() error {
		if kind == roundIdle && pub.isBeingWritten(l) {
			return errUnfinished // before all of it is compared
		}
		if err := pub.reserved.reserveAgain(ctx, l); err != nil || pub.nodes.isRemoved(l.node) {
			return err
		}
		return pub.take(ctx, l, kind)
	})
}

// takesMax bounds how often a publish is begun. It begins again only if a cut, or a fence, hits an attempt of the push
// that is not its first.
const takesMax = 3

// retaken runs do, which takes the bytes of a live file, and runs it again if they were cut away meanwhile or the file
// has lost its name.
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

// isBeingWritten reports whether somebody has the file open for writing.
func (pub *publisher) isBeingWritten(l *live) bool {
	pub.nodes.mu.Lock()
	defer pub.nodes.mu.Unlock()
	return l.users.writers > 0
}

// take publishes what has changed by now. An idle round asks after its look at the bytes who writes: a program that
// opens the file and cuts it before the look is one of the writers by then, or has closed it, and its close published.
func (pub *publisher) take(ctx context.Context, l *live, kind roundKind) error {
	c, err := l.changes()
	if err == nil && c.any && kind == roundIdle && pub.isBeingWritten(l) {
		c.end(meta.ContentID{}, false)
		return errUnfinished
	}
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
		pub.rewritten(l, c)
		return pub.publishAttr(ctx, l)
	}
	if err = pub.push(ctx, l, c, tmpName{}); err == nil {
		pub.noteOver(l)
	}
	if (errors.Is(err, syscall.ENOENT) || isNameless(err)) && pub.nodes.isRemoved(l.node) {
		return nil // removed here while it was being pushed
	}
	return err
}

// overNoter is a staged file that takes a note of the version that is written over from now on.
type overNoter interface{ noteOver(version meta.ContentID) }

// noteOver makes the staged file of a live file note which version it holds, if a program goes on with it.
func (pub *publisher) noteOver(l *live) {
	pub.nodes.mu.Lock()
	goesOn := l.users.writers > l.users.closing
	pub.nodes.mu.Unlock()
	l.mu.Lock()
	current := l.current
	l.mu.Unlock()
	if s, ok := l.stage.(overNoter); ok && goesOn {
		s.noteOver(current)
	}
}

// push publishes one snapshot and ends it.
func (pub *publisher) push(ctx context.Context, l *live, c change, link tmpName) error {
	p, sums := pub.preparePush(l, c, link)
	own := &ownPush{pub: pub, l: l}
	own.begin(p)
	p.Rename = own.rename
	if p.LinkName != "" {
		p.Rename = nil
	}
	p.Allowed = func() error { return pub.nodes.checkLocks(l) }
	out, err := pub.names.cluster.Publish(ctx, p)
	own.over()
	if err == nil && out.Result.Errno != 0 {
		err = out.Result.Errno
	}
	if err == nil && out.Result.Orphan && pub.reserved.fenced(l) {
		err = errNameless
	}
	c.end(out.Content, err == nil)
	pub.nodes.mu.Lock()
	defer pub.nodes.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attrs.arrived(err == nil)
	if err != nil {
		l.kept = fmt.Sprintf("publish: %v", err)
		l.unknown, l.outcome = errors.Is(err, ErrUnknown), outcomeOf(err)
		l.guard.lost = l.guard.lost || errors.Is(err, errLockLost)
		return fmt.Errorf("fs: publish inode %d: %w", l.node.ino(), err)
	}
	pub.names.barrier.published(out.Result.Index, out.Unseen == nil)
	l.reserved, l.kept, l.unknown = false, "", false
	l.current, l.published, l.sums = out.Content, c.state, sums
	l.linked = out.Result.Inode
	if out.Unseen != nil && link == (tmpName{}) {
		return fmt.Errorf("fs: inode %d is published, and no majority of voters says who shows it: %w", l.node.ino(),
			out.Unseen)
	}
	return nil
}

// preparePush takes the pending attributes of a live file into a push.
func (pub *publisher) preparePush(l *live, c change, link tmpName) (replicate.Push, *leafSums) {
	path := link.name
	if path == "" {
		path = pub.names.path(pub.nodes.record(l.node))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := replicate.Push{
		Ino: l.node.ino(), Path: path, Base: l.current, Size: c.snap.Size, Holes: c.snap.Holes, Data: c.snap.Data,
		Source: c.snap.Source,
		Attr:   withTimes(l.attrs.board(), c.stat), LinkParent: link.parent, LinkName: link.name,
		Urgent: c.read.urgent, Taken: c.read.readAll,
	}
	if link.name != "" {
		p.Ino = 0 // it gets one by this publish
		p.Btime = link.btime
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

// withTimes makes a publish carry the times that stat showed here, so that all nodes show the same.
func withTimes(attr meta.AttrPatch, st StageStat) meta.AttrPatch {
	attr.Mask |= meta.AttrAtime | meta.AttrMtime | meta.AttrCtime
	attr.Atime, attr.Mtime = st.Atime, st.Mtime
	attr.Ctime = max(st.Ctime, attr.Ctime)
	return attr
}

// publishAttr proposes attributes that were to ride in a publish which turned out not to be needed. The kernel does not
// know all of them: it is notified as of a change by another node.
func (pub *publisher) publishAttr(ctx context.Context, l *live) error {
	l.mu.Lock()
	if !l.attrs.any() {
		l.mu.Unlock()
		return nil
	}
	attr := l.attrs.board()
	l.mu.Unlock()
	err := pub.proposeAttr(ctx, l.node.ino(), attr)
	l.mu.Lock()
	l.attrs.arrived(err == nil)
	l.mu.Unlock()
	if err == nil {
		return nil
	}
	return fmt.Errorf("fs: set attributes of inode %d: %w", l.node.ino(), err)
}

// proposeAttr proposes attributes as a publish would take them: deleting what is not there is no error. A file that is
// gone has no attributes to propose.
func (pub *publisher) proposeAttr(ctx context.Context, ino meta.Ino, attr meta.AttrPatch) (err error) {
	all := attr.DelXattr
	for range takesMax {
		attr.DelXattr = slices.DeleteFunc(slices.Clone(all), func(name string) bool {
			_, err := pub.names.state().Xattr(ino, name)
			return errors.Is(err, meta.ErrNotFound)
		})
		res, propErr := pub.names.proposePatient(ctx, &meta.SetAttr{Ino: ino, Patch: attr})
		switch {
		case propErr != nil:
			return propErr
		case res.Errno == 0, res.Errno == syscall.ENOENT:
			return nil
		case res.Errno != syscall.ENODATA: // else another node has deleted one
			return res.Errno
		}
		err = res.Errno
	}
	return err
}

// attrsLeftLocked reports whether attributes wait for a publish, of an inode that is in the log. nodeTable.mu is held.
func (l *live) attrsLeftLocked() bool {
	if l.node.removed || l.node.gone {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.reserved && l.tmp == nil && l.attrs.any()
}

// publishLeft runs publishAttr for the attributes that wait for no publish. If nobody may write any more, attributes
// that the log then does not take are lost. Times go with the bytes that they were set on, even if those are kept
// unpublished.
func (pub *publisher) publishLeft(ctx context.Context, l *live) error {
	l.mu.Lock()
	if l.kept != "" {
		l.attrs.waiting.Mask &^= meta.AttrAtime | meta.AttrMtime
	}
	l.mu.Unlock()
	err := pub.publishAttr(ctx, l)
	pub.nodes.mu.Lock()
	last := l.users.writers == 0 || l.users.ended
	pub.nodes.mu.Unlock()
	if err == nil || !last {
		return err
	}
	pub.log.Error("changes of attributes are lost", "inode", uint64(l.node.ino()), "err", err)
	l.mu.Lock()
	l.attrs.waiting = meta.AttrPatch{}
	l.mu.Unlock()
	pub.cache.dropAttrSoon(l.node.id) // the kernel remembers them
	return err
}

// wait waits for a round and reports whether the caller was killed meanwhile; the round then goes on without
// it. Other signals than SIGKILL do not end the wait: close would lose its descriptor and say EINTR.
func (r *round) wait(ctx context.Context, cancel <-chan struct{}, pid uint32) (killed bool) {
	select {
	case <-r.done:
		return false
	case <-cancel:
	}
	tick := time.NewTicker(killPoll)
	defer tick.Stop()
	for {
		if killPending(pid) || ctx.Err() != nil {
			return true
		}
		select {
		case <-r.done:
			return false
		case <-tick.C:
		}
	}
}
