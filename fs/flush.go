package fs

import (
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// releasePoll is how often a close looks whether writers that have closed before are released.
const releasePoll = time.Millisecond

// flush is FLUSH and FSYNC of a handle that may write; closing is the handle if a descriptor of it is closed.
func (pub *publisher) flush(cancel <-chan struct{}, pid uint32, l *live, closing *handle) syscall.Errno {
	st, err := l.stage.Stat()
	if err != nil {
		return fail(pub.log, "flush", l.node.ino(), err)
	}
	if !l.isPublished(st) {
		if closing != nil && wasKilled(pid) {
			return pub.keepForKilled(l)
		}
		if closing != nil && pub.defers(closing, pid, st.Size) {
			return 0
		}
		if no := pub.publishFor(cancel, pid, l); no != 0 {
			return no
		}
	}
	return fail(pub.log, "show", l.node.ino(), pub.names.showFor(cancel, pid)) // what was published is shown already
}

// publishFor publishes a live file for a request of a process, and waits for it.
func (pub *publisher) publishFor(cancel <-chan struct{}, pid uint32, l *live) syscall.Errno {
	r := pub.publish(l, roundBytes)
	if r.wait(pub.life.ctx, cancel, pid) {
		return syscall.EIO
	}
	return fail(pub.log, "publish", l.node.ino(), r.err)
}

// defers reports whether a file need not be published when a process closes a descriptor of it, since the file is not
// finished: nobody is shown a version before its writer is done. There are two such cases. The process that opened the
// file still has it open, and another process closes what it inherited. Or the file is empty and the process itself has
// another descriptor of it: dup2 and close are how a shell or dd opens its output. If no other FLUSH follows, the file
// is published after its last close. What the process still has must be the open that is closed here: a descriptor that
// may write, of a file that was opened for writing once.
func (pub *publisher) defers(h *handle, pid uint32, size int64) bool {
	l := h.live
	ino := uint64(l.node.ino())
	holds := func(tid uint32) bool { return holdsWriter(tid, pub.device, ino) }
	if !(size == 0 && holds(pid)) && !(otherProcess(pid, h.opener) && holds(h.opener)) {
		return false
	}
	if !pub.onlyWriter(h) {
		return false
	}
	l.mu.Lock()
	l.deferred = true
	l.mu.Unlock()
	return true
}

// onlyWriter reports whether a handle is the only one of its live file that may write. Other handles that have closed
// may not be released yet: it waits for them. For a live file it gives up such a wait at most once.
func (pub *publisher) onlyWriter(h *handle) bool {
	l := h.live
	deadline := time.Now().Add(releaseLag)
	tick := time.NewTicker(releasePoll)
	defer tick.Stop()
	for {
		pub.nodes.mu.Lock()
		others, wait := l.users.others(h)
		if wait && time.Now().After(deadline) {
			l.users.dups, wait = true, false
		}
		pub.nodes.mu.Unlock()
		if !wait {
			return others == 0
		}
		select {
		case <-tick.C:
		case <-pub.life.ctx.Done():
			return false
		}
	}
}

// keepForKilled marks what a killed process had written as kept and not published. A file without a name goes with it.
func (pub *publisher) keepForKilled(l *live) syscall.Errno {
	if l.isTmp() {
		return 0
	}
	c, err := l.changes()
	c.end(meta.ContentID{}, false)
	if err == nil && !c.any {
		return 0
	}
	l.mu.Lock()
	l.kept = "the writing process was killed"
	l.mu.Unlock()
	return syscall.EIO
}
