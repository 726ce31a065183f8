package clusterlock

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/filelock"
	"github.com/rdmcfs/rdmcfs/meta"
)

// Take takes a lock. With wait it waits for other owners, until interrupted is closed or ctx ends.
func (t *Locks) Take(
	ctx context.Context, interrupted <-chan struct{}, ino uint64, want filelock.Lock, wait bool,
) (filelock.Answer, error) {
	c := call{t: t, ctx: ctx, interrupted: interrupted, ino: ino, want: want, wait: wait}
	defer c.end()
	for {
		a, err := c.once()
		if err != nil || a != answerAgain {
			return c.result(a, err)
		}
		if c.stopped() {
			return filelock.Refused, ErrInterrupted
		}
	}
}

// call is one call of a program for a lock.
type call struct {
	t           *Locks
	ctx         context.Context
	interrupted <-chan struct{}
	ino         uint64
	want        filelock.Lock
	wait        bool
	test        bool
	had         bool // the owner held something of that before
	lease       meta.Lease
	orderly     *time.Timer // bounds the wait for unlocks
}

func (c *call) end() {
	if c.orderly != nil {
		c.orderly.Stop()
	}
}

func (c *call) stopped() bool {
	select {
	case <-c.interrupted:
		return true
	case <-c.ctx.Done():
		return true
	case <-c.t.ctx.Done():
		return true
	default:
		return false
	}
}

func (c *call) result(a answer, err error) (filelock.Answer, error) {
	switch {
	case err != nil:
		return filelock.Refused, err
	case a == answerGranted:
		return filelock.Granted, nil
	case a == answerDeadlock:
		return filelock.Deadlock, nil
	}
	return filelock.Refused, nil
}

// once asks whoever decides now.
func (c *call) once() (answer, error) {
	t := c.t
	t.mu.Lock()
	t.enterLocked()
	c.lease = t.lease
	if _, lost := t.lost[openFile{c.want.Owner.Space, c.want.Handle}]; lost {
		t.mu.Unlock()
		return 0, ErrLost
	}
	f := t.fileLocked(c.ino)
	_, c.had = t.own.Own(c.ino, c.want)
	switch {
	case t.local(c.ino):
		return c.here(f)
	case f.idle != nil:
		idle := f.idle
		t.mu.Unlock()
		return c.awaitIdle(idle)
	case f.decides():
		return c.here(f)
	}
	w := t.requestLocked(f, c.want, c.wait, c.test)
	w.had = c.had
	t.mu.Unlock()
	a, err := c.await(w)
	if a == answerGranted && !c.test {
		return c.confirmed(a)
	}
	return a, err
}

// awaitIdle waits until what is on its way to the log has arrived.
func (c *call) awaitIdle(idle <-chan struct{}) (answer, error) {
	if c.orderly == nil {
		c.orderly = time.NewTimer(orderPatience)
	}
	select {
	case <-idle:
		return answerAgain, nil
	case <-c.orderly.C:
		return 0, errUnsure
	case <-c.interrupted:
		return 0, ErrInterrupted
	case <-c.ctx.Done():
		return 0, c.ctx.Err()
	}
}

// here asks the node's own table. t.mu is held, and given back.
func (c *call) here(f *file) (answer, error) {
	t, local := c.t, c.t.local(c.ino)
	if c.test {
		t.mu.Unlock()
		return answerGranted, nil
	}
	if t.own.Count(c.ino) >= meta.NodeLocksMax {
		t.mu.Unlock()
		return 0, ErrTooMany
	}
	got, ticket, granted := t.own.Set(c.ino, c.want, c.wait && (local || c.want.Kind == filelock.Flock))
	t.wakeLocked(granted)
	var w *wait
	switch {
	case got == filelock.Waiting:
		w = &wait{ino: c.ino, want: c.want, ticket: ticket, had: c.had, done: make(chan struct{})}
		t.waits[ticket] = w
	case got == filelock.Refused && c.wait:
		t.recallLocked(f) // only the log sees who waits for whom
	}
	t.mu.Unlock()
	switch {
	case w != nil:
		a, err := c.await(w)
		if a == answerGranted && !t.local(c.ino) {
			return c.confirmed(a)
		}
		return a, err
	case got == filelock.Granted && !local:
		return c.confirmed(answerGranted)
	case got == filelock.Granted:
		return answerGranted, nil
	case got == filelock.Deadlock:
		return answerDeadlock, nil
	case c.wait:
		return answerAgain, nil
	}
	return answerRefused, nil
}

