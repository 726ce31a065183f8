package meta

import (
	"syscall"
)

// WindowSize is how many results are kept above the highest proposal that a node has acknowledged, with all before it.
// Proposals beyond are refused with EAGAIN, which decides nothing: the same bytes may be applied when they come again.
const WindowSize = 4096

// freePerEntry is how many reservations of dead leases an ordinary entry frees on the side; freePerSweep how
// many an entry frees that is meant for it (fences, Expire). Both keep entries within one transaction.
const (
	freePerEntry = 16
	freePerSweep = 1000
)

// run applies the entry and returns its result. It has no effect outside the overlay.
func (t *tx) run(data []byte) Result {
	if len(data) == 0 {
		return Result{Index: t.head.Index}
	}
	e, err := DecodeEntry(data)
	if err != nil {
		return Result{Index: t.head.Index, Errno: syscall.ENOSYS}
	}
	t.entry = e
	if e.Format > t.head.format() {
		return Result{Index: t.head.Index, Errno: syscall.ENOSYS} // as on a node that does not know it
	}
	if e.Generation != t.head.Generation {
		return Result{Index: t.head.Index, Errno: syscall.ESTALE}
	}
	if e.Incarnation == 0 {
		return t.attempt(t.runAnonymous)
	}
	return t.runOnce()
}

// runAnonymous runs the operations that are harmless to repeat and need no booted proposer.
func (t *tx) runAnonymous() (Result, syscall.Errno) {
	switch t.entry.Op.(type) {
	case *Join, *Boot, *Down, *Evict, *EvictSpare, *Drain, *Expire, *AddToken, *SetVoters, *RaiseFormat:
		return t.dispatch()
	}
	return Result{}, syscall.ESTALE
}

// runOnce runs an operation of a booted node exactly once by its number.
func (t *tx) runOnce() Result {
	e := &t.entry
	if !t.cl.alive(t.lease()) {
		return Result{Index: t.head.Index, Errno: syscall.ESTALE, Fenced: true}
	}
	if e.Seq == 0 || e.Acked >= e.Seq {
		return Result{Index: t.head.Index, Errno: syscall.EINVAL}
	}
	acked := t.progressOf(e.Node).Acked
	if e.Seq <= acked {
		return Result{Index: t.head.Index, Errno: syscall.ESTALE, Duplicate: true}
	}
	key := resultKey(e.Node, e.Seq)
	var old Result
	if t.load(key, &old) {
		old.Duplicate = true
		return old
	}
	if e.Seq > max(acked, e.Acked)+WindowSize {
		return Result{Index: t.head.Index, Errno: syscall.EAGAIN}
	}
	res := t.attempt(t.dispatch)
	t.forget(e.Node, e.Acked)
	if t.cl.alive(t.lease()) {
		t.save(key, &res)
	}
	return res
}

// attempt runs fn; with an errno it has no effect.
func (t *tx) attempt(fn func() (Result, syscall.Errno)) Result {
	h, cl := t.head, t.cl
	res, errno := fn()
	if errno != ok {
		t.undo(h, cl)
		res.Errno = errno
	}
	res.Index = t.head.Index
	return res
}

// forget drops the results of a node's proposals at or below acked.
func (t *tx) forget(node NodeID, acked uint64) {
	p := t.progressOf(node)
	for seq := p.Acked + 1; seq <= acked && seq <= p.Acked+WindowSize; seq++ {
		t.del(resultKey(node, seq))
	}
	p.Acked = max(p.Acked, acked)
}

func (t *tx) dispatch() (Result, syscall.Errno) {
	if _, sweep := t.entry.Op.(*Expire); t.head.Freeing && !sweep {
		membership{t}.freeDead(freePerEntry)
	}
	switch o := t.entry.Op.(type) {
	case *Create:
		return tree{t}.create(o)
	case *Reserve:
		return delegations{t}.reserve(o)
	case *Link:
		return tree{t}.link(o)
	case *Unlink:
		return tree{t}.unlink(o)
	case *Rmdir:
		return tree{t}.rmdir(o)
	case *Rename:
		return tree{t}.rename(o)
	case *SetAttr:
		return attributes{t}.setAttr(o)
	case *Publish:
		return publications{t}.publish(o)
	case *Abort:
		return publications{t}.abort(o)
	case *Restore:
		return contents{t}.restore(o)
	case *Undelete:
		return removals{t}.undelete(o)
	case *Held:
		return contents{t}.held(o)
	case *Unheld:
		return contents{t}.unheld(o)
	case *Release:
		return contents{t}.release(o)
	case *Expire:
		return t.expire()
	}
	return t.dispatchCluster()
}

func (t *tx) dispatchCluster() (Result, syscall.Errno) {
	switch o := t.entry.Op.(type) {
	case *Join:
		return membership{t}.join(o)
	case *Boot:
		return membership{t}.boot(o)
	case *Down:
		return membership{t}.down(o)
	case *Evict:
		return membership{t}.evict(o)
	case *EvictSpare:
		return membership{t}.evictSpare(o)
	case *Drain:
		return membership{t}.drain(o)
	case *RaiseFormat:
		return membership{t}.raise(o)
	case *SetPolicy:
		return attributes{t}.setPolicy(o)
	case *AddToken:
		return membership{t}.addToken(o)
	case *SetVoters:
		return membership{t}.setVoters(o)
	case *DelegateNames:
		return delegations{t}.delegate(o)
	case *ReturnNames:
		return delegations{t}.giveBack(o)
	case *RecallNames:
		return delegations{t}.recall(o)
	case *Audit:
		return auditTrail{t}.note(o)
	}
	return lockTable{t}.dispatch()
}
