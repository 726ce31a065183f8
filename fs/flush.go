package fs

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/meta"
)

// releasePoll is how often a close looks whether writers that have closed before are released.
const releasePoll = time.Millisecond

// flush is FLUSH and FSYNC of a handle that may write; closing is the handle if a descriptor of it is closed.
func (pub *publisher) flush(cancel <-chan struct{}, pid uint32, l *live, closing *handle) syscall.Errno {
	now, st, err := l.sampled()
	if err != nil {
		return fail(pub.log, "flush", l.node.ino(), err)
	}
	if !l.isPublished(st) {
		switch c := pub.judge(cancel, pid, l, closing, now, st); {
		case c.ends:
			return c.no
		case c.publishes:
			if no := pub.publishFor(cancel, pid, l); no != 0 {
				return no
			}
		}
	}
	return fail(pub.log, "show", l.node.ino(), pub.names.showFor(cancel, pid)) // what was published is shown already
}

// fsync is FSYNC of any handle. A process that only reads the file, and has no part in what is unpublished, waits for
// nothing but what is published.
func (pub *publisher) fsync(cancel <-chan struct{}, pid uint32, h *handle) syscall.Errno {
	l := h.staged()
	st, err := l.stage.Stat()
	if err == nil && !h.writer && !l.isPublished(st) && pub.isStranger(pid, l, nil, st) {
		return fail(pub.log, "show", l.node.ino(), pub.names.showFor(cancel, pid))
	}
	return pub.flush(cancel, pid, l, nil)
}

// verdict is what a FLUSH of a file with unpublished changes does.
type verdict struct {
	publishes bool
	ends      bool // it is answered with no, and shows nothing
	no        syscall.Errno
}

// judge decides what a FLUSH or FSYNC of a live file does whose staged file was sampled.
func (pub *publisher) judge(
	cancel <-chan struct{}, pid uint32, l *live, closing *handle, now state, st StageStat,
) verdict {
	if closing == nil {
		return verdict{publishes: true}
	}
	by := killedBy(pid)
	switch {
	case by != 0:
		return verdict{ends: true, no: pub.killed(pid, closing, by, now)}
	case pub.isStranger(pid, l, closing, st):
		return verdict{}
	case pub.defersEmpty(closing, pid, st.Size):
		return verdict{ends: true}
	case pub.defersToOpener(closing, pid):
		return verdict{ends: true, no: pub.leave(cancel, pid, closing, st)}
	case pub.isLeftByKilled(closing, st):
		return verdict{ends: true, no: syscall.EIO}
	}
	return verdict{publishes: true}
}

// publishFor publishes a live file for a request of a process, and waits for it.
func (pub *publisher) publishFor(cancel <-chan struct{}, pid uint32, l *live) syscall.Errno {
	r := pub.publish(l, roundBytes)
	if r.wait(pub.life.ctx, cancel, pid) {
		return syscall.EIO
	}
	return fail(pub.log, "publish", l.node.ino(), r.err)
}

// A file need not be published when a process closes a descriptor of it, since the file is not finished: nobody is
// shown a version before its writer is done. There are two such cases: [publisher.defersEmpty] and
// [publisher.defersToOpener]. If no other FLUSH follows, the file is published after its last close. What a process
// still has must be the open that is closed here: a descriptor that may write, of a file that was opened for writing
// once.

// defersEmpty is the case of a file that is empty, of which the process itself has another descriptor: dup2 and close
// are how a shell or dd opens its output.
func (pub *publisher) defersEmpty(h *handle, pid uint32, size int64) bool {
	return size == 0 && pub.writersOf(pid, h.live).n > 0 && pub.putOff(h)
}

// defersToOpener is the case of a process that closes what it inherited, while the process that opened the file still
// has it open.
func (pub *publisher) defersToOpener(h *handle, pid uint32) bool {
	return otherProcess(pid, h.opener) && pub.writersOf(h.opener, h.live).n > 0 && pub.putOff(h)
}

// writersOf are the descriptors of a task that may write a live file.
func (pub *publisher) writersOf(tid uint32, l *live) openWriters {
	return countWriters(tid, pub.device, uint64(l.node.ino()))
}

// putOff notes that a FLUSH is answered without a publish, if the handle is the only one that may write.
func (pub *publisher) putOff(h *handle) bool {
	if pub.othersWriting(h.live, h) > 0 {
		return false
	}
	h.live.mu.Lock()
	defer h.live.mu.Unlock()
	h.live.deferred = true
	return true
}

// execWait is how long a program that is in execve waits for the cluster when it closes a file.
const execWait = 300 * time.Millisecond

// leave is a close that leaves its bytes to the process that opened the file. That one's close may have nobody who
// hears of a failure: so this one fails if the cluster takes no changes. A program that is in execve does not hear of
// it either, and is not held up.
func (pub *publisher) leave(cancel <-chan struct{}, pid uint32, h *handle, st StageStat) syscall.Errno {
	l := h.live
	if h.live.still(h.opened, st) {
		return 0 // nothing was written by it
	}
	l.leftBy(processOf(pid))
	ctx, stop := pub.life.callContext(cancel, pid)
	defer stop()
	answer := make(chan error, 1)
	pub.life.work.Go(func() { answer <- pub.names.cluster.TakesChanges(ctx) })
	looked := make(chan struct{})
	go func() { // ends at the latest when the task has been answered
		defer close(looked)
		_, _ = readProc(pid, "stat", descriptorWait)
	}()
	late := time.NewTimer(execWait)
	defer late.Stop()
	select {
	case err := <-answer:
		return fail(pub.log, "close", l.node.ino(), err)
	case <-looked:
	case <-late.C:
		return 0
	}
	return fail(pub.log, "close", l.node.ino(), <-answer)
}

// killed is the close of a process that was killed. If it closes what it inherited as its standard output, and has
// written, then what it left is not finished, and its shell does not publish it.
func (pub *publisher) killed(pid uint32, h *handle, by unix.Signal, now state) syscall.Errno {
	l := h.live
	no := pub.keepForKilled(l)
	// A writer of a pipe that nobody reads any more ends by a signal too.
	if by == unix.SIGPIPE || !wroteAnything(pid) || !otherProcess(pid, h.opener) ||
		!pub.writersOf(h.opener, l).standard {
		return no
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h.killed = now
	return no
}

// isLeftByKilled reports whether all that is unpublished was there when a command was killed that had inherited a
// handle. What was written since then shows that the shell, or a command that came later, goes on with the file.
func (pub *publisher) isLeftByKilled(h *handle, st StageStat) bool {
	l := h.live
	l.mu.Lock()
	was := h.killed
	l.mu.Unlock()
	return l.isKilled() && l.still(was, st)
}

// keptForKilled is why bytes of a process that was killed are kept.
const keptForKilled = "the writing process was killed"

// othersWriting counts the handles of a live file that may write, besides h, which is one of them or nil. Other handles
// that have closed may not be released yet: it waits for them. For a live file it gives up such a wait at most once.
func (pub *publisher) othersWriting(l *live, h *handle) int {
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
			return others
		}
		select {
		case <-tick.C:
		case <-pub.life.ctx.Done():
			return others
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
	l.kept = keptForKilled
	l.mu.Unlock()
	return syscall.EIO
}