// requestLocked asks the log.
func (t *Locks) requestLocked(f *file, want filelock.Lock, wantWait, test bool) *wait {
	t.next++
	want.Request = t.next
	w := &wait{ino: f.ino, want: want, test: test, number: t.next, asked: make(chan struct{}), done: make(chan struct{})}
	t.asked[w.number] = w
	f.asking++
	op := &meta.LockFile{Incarnation: t.lease.Incarnation, Ino: meta.Ino(f.ino), Lock: want, Wait: wantWait, Test: test}
	t.work.Go(func() { t.ask(f, w, op) })
	return w
}

// ask brings a request to the log. The answer comes with an applied entry, which may be a later one.
func (t *Locks) ask(f *file, w *wait, op *meta.LockFile) {
	res, err := t.log.Propose(t.ctx, op)
	close(w.asked)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case w.finished():
	case err != nil:
		w.err = err
		t.answerLocked(w, answerFailed)
	case res.Errno == syscall.ESTALE || res.Fenced:
		t.answerLocked(w, answerAgain)
	case res.Errno != 0:
		w.err = res.Errno
		if res.Errno == syscall.ENOLCK {
			w.err = ErrTooMany
		}
		t.answerLocked(w, answerFailed)
	default: // the answer may have been in a snapshot
		t.compareLocked(f, w)
	}
}

// answerLocked ends a request to the log.
func (t *Locks) answerLocked(w *wait, a answer) {
	delete(t.asked, w.number)
	f := t.files[w.ino]
	f.asking--
	defer t.forgetLocked(f)
	if a == answerGranted && !w.test {
		want := w.want
		want.Request = 0
		if _, has := t.own.Own(w.ino, want); w.abandoned && !has {
			t.queueLocked(f, meta.ScopeRange, want)
		} else {
			t.own.Put(w.ino, want)
		}
	}
	if (a == answerRefused || a == answerDeadlock) && w.want.Kind == filelock.Flock {
		t.wakeLocked(t.own.Unlock(w.ino, w.want)) // it was given back, to change its mode
	}
	w.finish(a)
}

// await waits for the answer to a request, and withdraws it if its caller is interrupted. Whoever is interrupted at the
// moment in which the lock is granted has it.
func (c *call) await(w *wait) (answer, error) {
	no := ErrInterrupted
	select {
	case <-w.done:
		return c.answered(w)
	case <-c.interrupted:
	case <-c.ctx.Done():
		no = c.ctx.Err()
	}
	if c.t.withdraw(c, w) {
		return 0, no
	}
	<-w.done
	return c.answered(w)
}

func (c *call) answered(w *wait) (answer, error) {
	c.t.mu.Lock()
	c.ino = w.ino // the file may have got another number meanwhile
	c.t.mu.Unlock()
	switch w.answer {
	case answerFailed:
		return 0, w.err
	case answerLost:
		return answerAgain, nil // it holds nothing yet, and may ask again
	}
	return w.answer, nil
}

// withdraw ends a request; false if it has an answer.
func (t *Locks) withdraw(c *call, w *wait) bool {
	t.mu.Lock()
	if w.number == 0 && t.own.Cancel(w.ticket) {
		delete(t.waits, w.ticket)
		t.mu.Unlock()
		return true
	}
	f := t.files[w.ino]
	if w.finished() || f == nil {
		t.mu.Unlock()
		return !w.finished()
	}
	t.queueLocked(f, meta.ScopeRequest, w.want).w = w
	t.mu.Unlock()
	timer := time.NewTimer(withdrawPatience)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
	case <-c.ctx.Done():
	case <-t.ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !w.finished() {
		w.abandoned = true
		return true
	}
	return w.answer == answerAgain || w.answer == answerLost || w.answer == answerFailed
}

