package fs

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// live is a staged file and all that is open on it: one for each inode and node while somebody may write.
type live struct {
	node  *node
	ready chan struct{} // closed when stage or err is set
	err   syscall.Errno
	stage Staged
	base  replicate.ContentReader // what stage was made from, pinned; nil when it began empty

	backing backing
	takings takings

	// Protected by table.mu.
	handles int  // open handles, readers too
	writers int  // of them, those that may write
	closing int  // of those, the ones that had a descriptor closed: most often their RELEASE is on its way
	dups    bool // it was not: such handles have other descriptors, and are not waited for
	busy    int  // publishes and watches under way: the bytes are still to be published
	holds   int  // looks at it under way: it must not be closed
	ended   bool // no longer to be joined; bytes are being kept or dropped
	read    bool // a handle could read the staged file
	// superseded: a commit of another member is newer than what this file began with or published last.
	superseded bool
	graceOver  bool // a whole releaseGrace went by since: somebody really has it open

	released   chan struct{} // closed and made anew when nobody may write any more; protected by table.mu
	settleOnce sync.Once
	settled    chan struct{} // closed when the file is no longer what its node's opens share

	mu        sync.Mutex
	reserved  bool           // no version was ever published
	lease     meta.Lease     // under which its name was reserved
	crowded   bool           // more attributes wait than one entry of the log holds
	unlinked  bool           // the reserved name was removed by a program, perhaps of another node
	mayMap    bool           // a handle could be mapped for writing: times prove nothing
	dirty     uint64         // counts writes through the daemon, at least
	published state          // what was published last
	current   meta.ContentID // the content of that
	attr      meta.AttrPatch // rides in the next publish
	riding    meta.AttrPatch // rides in the one under way
	sums      *leafSums      // of the published bytes; nil when unknown
	kept      string         // why the bytes have to be kept when the last handle goes; "" = they need not
	cur, next *round         // publishes under way and waiting
	deferred  bool           // a FLUSH of a file that is not finished was answered without a publish
	unknown   bool           // the last publish may still have happened
	tmp       *tmpfile       // an O_TMPFILE without a name
	linked    meta.Inode     // what it became when it got one
	parent    meta.Ino       // where a reserved file was created
	name      string
}

// state is what tells a changed staged file from an unchanged one without reading it.
type state struct {
	valid bool
	size  int64
	mtime int64
	ctime int64
	dirty uint64
	at    int64 // when it was sampled, nanoseconds since 1970
}

// frozenLocked reports whether nobody can change the staged bytes any more. table.mu is held.
func (l *live) frozenLocked() bool { return l.writers == 0 && l.busy == 0 }

// isVersionLocked reports whether a frozen live file holds rec's bytes. table.mu is held.
func (l *live) isVersionLocked(rec meta.Inode) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.published.valid && l.current == rec.Content && l.published.size == rec.Size
}

// acquireWrite makes a write handle on a node, which becomes live if it is not. trunc empties the file.
func (f *fileSystem) acquireWrite(ctx context.Context, n *node, mayMap, trunc bool) (*handle, syscall.Errno) {
	f.awaitSettled(ctx, n)
	f.awaitReleased(ctx, n)
	l, mine, no := f.joinOrBegin(n)
	for tries := 0; no == syscall.EAGAIN && tries < endingTries; tries++ {
		f.awaitSettled(ctx, n)
		l, mine, no = f.joinOrBegin(n)
	}
	if no == syscall.EAGAIN {
		no = syscall.EIO
	}
	if no != 0 {
		return nil, no
	}
	if mine {
		f.prepare(ctx, l, trunc)
	}
	h, no := f.awaitLive(ctx, l, true)
	if no == 0 {
		no = f.joined(ctx, h, mayMap, trunc && !mine)
	}
	if no != 0 {
		return nil, no
	}
	return h, 0
}

// joined prepares a handle on a live file for its open; an error releases it.
func (f *fileSystem) joined(ctx context.Context, h *handle, mayMap, trunc bool) syscall.Errno {
	l := h.live
	l.mu.Lock()
	l.mayMap = l.mayMap || mayMap
	l.mu.Unlock()
	if !trunc {
		return 0
	}
	if err := l.setSize(ctx, 0); err != nil {
		f.release(h, 0)
		return f.fail("truncate", h.node.ino(), err)
	}
	l.touched()
	return 0
}

// releaseGrace is how long an open waits for the RELEASE of a file that was closed before a newer commit came: the
// kernel sends it only after close has returned.
const releaseGrace = 250 * time.Millisecond

// awaitSettled lets a live file that is on its way out go, before an open or stat looks at the node.
func (f *fileSystem) awaitSettled(ctx context.Context, n *node) {
	f.nodes.mu.Lock()
	l := n.live
	wait := l != nil && (l.ended || l.superseded && !l.graceOver)
	grace := releaseGrace
	if wait && l.ended {
		grace = time.Second // only its files have to be closed
	}
	f.nodes.mu.Unlock()
	if !wait {
		return
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-l.settled:
	case <-ctx.Done():
	case <-timer.C:
		f.nodes.mu.Lock()
		l.graceOver = true
		f.nodes.mu.Unlock()
	}
}

