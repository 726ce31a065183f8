package clusterlock

import (
	"context"

	"github.com/rdmcfs/rdmcfs/internal/filelock"
	"github.com/rdmcfs/rdmcfs/meta"
)

// everything is the range of a whole file.
const everything = 1<<64 - 1

// Leaves reports whether giving back a lock of an owner is something that other nodes hear of: then what was written
// under it has to be published before.
func (t *Locks) Leaves(ino uint64, l filelock.Lock) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, had := t.own.Own(ino, l)
	f := t.files[ino]
	return had && f != nil && !f.decides() && !t.local(ino)
}

// HasRecords reports whether an owner has record locks of a file.
func (t *Locks) HasRecords(ino uint64, owner filelock.Owner) bool {
	_, had := t.Own(ino, filelock.Lock{Kind: filelock.Record, Owner: owner, End: everything})
	return had
}

// CanUnlock reports whether a program may give a lock back: not if that would cut one in two, of a file that has too
// many. Else it could have more than the log takes from a node.
func (t *Locks) CanUnlock(ino uint64, l filelock.Lock) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.own.Cuts(ino, l) || t.own.Count(ino) < meta.NodeLocksMax
}

// Unlock gives a lock back. If the log decides about the file, it waits until the log has taken that, or ctx ends; the
// log takes it in any case.
func (t *Locks) Unlock(ctx context.Context, ino uint64, l filelock.Lock) {
	t.give(ctx, ino, meta.ScopeRange, l)
}

// CloseDescriptor gives back the record locks of an owner.
func (t *Locks) CloseDescriptor(ctx context.Context, ino uint64, owner filelock.Owner) {
	t.give(ctx, ino, meta.ScopeDescriptor, filelock.Lock{Kind: filelock.Record, Owner: owner, End: everything})
}

// CloseHandle gives back what was taken by an open file.
func (t *Locks) CloseHandle(ctx context.Context, ino, space, handle uint64) {
	t.give(ctx, ino, meta.ScopeHandle, filelock.Lock{Owner: filelock.Owner{Space: space}, Handle: handle})
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.lost, openFile{space, handle})
}

// CloseSpace gives back all locks of a mount that has ended.
func (t *Locks) CloseSpace(ctx context.Context, space uint64) {
	t.mu.Lock()
	files := t.own.Files(space)
	for of := range t.lost {
		if of.space == space {
			delete(t.lost, of)
		}
	}
	t.mu.Unlock()
	for _, ino := range files {
		t.give(ctx, ino, meta.ScopeSpace, filelock.Lock{Owner: filelock.Owner{Space: space}})
	}
}

// Holds reports whether anything is held by an open file.
func (t *Locks) Holds(ino, space, handle uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.own.Holds(ino, space, handle)
}

// Guard is the incarnation under which programs of a mount have an exclusive lock of a file, and the one with which
// open files of it have lost one; zero: they have not. What is written under a lock must not be published under another
// incarnation.
func (t *Locks) Guard(ino, space uint64) (held, lost meta.Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.enterLocked()
	if t.local(ino) {
		return held, lost
	}
	for f, l := range t.lost {
		if l.ino == ino && f.space == space && l.exclusive && l.lease.Incarnation >= lost.Incarnation {
			lost = l.lease
		}
	}
	for _, l := range t.own.Held(ino) {
		if l.Owner.Space == space && l.Mode == filelock.Exclusive {
			held = t.lease
		}
	}
	return held, lost
}

// Ended reports whether an incarnation is not this node's present one.
func (t *Locks) Ended(l meta.Lease) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.enterLocked()
	return t.lease != l
}

func (t *Locks) give(ctx context.Context, ino uint64, what meta.LockScope, l filelock.Lock) {
	t.mu.Lock()
	had, granted := t.dropLocked(ino, what, l)
	t.wakeLocked(granted)
	f := t.files[ino]
	if f == nil || !had || f.delegated != 0 && !f.sent() || t.local(ino) {
		if f != nil {
			t.forgetLocked(f)
		}
		t.mu.Unlock()
		return
	}
	ch := t.queueLocked(f, what, l)
	t.mu.Unlock()
	select {
	case <-ch.done:
	case <-ctx.Done():
	case <-t.ctx.Done():
	}
}

