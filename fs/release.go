package fs

import (
	"context"
	"time"
)

// release ends an open file, which has no number any more or never had one.
func (o *openFiles) release(h *handle) {
	if h.followed != nil {
		o.follow.release(h)
		return
	}
	if h.version != nil && o.releaseVersion(h) {
		return
	}
	if l := h.staged(); l != nil {
		o.releaseLive(h, l)
	}
}

// releaseVersion ends a read handle; false if it reads a live file by now.
func (o *openFiles) releaseVersion(h *handle) bool {
	n, v := h.node, h.version
	o.nodes.mu.Lock()
	if v.live.Load() != nil {
		o.nodes.mu.Unlock()
		return false
	}
	v.handles--
	last := v.handles == 0
	if last && n.reading == v {
		n.reading = nil
	}
	n.pins--
	o.nodes.dropLocked(n)
	o.nodes.mu.Unlock()
	if last {
		o.closeVersion(v)
	}
	return true
}

func (o *openFiles) closeVersion(v *version) {
	o.pass.detach(v.backing)
	if err := v.close(); err != nil {
		o.log.Warn("close content", "content", v.id, "err", err)
	}
}

// releaseLive ends a handle on a live file.
func (o *openFiles) releaseLive(h *handle, l *live) {
	o.nodes.mu.Lock()
	lastWriter := l.users.remove(h)
	l.node.pins--
	l.users.busy++ // until it is known what is left to do
	o.nodes.mu.Unlock()
	o.rest(l, lastWriter)
}

// rest does what is left when a handle or a publish of a live file has ended. It takes over one count of busy.
func (o *openFiles) rest(l *live, lastWriter bool) {
	if lastWriter && l.stage != nil && o.publisher.watch(l) {
		o.nodes.mu.Lock() // the watch has the count now
		l.users.holds++
		o.nodes.mu.Unlock()
		o.unhold(l)
		return
	}
	o.unbusy(l)
}

// unbusy gives one count of busy back.
func (o *openFiles) unbusy(l *live) { o.letGo(l, &l.users.busy) }

// unhold gives one count of holds back.
func (o *openFiles) unhold(l *live) { o.letGo(l, &l.users.holds) }

// letGo takes one off a count. It ends the live file if that was the last count that held it, once all its attributes
// are in the log. A live file that nobody has open for writing, and that a newer commit superseded, is left to its
// readers.
func (o *openFiles) letGo(l *live, count *int) {
	o.nodes.mu.Lock()
	*count--
	if l.users.frozen() && !l.users.ended && l.attrsLeftLocked() {
		o.publisher.roundLocked(l, roundAttrs)
	}
	end := l.users.end()
	left := !l.users.ended && l.superseded && l.users.writers == 0
	detach := left && !l.node.detached
	if detach {
		o.nodes.detachLocked(l.node)
	}
	o.nodes.mu.Unlock()
	if detach {
		o.cache.dropNamesSoon()
	}
	if end {
		o.endLive(l)
	}
	if left {
		l.settle()
	}
}

// endLive drops or keeps the staged bytes of a live file that nobody holds.
func (o *openFiles) endLive(l *live) {
	o.pass.detach(l.backing)
	o.closeStage(l)
	o.closeBase(l)
	o.nodes.mu.Lock()
	n := l.node
	if n.live == l {
		n.live = nil
	}
	n.cachedValid = false
	n.noteKernelAttrsOfLiveLocked(l)
	o.nodes.dropLocked(n)
	o.nodes.mu.Unlock()
	o.publisher.reserved.lost.forget(l)
	l.settle()
}

func (o *openFiles) closeBase(l *live) {
	reader := l.base
	if l.taken != nil {
		reader = l.taken.reader
	}
	if reader == nil {
		return
	}
	if err := reader.Close(); err != nil {
		o.log.Warn("close content", "inode", uint64(l.node.ino()), "err", err)
	}
	l.base = nil
}

// closeStage drops the staged bytes, or keeps them listed when they were to be published and were not.
func (o *openFiles) closeStage(l *live) {
	if l.stage == nil {
		return
	}
	l.mu.Lock()
	why, reserved, unknown := l.kept, l.reserved, l.unknown
	l.mu.Unlock()
	if why != "" {
		o.cache.dropAttrSoon(l.node.id) // the kernel remembers the size that was staged
	}
	var err error
	if why != "" && !o.nodes.isRemoved(l.node) {
		err = l.stage.Keep(why)
	} else {
		err = o.dropStage(l)
	}
	if err != nil {
		o.log.Warn("close staged file", "inode", uint64(l.node.ino()), "err", err)
	}
	switch {
	case reserved && unknown:
		o.reserved.unreserveLate(l)
	case reserved:
		o.reserved.unreserve(l)
	}
}

// recycler is a staged file that can be emptied and used again, when nobody can have kept it open or mapped.
type recycler interface{ Recycle() error }

func (o *openFiles) dropStage(l *live) error {
	o.nodes.mu.Lock()
	exposed := l.users.read
	o.nodes.mu.Unlock()
	if r, ok := l.stage.(recycler); ok && !exposed && !l.mapsUnseen() {
		return r.Recycle()
	}
	return l.stage.Drop()
}

// releaseGrace is how long an open waits for the RELEASE of a file that was closed before a newer commit came: the
// kernel sends RELEASE only after close has returned.
const releaseGrace = 250 * time.Millisecond

// awaitSettled waits for a live file that is on its way out, before an open or stat looks at the node.
func (o *openFiles) awaitSettled(ctx context.Context, n *node) {
	if o.follow != nil {
		o.follow.await(ctx, n)
		return
	}
	o.nodes.mu.Lock()
	l := n.live
	wait := l != nil && (l.users.ended || l.superseded && !l.graceOver)
	grace := releaseGrace
	if wait && l.users.ended {
		grace = time.Second // only its files have to be closed
	}
	o.nodes.mu.Unlock()
	if !wait {
		return
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-l.settled:
	case <-ctx.Done():
	case <-timer.C:
		o.nodes.mu.Lock()
		l.graceOver = true
		o.nodes.mu.Unlock()
	}
}

func (l *live) settle() { l.settleOnce.Do(func() { close(l.settled) }) }

// releaseLag is how long a close waits for the RELEASE of other writers that have closed: the kernel sent it before,
// but it may be handled later. Tests change it, before they mount.
var releaseLag = time.Second

// noteClosing notes that a descriptor of a handle was closed.
func (o *openFiles) noteClosing(h *handle) {
	o.nodes.mu.Lock()
	defer o.nodes.mu.Unlock()
	h.live.users.noteClosing(h)
}