// releaseLag is how long an open for writing waits for the RELEASE of writers that have closed, if somebody has read
// the staged file. The kernel sent it before the open, but it may be handled later; and who reads the file since
// keeps that version only if the new writer does not join the old ones. Tests change it, before they mount.
var releaseLag = time.Second

// awaitReleased waits while all writers of a node that readers know have closed and are not released, or what that
// brought about is not done; in vain once for a live file at most.
func (f *fileSystem) awaitReleased(ctx context.Context, n *node) {
	var timer *time.Timer
	for {
		f.nodes.mu.Lock()
		l := n.live
		if l == nil || !l.read || l.ended || l.dups || l.frozenLocked() || l.closing < l.writers {
			f.nodes.mu.Unlock()
			return
		}
		released := l.released
		f.nodes.mu.Unlock()
		if timer == nil {
			timer = time.NewTimer(releaseLag)
			defer timer.Stop()
		}
		select {
		case <-released:
		case <-ctx.Done():
			return
		case <-timer.C:
			f.nodes.mu.Lock()
			l.dups = true
			f.nodes.mu.Unlock()
			return
		}
	}
}

// noteClosing notes that a descriptor of a handle was closed.
func (f *fileSystem) noteClosing(h *handle) {
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	if !h.flushed {
		h.flushed = true
		h.live.closing++
	}
}

func (l *live) settle() { l.settleOnce.Do(func() { close(l.settled) }) }

// endingTries bounds how often an open finds the live file that has just ended when another one has ended since. It
// is not left to the kernel, which looks a name up again once only: two programs that append in turns would see
// ESTALE.
const endingTries = 100

// joinOrBegin gives the live file of a node, counted for one more writer; mine says that the caller has to prepare
// it. EAGAIN: there is one that is ending. ESTALE: who has the file open keeps what he has, and the name has to be
// looked up again.
func (f *fileSystem) joinOrBegin(n *node) (l *live, mine bool, no syscall.Errno) {
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	switch l := n.live; {
	case n.detached:
		return nil, false, syscall.ESTALE
	case l != nil && !l.ended && !l.frozenLocked():
		l.handles++
		l.writers++
		n.pins++
		return l, false, 0
	case l != nil && l.ended:
		return nil, false, syscall.EAGAIN
	case l != nil || n.reading != nil:
		f.nodes.detachLocked(n)
		return nil, false, syscall.ESTALE
	}
	l = &live{node: n, ready: make(chan struct{}), settled: make(chan struct{}), released: make(chan struct{}), handles: 1, writers: 1}
	n.live = l
	n.pins++
	return l, true, 0
}

// prepare stages the node's current bytes.
func (f *fileSystem) prepare(ctx context.Context, l *live, trunc bool) {
	defer close(l.ready)
	n := l.node
	f.nodes.mu.Lock()
	last := n.last
	f.nodes.mu.Unlock()
	v, rec, err := f.openVersion(ctx, n.ino(), last)
	if errors.Is(err, errGone) || err == nil && !trunc && f.toldOther(n, v) {
		l.err = syscall.ESTALE
		return
	}
	if err == nil {
		err = f.stageFrom(ctx, l, v, rec, trunc)
	}
	if err != nil {
		l.err = f.fail("stage", n.ino(), err)
	}
}

func (f *fileSystem) stageFrom(ctx context.Context, l *live, v *version, rec meta.Inode, trunc bool) error {
	info := StageInfo{Ino: rec.Ino, Parent: rec.Parent, Path: f.path(rec), Base: rec.Content, Holes: rec.Holes}
	var err error
	if trunc || v.reader == nil {
		l.stage, err = f.staging.Create(info)
		if closeErr := v.close(); err == nil {
			err = closeErr
		}
	} else {
		l.stage, err = f.staging.CopyUp(ctx, info, v.reader)
		l.base = v.reader
	}
	if err != nil {
		f.closeBase(l)
		return err
	}
	l.reserved, l.lease = rec.Version == 0, rec.Reserved
	l.parent, l.name = rec.Parent, rec.Name
	l.current = rec.Content
	if trunc && rec.Size != 0 {
		l.published = state{valid: !l.reserved, size: rec.Size} // differs from what is staged
		return nil
	}
	if err := f.settleNew(l, rec); err != nil || !trunc {
		return err
	}
	l.touched()
	now := time.Now().UnixNano()
	return l.stage.SetTimes(nil, &now)
}

// settleNew gives a staged copy the times of what it was made from and remembers it as unchanged.
func (f *fileSystem) settleNew(l *live, rec meta.Inode) error {
	if l.reserved {
		return nil
	}
	if err := l.stage.SetTimes(&rec.Atime, &rec.Mtime); err != nil {
		return err
	}
	st, err := l.stage.Stat()
	if err != nil {
		return err
	}
	l.published = sample(st, 0)
	return nil
}

