package content

import (
	"errors"
	"fmt"
)

// pin finds a content in one of the states and keeps its files until unpin. It waits while another has
// claimed the content.
func (ix *index) pin(id ID, states ...State) (*entry, error) {
	return ix.take(id, (*entry).pinLocked, states...)
}

func (e *entry) pinLocked() { e.pins++ }

// take finds a content in one of the states once no claim is on it, for one more user of the store.
func (ix *index) take(id ID, how func(*entry), states ...State) (*entry, error) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e, err := ix.findIdleLocked(id, states...)
	if err != nil {
		return nil, err
	}
	if err := ix.enterLocked(); err != nil {
		return nil, err
	}
	how(e)
	return e, nil
}

// pinBase is pin for what staged bytes are over, if it was deleted: they keep it. It returns nil if it was not deleted.
func (ix *index) pinBase(token uint64, id ID) (*entry, error) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id]
	if e == nil || !e.dead || ix.bases[token] != id {
		return nil, nil
	}
	if err := ix.enterLocked(); err != nil {
		return nil, err
	}
	e.pinLocked()
	return e, nil
}

// unpin undoes pin and removes the content if that was all it waited for.
func (ix *index) unpin(id ID) error {
	ix.mu.Lock()
	if e := ix.all[id]; e != nil {
		e.pins--
	}
	err := ix.reapLocked(id)
	ix.leaveLocked()
	ix.mu.Unlock()
	return err
}

// claim takes the files of a content for one owner for a short time; see unclaim.
func (ix *index) claim(id ID, states ...State) (*entry, error) {
	return ix.take(id, (*entry).claimLocked, states...)
}

func (e *entry) claimLocked() { e.busy, e.idle = true, make(chan struct{}) }

func (e *entry) unclaimLocked() {
	e.busy = false
	if e.idle != nil {
		close(e.idle)
		e.idle = nil
	}
}

// unclaim ends a claim; change, if not nil, is applied to the entry under the lock.
func (ix *index) unclaim(id ID, change func(*entry)) error {
	ix.mu.Lock()
	if e := ix.all[id]; e != nil {
		if change != nil {
			change(e)
		}
		e.unclaimLocked()
	}
	err := ix.reapLocked(id)
	ix.leaveLocked()
	ix.mu.Unlock()
	return err
}

// claimPair claims a delta and its base if only this delta keeps a dead base, and nobody has either open.
func (ix *index) claimPair(id ID) (base ID, ok bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id]
	if e == nil || e.dead || e.busy || e.folding || e.state != Committed || e.pins > 0 || e.deps > 0 {
		return base, false
	}
	b := ix.all[e.base]
	if b == nil || !b.dead || b.busy || b.damaged || b.state != Committed || !b.base.IsZero() || b.pins > 0 ||
		b.deps != 1 {
		return base, false
	}
	if ix.enterLocked() != nil {
		return base, false
	}
	e.claimLocked()
	b.claimLocked()
	return e.base, true
}

// unclaimPair ends what claimPair began. begun says that the base's file is not the base's any more: then, with an
// error, it is nobody's until the next Open. The folded content counts as checked if both were. m is the mark of its
// file now; zero if the base's file had been changed.
func (ix *index) unclaimPair(id, base ID, begun bool, m mark, err error) error {
	ix.mu.Lock()
	e, b := ix.all[id], ix.all[base]
	if begun && err == nil {
		e.base, e.damaged = ID{}, false
		e.checked, e.mark = e.checked && b.checked && m != mark{}, m
		b.unclaimLocked()
		delete(ix.all, base)
	} else {
		if begun && !e.damaged {
			e.damaged = true
			ix.noteFound()
		}
		b.unclaimLocked()
	}
	ix.mu.Unlock()
	return ix.unclaim(id, nil)
}

// reapLocked removes the content if it is dead and nothing needs it, then its base likewise. It gives the
// lock up while files are removed.
func (ix *index) reapLocked(id ID) error {
	var errs error
	for !id.IsZero() {
		e := ix.all[id]
		if e == nil || !e.dead || e.busy || e.pins > 0 || e.deps > 0 {
			return errs
		}
		e.busy = true
		base, state := e.base, e.state
		ix.mu.Unlock()
		errs = errors.Join(errs, ix.files.remove(id, base, state))
		ix.mu.Lock()
		delete(ix.all, id)
		if b := ix.all[base]; b != nil {
			b.deps--
		}
		id = base
	}
	return errs
}

