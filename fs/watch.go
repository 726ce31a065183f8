package fs

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	watchFirst = 50 * time.Millisecond
	watchMax   = 5 * time.Second
	// watchBlind is how long is watched where the kernel cannot say whether a mapping lives.
	watchBlind = time.Minute
	// watchShare bounds the part of the time that is spent on comparing.
	watchShare = 20
)

// watch looks after a live file whose last writer is gone: stores through a mapping that is still there, and writes
// that came after the last FLUSH, are published. It reports whether it took over the caller's count of busy.
func (pub *publisher) watch(l *live) bool {
	l.mu.Lock()
	// there was no FLUSH, or it failed and said so
	skip := l.kept != "" || l.tmp != nil || !l.published.valid && !l.deferred
	l.mu.Unlock()
	if skip || pub.nodes.isRemoved(l.node) {
		return false
	}
	st, err := l.stage.Stat()
	if err != nil || l.unchanged(st) {
		return false
	}
	pub.life.work.Go(func() {
		pub.watchMapping(l)
		pub.done(l)
	})
	return true
}

// watchMapping publishes what changes until nothing can change any more.
func (pub *publisher) watchMapping(l *live) {
	began := time.Now()
	for wait := watchFirst; ; wait = min(2*wait, watchMax) {
		mapped, known := pub.mayStore(l)
		look := time.Now()
		r := pub.publish(l, roundIdle)
		select {
		case <-r.done:
		case <-pub.life.ctx.Done():
			return
		}
		if r.err != nil {
			pub.log.Warn("publish what was written after close", "inode", uint64(l.node.ino()), "err", r.err)
		}
		if !mapped || !known && time.Since(began) > watchBlind {
			return
		}
		timer := time.NewTimer(max(wait, watchShare*time.Since(look)))
		select {
		case <-timer.C:
		case <-pub.life.ctx.Done():
			timer.Stop()
			return
		}
	}
}

// mayStore reports whether anybody but us may have the staged file open or mapped for writing. Only a write lease on
// our own descriptor shows this: it is refused while there is another descriptor. An open that meets the lease fails,
// if it does not wait or a signal comes; so there must be no handle, whose open the kernel may not have ended yet, and
// no new one until the lease is gone. known is false where there are no leases.
func (pub *publisher) mayStore(l *live) (may, known bool) {
	fd := l.stage.Fd()
	if fd < 0 || !l.backing.on() {
		return false, true // a mapping would have kept its handle open
	}
	pub.nodes.mu.Lock()
	defer pub.nodes.mu.Unlock()
	if l.users.handles > 0 {
		return true, true
	}
	if l.taken != nil {
		pub.pass.renew(l.backing) // it has a descriptor of its own: see Staging.TakeOver
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	switch err {
	case nil:
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
		return false, err == nil
	case unix.EAGAIN:
		return true, true
	}
	return true, false
}