// withdrawnLocked notes that the log has withdrawn a request, or else has answered it before.
func (t *Locks) withdrawnLocked(w *wait, withdrawn bool) {
	if !w.finished() && !withdrawn {
		t.compareLocked(t.files[w.ino], w)
	}
	if w.finished() {
		return
	}
	if w.want.Kind == filelock.Flock {
		t.wakeLocked(t.own.Unlock(w.ino, w.want)) // a change of its mode begins with that
	}
	t.answerLocked(w, answerAgain)
}

// confirmed waits until a quorum has said that the incarnation is up under which a lock was granted. If none does, the
// lock is given back, unless that could take from the program what it had before.
func (c *call) confirmed(a answer) (answer, error) {
	t := c.t
	ctx, cancel := context.WithTimeout(c.ctx, confirmPatience)
	defer cancel()
	for {
		err := t.rounds.confirm(ctx, c.interrupted, t, c.lease)
		switch {
		case err == nil:
			t.mu.Lock()
			held := t.lease == c.lease
			t.mu.Unlock()
			if held {
				return a, nil
			}
			return 0, ErrLost
		case errors.Is(err, ErrEnded):
			t.ended(c.lease)
			return 0, ErrLost
		case !errors.Is(err, ErrInterrupted) && pause(ctx, c.interrupted, retryPause):
			continue
		}
		if !c.had {
			over, cancel := context.WithCancel(ctx)
			cancel()
			t.Unlock(over, c.ino, c.want) // in order before what this program asks next
		}
		if c.stopped() {
			return 0, ErrInterrupted
		}
		return 0, errors.Join(errUnsure, err)
	}
}

// pause waits; false if ctx ends, or the caller is interrupted.
func pause(ctx context.Context, interrupted <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-interrupted:
	case <-ctx.Done():
	}
	return false
}

// Conflict is a lock that excludes another one, if there is any. Locks of other nodes have no process.
func (t *Locks) Conflict(
	ctx context.Context, interrupted <-chan struct{}, ino uint64, want filelock.Lock,
) (filelock.Lock, bool, error) {
	c := call{t: t, ctx: ctx, interrupted: interrupted, ino: ino, want: want, test: true}
	defer c.end()
	for {
		l, found, known, err := t.look(ctx, &c)
		if err != nil || known {
			return l, found, err
		}
		if a, err := c.once(); err != nil || a != answerGranted && a != answerAgain {
			return filelock.Lock{}, false, err
		}
		if c.stopped() {
			return filelock.Lock{}, false, ErrInterrupted
		}
	}
}

// look looks for a conflict where that is known: here, or in the log.
func (t *Locks) look(ctx context.Context, c *call) (l filelock.Lock, found, known bool, err error) {
	t.mu.Lock()
	t.enterLocked()
	if f := t.files[c.ino]; t.local(c.ino) || f != nil && f.decides() && f.idle == nil {
		l, found = t.own.Conflict(c.ino, c.want)
		t.mu.Unlock()
		return l, found, true, nil
	}
	lease := t.lease
	t.mu.Unlock()
	if err = t.rounds.confirm(ctx, c.interrupted, t, lease); err != nil && !errors.Is(err, ErrEnded) {
		return l, false, false, err
	}
	have, err := t.log.FileLocks(meta.Ino(c.ino))
	if err != nil || have.Holder != (meta.Lease{}) {
		return l, false, false, err
	}
	want := c.want
	want.Owner.Node, want.Owner.Incarnation = uint32(lease.Node), lease.Incarnation
	l, found = filelock.Load(c.ino, have.Held, nil).Conflict(c.ino, want)
	if l.Owner.Node != uint32(lease.Node) {
		l.PID, l.Owner.Space = 0, 0
	}
	return l, found, true, nil
}

// Own is the first lock that an owner has himself, if there is any.
func (t *Locks) Own(ino uint64, l filelock.Lock) (filelock.Lock, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.own.Own(ino, l)
}