func kill(e *entry) { e.dead = true }

// remove removes a content that is in one of the states, once nothing needs it.
func (ix *index) remove(id ID, states ...State) error {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id]
	if e == nil || e.dead {
		return nil
	}
	for _, state := range states {
		if e.state == state {
			if err := ix.enterLocked(); err != nil {
				return err
			}
			e.dead = true
			err := ix.reapLocked(id)
			ix.leaveLocked()
			return err
		}
	}
	return fmt.Errorf("content: remove %s: it is %s: %w", id, e.state, ErrExists)
}

// takePartial makes a partial content busy until its Receiving is closed.
func (ix *index) takePartial(id ID) (base ID, err error) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e, err := ix.findLocked(id, Partial)
	if err == nil {
		err = ix.enterLocked()
	}
	if err != nil {
		return ID{}, err
	}
	e.busy = true
	return e.base, nil
}

// reserveID enters a new or a partial content as busy. left says that files of an earlier Receiving are there.
func (ix *index) reserveID(id, base ID) (left bool, err error) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	old := ix.all[id]
	switch {
	case old == nil:
	case old.dead || old.busy:
		return false, ErrBusy
	case old.state != Partial:
		return false, fmt.Errorf("it is %s: %w", old.state, ErrExists)
	case old.base != base:
		return false, fmt.Errorf("partial over another base: %w", ErrBusy)
	}
	if !base.IsZero() {
		if err := ix.checkBaseLocked(base); err != nil {
			return false, err
		}
		if old != ix.all[id] {
			return false, ErrBusy // another began it while this waited for the base
		}
	}
	if err := ix.enterLocked(); err != nil {
		return false, err
	}
	if old != nil {
		old.busy = true
		return true, nil
	}
	if b := ix.all[base]; b != nil {
		b.deps++
	}
	ix.all[id] = &entry{state: Partial, base: base, busy: true}
	return false, nil
}

// checkBaseLocked reports why base can't be a base. It may give the lock up for a while.
func (ix *index) checkBaseLocked(base ID) error {
	b, err := ix.findIdleLocked(base, Undecided, Committed)
	switch {
	case err != nil:
		return fmt.Errorf("base %s: %w: %w", base, ErrNoBase, err)
	case b.damaged:
		return fmt.Errorf("base %s: damaged: %w", base, ErrNoBase)
	case ix.depthLocked(base) >= DepthMax:
		return fmt.Errorf("base %s: %w", base, ErrTooDeep)
	}
	return nil
}

// startFold allows one fold of a content at a time.
func (ix *index) startFold(id ID) error {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id] // pinned by the caller's reader
	if e.folding {
		return ErrBusy
	}
	e.folding = true
	return nil
}

// endFold ends what startFold began.
func (ix *index) endFold(id ID) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if e := ix.all[id]; e != nil {
		e.folding = false
	}
}

// rebase makes a content, all of which was read and checked, one over another base. m is the mark of its data file if
// it is plain now. The old base is needed until letBase.
func (ix *index) rebase(id, to ID, m mark) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	e := ix.all[id]
	e.base = to
	e.damaged, e.mark = false, m
	if b := ix.all[to]; b != nil {
		b.deps++
	}
}

// letBase counts one user of a base less.
func (ix *index) letBase(base ID) error {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if b := ix.all[base]; b != nil {
		b.deps--
	}
	return ix.reapLocked(base)
}

// needBase keeps the base of an overlay for as long as its staged bytes are there: they are nothing without it.
func (ix *index) needBase(token uint64, base ID) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if e := ix.all[base]; e != nil {
		e.deps++
		ix.bases[token] = base
	}
}

// dropBase undoes needBase.
func (ix *index) dropBase(token uint64) error {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	base, ok := ix.bases[token]
	if !ok {
		return nil
	}
	delete(ix.bases, token)
	if e := ix.all[base]; e != nil {
		e.deps--
	}
	return ix.reapLocked(base)
}