func sample(st StageStat, dirty uint64) state {
	return state{valid: true, size: st.Size, mtime: st.Mtime, ctime: st.Ctime, dirty: dirty, at: time.Now().UnixNano()}
}

// awaitLive waits until a live file is prepared. The caller has counted one handle (and writer) and one pin.
func (f *fileSystem) awaitLive(ctx context.Context, l *live, writer bool) (*handle, syscall.Errno) {
	if !l.awaitReady(ctx) {
		f.work.Go(func() { f.abandon(l, writer) }) // ends with prepare, which is bounded
		return nil, syscall.EIO
	}
	h := &handle{node: l.node, live: l, writer: writer}
	if l.err != 0 {
		f.release(h, 0)
		return nil, l.err
	}
	return h, 0
}

func (f *fileSystem) abandon(l *live, writer bool) {
	<-l.ready
	f.release(&handle{node: l.node, live: l, writer: writer}, 0)
}

// touched counts a change made through the daemon.
func (l *live) touched() {
	l.mu.Lock()
	l.dirty++
	l.mu.Unlock()
}

// releaseLive ends a handle on a live file.
func (f *fileSystem) releaseLive(h *handle) {
	l := h.live
	f.nodes.mu.Lock()
	l.handles--
	lastWriter := false
	if h.writer {
		l.writers--
		lastWriter = l.writers == 0
		if h.flushed {
			l.closing--
		}
	}
	l.node.pins--
	l.busy++ // until it is known what is left to do
	f.nodes.mu.Unlock()
	f.rest(l, lastWriter)
}

// rest does what is left when a handle or a publish of a live file has ended. It takes over one count of busy.
func (f *fileSystem) rest(l *live, lastWriter bool) {
	if lastWriter && l.stage != nil && f.watch(l) {
		return // the watch has the count now
	}
	f.unbusy(l)
}

// unbusy gives one count of busy back.
func (f *fileSystem) unbusy(l *live) { f.letGo(l, &l.busy) }

// unhold gives one count of holds back.
func (f *fileSystem) unhold(l *live) { f.letGo(l, &l.holds) }

// letGo takes one off a count and ends the live file if that was the last that held it, once all its attributes are
// in the log. One that only readers hold, and that a newer commit superseded, is left to them.
func (f *fileSystem) letGo(l *live, count *int) {
	f.nodes.mu.Lock()
	*count--
	if l.frozenLocked() {
		close(l.released)
		l.released = make(chan struct{})
	}
	if l.frozenLocked() && !l.ended && l.attrsLeftLocked() {
		f.roundLocked(l, true)
	}
	end := l.busy == 0 && l.holds == 0 && l.handles == 0 && !l.ended
	if end {
		l.ended = true
	}
	left := !l.ended && l.superseded && l.frozenLocked()
	detach := left && !l.node.detached
	if detach {
		f.nodes.detachLocked(l.node)
	}
	f.nodes.mu.Unlock()
	if detach {
		f.notifier.names()
	}
	if end {
		f.endLive(l)
	}
	if left {
		l.settle()
	}
}

// endLive drops or keeps the staged bytes of a live file that nobody holds.
func (f *fileSystem) endLive(l *live) {
	f.detachBacking(&l.backing)
	f.closeStage(l)
	f.closeBase(l)
	f.nodes.mu.Lock()
	n := l.node
	if n.live == l {
		n.live = nil
	}
	n.cachedValid = false
	n.tellLiveLocked(l)
	f.nodes.dropLocked(n)
	f.nodes.mu.Unlock()
	l.settle()
}

func (f *fileSystem) closeBase(l *live) {
	if l.base == nil {
		return
	}
	if err := l.base.Close(); err != nil {
		f.log.Warn("close content", "inode", uint64(l.node.ino()), "err", err)
	}
	l.base = nil
}

// closeStage drops the staged bytes, or keeps them listed when they were to be published and were not.
func (f *fileSystem) closeStage(l *live) {
	if l.stage == nil {
		return
	}
	l.mu.Lock()
	why, reserved := l.kept, l.reserved && !l.unknown
	l.mu.Unlock()
	if why != "" {
		f.notifier.attr(l.node.id) // the kernel remembers the size that was staged
	}
	var err error
	if why != "" && !f.isRemoved(l.node) {
		err = l.stage.Keep(why)
	} else {
		err = f.dropStage(l)
	}
	if err != nil {
		f.log.Warn("close staged file", "inode", uint64(l.node.ino()), "err", err)
	}
	if reserved {
		f.unreserve(l)
	}
}

// recycler is a staged file that can be emptied and used again, when nobody can have kept it open or mapped.
type recycler interface{ Recycle() error }

func (f *fileSystem) dropStage(l *live) error {
	f.nodes.mu.Lock()
	exposed := l.read
	f.nodes.mu.Unlock()
	if r, ok := l.stage.(recycler); ok && !exposed && !l.mapsUnseen() {
		return r.Recycle()
	}
	return l.stage.Drop()
}

func (f *fileSystem) isRemoved(n *node) bool {
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	return n.removed
}