// dropLocked takes locks out of the node's table.
func (t *Locks) dropLocked(ino uint64, what meta.LockScope, l filelock.Lock) (had bool, granted []filelock.Ticket) {
	before := t.own.Held(ino)
	switch what {
	case meta.ScopeRange:
		granted = t.own.Unlock(ino, l)
	case meta.ScopeDescriptor:
		granted = t.own.CloseDescriptor(ino, l.Owner)
	case meta.ScopeHandle:
		granted = t.own.CloseHandle(ino, l.Owner.Space, l.Handle)
	case meta.ScopeSpace:
		granted = t.own.Drop(ino, func(have filelock.Lock) bool { return have.Owner.Space == l.Owner.Space })
	}
	return !filelock.Same(before, t.own.Held(ino)), granted
}

// queueLocked has the log take something of a file, after all that waits for that already.
func (t *Locks) queueLocked(f *file, what meta.LockScope, l filelock.Lock) *change {
	c := &change{done: make(chan struct{}), op: &meta.UnlockFile{
		Incarnation: t.lease.Incarnation, Ino: meta.Ino(f.ino), What: what, Lock: l,
	}}
	f.queue = append(f.queue, c)
	t.beginLocked(f)
	return c
}

// recallLocked has a delegation given back.
func (t *Locks) recallLocked(f *file) {
	if f.delegated == 0 || f.recalled {
		return
	}
	f.recalled = true
	t.beginLocked(f)
}

// beginLocked starts the work of a file with the log, unless it is under way.
func (t *Locks) beginLocked(f *file) {
	if f.idle != nil || f.over {
		return
	}
	f.idle = make(chan struct{})
	lease := t.lease
	t.work.Go(func() { t.settle(f, lease) })
}

// settle brings to the log what it is to have of a file, one thing after the other.
func (t *Locks) settle(f *file, lease meta.Lease) {
	for {
		t.mu.Lock()
		switch {
		case f.over:
			t.mu.Unlock()
			return
		case f.recalled && f.delegated != 0:
			t.mu.Unlock()
			t.giveBack(f, lease)
		case len(f.queue) > 0:
			c := f.queue[0]
			t.mu.Unlock()
			t.awaitAsked(c)
			res, taken := t.bring(f, c.op)
			t.changed(f, c, res, taken)
		default:
			f.rest()
			t.forgetLocked(f)
			t.mu.Unlock()
			return
		}
		if t.ctx.Err() != nil {
			return
		}
	}
}

// awaitAsked waits until the log has the request that is to be withdrawn, or will not get it.
func (t *Locks) awaitAsked(c *change) {
	if c.w == nil {
		return
	}
	select {
	case <-c.w.asked:
	case <-t.ctx.Done():
	}
}

func (t *Locks) changed(f *file, c *change, res meta.Result, taken bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !taken || f.over || len(f.queue) == 0 || f.queue[0] != c {
		return
	}
	f.queue = f.queue[1:]
	if c.w != nil {
		t.withdrawnLocked(c.w, res.Existed)
	}
	close(c.done)
}

// giveBack gives a delegation back: what programs hold and wait for goes with it.
func (t *Locks) giveBack(f *file, lease meta.Lease) {
	t.log.Publish(t.ctx, meta.Ino(f.ino))
	t.mu.Lock()
	number := f.delegated
	if f.over || number == 0 {
		t.mu.Unlock()
		return
	}
	op := &meta.ReturnLocks{Incarnation: lease.Incarnation, Ino: meta.Ino(f.ino), Number: number,
		Held: t.own.Held(f.ino)}
	tickets, wants := t.own.Waiting(f.ino)
	asked := make(chan struct{})
	for i, ticket := range tickets {
		w := t.waits[ticket]
		delete(t.waits, ticket)
		t.own.Cancel(ticket)
		t.next++
		w.number, w.want.Request = t.next, t.next
		t.asked[w.number], w.asked = w, asked
		f.asking++
		wants[i].Request = w.number
	}
	op.Waiting = wants
	f.returning = true
	t.mu.Unlock()
	t.bring(f, op)
	t.mu.Lock()
	defer t.mu.Unlock()
	close(asked)
	f.returning = false
	if f.over {
		return
	}
	if f.delegated == number {
		f.delegated, f.recalled = 0, false
	}
	for _, w := range t.asked { // the answers may have been in a snapshot
		if w.asked == asked {
			t.compareLocked(f, w)
		}
	}
}

// sent reports whether a delegation is on its way back: the log decides about what changes from now on.
func (f *file) sent() bool { return f.returning }

// bring proposes until the log has taken something; false if the incarnation has ended.
func (t *Locks) bring(f *file, op meta.Op) (meta.Result, bool) {
	for {
		res, err := t.log.Propose(t.ctx, op)
		if err == nil {
			return res, true
		}
		t.mu.Lock()
		over := f.over
		t.mu.Unlock()
		if over || !pause(t.ctx, nil, retryPause) {
			return res, false
		}
	}
}
