package clusterlock

import (
	"github.com/rdmcfs/rdmcfs/internal/filelock"
	"github.com/rdmcfs/rdmcfs/meta"
)

// Apply takes the effects of applied entries, in the order of the log. It waits for nothing.
func (t *Locks) Apply(events []meta.Event) {
	for i := range events {
		switch events[i].Kind {
		case meta.EventLockAnswered, meta.EventLockRecalled, meta.EventFenced:
			t.effect(&events[i])
		}
	}
}

func (t *Locks) effect(e *meta.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Node != t.lease.Node {
		return
	}
	if e.Kind == meta.EventFenced {
		if e.Incarnation >= t.lease.Incarnation {
			t.loseLocked()
		}
		return
	}
	if e.Incarnation != t.lease.Incarnation {
		return
	}
	if e.Kind == meta.EventLockRecalled {
		if f := t.files[uint64(e.Ino)]; f != nil {
			t.recallLocked(f)
		}
		return
	}
	if e.Answer == meta.LockDelegated {
		t.adoptLocked(uint64(e.Ino), e.Number)
	}
	if w := t.asked[e.Request]; w != nil {
		t.answerLocked(w, answerOf(e.Answer))
	}
}

func answerOf(a meta.LockAnswer) answer {
	switch a {
	case meta.LockGranted:
		return answerGranted
	case meta.LockRefused:
		return answerRefused
	case meta.LockDeadlock:
		return answerDeadlock
	}
	return answerAgain
}

// adoptLocked notes that a file is delegated to this node.
func (t *Locks) adoptLocked(ino, number uint64) {
	f := t.fileLocked(ino)
	if f.delegated == number {
		return
	}
	f.delegated, f.recalled = number, false
	if len(t.files) > delegationsMax {
		t.shedLocked(f)
	}
}

// shedLocked gives back a delegation that nobody uses.
func (t *Locks) shedLocked(but *file) {
	for ino, f := range t.files {
		if f != but && f.decides() && f.idle == nil && f.asking == 0 && t.own.Count(ino) == 0 {
			t.recallLocked(f)
			return
		}
	}
}

// Restored is called instead of Apply when the whole state was replaced.
func (t *Locks) Restored() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lease != (meta.Lease{}) && !t.log.Alive(t.lease) {
		t.loseLocked()
		return
	}
	for _, w := range t.asked {
		if f := t.files[w.ino]; f != nil && w.arrived() {
			t.compareLocked(f, w)
		}
	}
	for ino, f := range t.files {
		have, err := t.log.FileLocks(meta.Ino(ino))
		if err == nil && have.Holder == t.lease && have.Number == f.delegated && len(have.Waiting) > 0 {
			t.recallLocked(f)
		}
	}
}

// arrived reports whether the log has a request.
func (w *wait) arrived() bool {
	select {
	case <-w.asked:
		return true
	default:
		return false
	}
}

// compareLocked finds the answer to a request that the log has in the state, if it has one.
func (t *Locks) compareLocked(f *file, w *wait) {
	if w.finished() {
		return
	}
	have, err := t.log.FileLocks(meta.Ino(w.ino))
	if err != nil {
		return // the state is damaged, and is replaced next
	}
	mine := func(l filelock.Lock) bool {
		return meta.NodeID(l.Owner.Node) == t.lease.Node && l.Owner.Incarnation == t.lease.Incarnation &&
			l.Request == w.number
	}
	for _, r := range have.Waiting {
		if mine(r.Lock) {
			return
		}
	}
	for _, l := range have.Held {
		if mine(l) {
			t.answerLocked(w, answerGranted)
			return
		}
	}
	if have.Holder == t.lease {
		t.adoptLocked(w.ino, have.Number)
		if len(have.Waiting) > 0 {
			t.recallLocked(f)
		}
	}
	t.answerLocked(w, answerAgain)
}

// ended notes that an incarnation has ended.
func (t *Locks) ended(l meta.Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lease == l {
		t.loseLocked()
	}
}

// Rename gives a file of a mount another number. If locks move with it, the new number is asked for.
func (t *Locks) Rename(space, from, to uint64) {
	t.mu.Lock()
	tickets, wants := t.own.Waiting(from)
	for i, ticket := range tickets {
		if wants[i].Owner.Space == space {
			t.waits[ticket].ino = to
		}
	}
	for f, l := range t.lost {
		if l.ino == from && f.space == space {
			l.ino = to
			t.lost[f] = l
		}
	}
	t.wakeLocked(t.own.Rename(space, from, to))
	if f := t.files[from]; f != nil {
		t.forgetLocked(f)
	}
	held := t.own.Held(to)
	t.mu.Unlock()
	if len(held) == 0 {
		return
	}
	t.work.Go(func() {
		t.mu.Lock()
		t.enterLocked()
		f := t.fileLocked(to)
		if f.decides() {
			t.mu.Unlock()
			return
		}
		w := t.requestLocked(f, held[0], false, false)
		t.mu.Unlock()
		select {
		case <-w.done:
		case <-t.ctx.Done():
		}
	})
}
