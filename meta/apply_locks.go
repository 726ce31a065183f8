package meta

import (
	"bytes"
	"slices"
	"syscall"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/internal/filelock"
)

// fileLocksMax bounds the locks and requests of a file; one node brings half of them at most.
const fileLocksMax = 2 * NodeLocksMax

// NodeLocksMax bounds the locks and requests that one node has of a file.
const NodeLocksMax = 1024

// locksPerRow is how many locks cost as much as one row, where a sweep bounds its work.
const locksPerRow = 8

// LockRequest is a request for a lock that has no answer yet.
type LockRequest struct {
	filelock.Lock
	Wait, Test bool
}

// FileLocks is what the log has of the locks of a file. Either one node decides them, and requests of others wait until
// it has given that back; or the log has them all.
type FileLocks struct {
	Holder  Lease  // who decides; zero if the log does
	Number  uint64 // of the holder's delegation: the log index at which it began
	Held    []filelock.Lock
	Waiting []LockRequest
}

// fileLocks is the stored form, and the rows of the other tables that were written for it.
type fileLocks struct {
	FileLocks
	rows [][]byte
	size int // locks and requests that were read
}

func (r *fileLocks) code(c *fields) {
	c.lease(&r.Holder)
	c.V64(&r.Number)
	c.locks(&r.Held)
	for i := range coder.Slice(&c.Coder, &r.Waiting, coder.Unbounded, lockBytesMin+2) {
		w := &r.Waiting[i]
		c.lock(&w.Lock)
		c.Flag(&w.Wait)
		c.Flag(&w.Test)
	}
}

func leaseOf(o filelock.Owner) Lease { return Lease{NodeID(o.Node), o.Incarnation} }

// owned is a lock of a lease. An flock is of the whole file, whatever the node says.
func owned(l filelock.Lock, by Lease) filelock.Lock {
	l.Owner.Node, l.Owner.Incarnation = uint32(by.Node), by.Incarnation
	if l.Kind == filelock.Flock {
		l.First, l.End = 0, 1<<64-1
	}
	return l
}

func (r *FileLocks) idle() bool {
	return r.Holder == Lease{} && len(r.Held) == 0 && len(r.Waiting) == 0
}

// without returns the locks without those of ended incarnations.
func (r *FileLocks) without(cl *cluster) FileLocks {
	out := *r
	if !cl.alive(out.Holder) {
		out.Holder, out.Number = Lease{}, 0
	}
	out.Held = slices.DeleteFunc(slices.Clone(r.Held), func(l filelock.Lock) bool { return !cl.alive(leaseOf(l.Owner)) })
	out.Waiting = slices.DeleteFunc(slices.Clone(r.Waiting), func(w LockRequest) bool {
		return !cl.alive(leaseOf(w.Owner))
	})
	return out
}

// index lists the rows of other tables that a file's locks need.
func (r *FileLocks) index(ino Ino) (rows [][]byte) {
	if r.Holder != (Lease{}) {
		rows = append(rows, lockedKey(r.Holder, ino))
	}
	for _, l := range r.Held {
		rows = append(rows, lockedKey(leaseOf(l.Owner), ino))
	}
	for _, w := range r.Waiting {
		rows = append(rows, lockedKey(leaseOf(w.Owner), ino))
		if w.Kind == filelock.Record && w.Wait && r.Holder == (Lease{}) {
			rows = append(rows, waitsKey(w.Owner, ino))
		}
	}
	slices.SortFunc(rows, bytes.Compare)
	return slices.CompactFunc(rows, bytes.Equal)
}

// lockTable applies the operations on locks. Locks of ended incarnations count for nobody: whoever reads a file's locks
// frees them, and a sweep after a fence finds the rest.
type lockTable struct{ *tx }

func (t lockTable) dispatch() (Result, syscall.Errno) {
	switch o := t.entry.Op.(type) {
	case *LockFile:
		return t.lock(o)
	case *ReturnLocks:
		return t.giveBack(o)
	case *UnlockFile:
		return t.unlock(o)
	}
	return Result{}, syscall.ENOSYS
}

// of reads the locks of a file, and frees those of ended incarnations.
func (t lockTable) of(ino Ino) *fileLocks {
	if r := t.locks[ino]; r != nil {
		return r
	}
	r := new(fileLocks)
	t.load(key64(tableLocks, uint64(ino)), r)
	r.rows, r.size = r.index(ino), len(r.Held)+len(r.Waiting)
	if t.locks == nil {
		t.locks = map[Ino]*fileLocks{}
	}
	t.locks[ino] = r
	t.free(ino, r)
	return r
}

// free frees what ended incarnations have of a file, and answers those that wait for it.
func (t lockTable) free(ino Ino, r *fileLocks) {
	alive := r.without(t.cl)
	if alive.Holder == r.Holder && len(alive.Held) == len(r.Held) && len(alive.Waiting) == len(r.Waiting) {
		return
	}
	ended := alive.Holder != r.Holder
	r.FileLocks = alive
	switch {
	case ended:
		t.answerAll(ino, r)
	case r.Holder == Lease{}:
		t.changeHeld(ino, r, func(table *filelock.Table) []filelock.Ticket { return table.Grant(uint64(ino)) })
	}
	t.keep(ino, r)
}

// keep stores the locks of a file.
func (t lockTable) keep(ino Ino, r *fileLocks) {
	rows := r.index(ino)
	for _, old := range r.rows {
		if _, found := slices.BinarySearchFunc(rows, old, bytes.Compare); !found {
			t.del(old)
		}
	}
	for _, row := range rows {
		t.set(row, present)
	}
	r.rows = rows
	if r.idle() {
		t.del(key64(tableLocks, uint64(ino)))
	} else {
		t.save(key64(tableLocks, uint64(ino)), r)
	}
}

func lockValid(l *filelock.Lock) bool {
	return l.Kind <= filelock.Flock && l.Mode <= filelock.Exclusive && l.First <= l.End
}

func (t lockTable) lock(o *LockFile) (Result, syscall.Errno) {
	switch {
	case o.Incarnation != t.entry.Incarnation:
		return Result{}, syscall.ESTALE
	case !lockValid(&o.Lock) || o.Lock.Request == 0 || o.Wait && o.Test:
		return Result{}, syscall.EINVAL
	}
	r := t.of(o.Ino)
	want := LockRequest{owned(o.Lock, t.lease()), o.Wait, o.Test}
	switch {
	case r.Holder == t.lease():
		t.answer(o.Ino, r, want.Lock, LockDelegated)
	case len(r.Held)+len(r.Waiting) >= fileLocksMax:
		return Result{}, syscall.ENOLCK
	case r.Holder != Lease{}:
		r.Waiting = append(r.Waiting, want)
		t.emit(Event{Kind: EventLockRecalled, Ino: o.Ino, Node: r.Holder.Node, Incarnation: r.Holder.Incarnation})
	case r.idle() && !o.Test:
		t.delegate(o.Ino, r, want.Lock)
	default:
		t.ask(o.Ino, r, want)
	}
	t.keep(o.Ino, r)
	return Result{Ino: o.Ino}, ok
}

func (t lockTable) delegate(ino Ino, r *fileLocks, want filelock.Lock) {
	r.Holder, r.Number = leaseOf(want.Owner), t.head.Index
	t.answer(ino, r, want, LockDelegated)
}

// answer tells the node of a request what became of it.
func (t lockTable) answer(ino Ino, r *fileLocks, want filelock.Lock, answer LockAnswer) {
	t.emit(Event{Kind: EventLockAnswered, Ino: ino, Node: NodeID(want.Owner.Node), Incarnation: want.Owner.Incarnation,
		Request: want.Request, Answer: answer, Number: r.Number})
}

// ask answers a request about a file whose locks the log has, unless it begins to wait.
func (t lockTable) ask(ino Ino, r *fileLocks, want LockRequest) {
	if want.Test {
		t.answer(ino, r, want.Lock, LockGranted)
		return
	}
	t.changeHeld(ino, r, func(table *filelock.Table) []filelock.Ticket {
		table.Circle = func(_ uint64, want filelock.Lock) bool { return t.closesCircle(ino, r, want) }
		answer, _, granted := table.Set(uint64(ino), want.Lock, want.Wait)
		switch answer {
		case filelock.Waiting:
			r.Waiting = append(r.Waiting, want)
		case filelock.Granted:
			t.answer(ino, r, want.Lock, LockGranted)
		case filelock.Refused:
			t.answer(ino, r, want.Lock, LockRefused)
		case filelock.Deadlock:
			t.answer(ino, r, want.Lock, LockDeadlock)
		}
		return granted
	})
}

// changeHeld has do change the locks of a file, and takes over which requests were granted.
func (t lockTable) changeHeld(ino Ino, r *fileLocks, do func(*filelock.Table) []filelock.Ticket) {
	wants := make([]filelock.Lock, len(r.Waiting))
	for i, w := range r.Waiting {
		wants[i] = w.Lock
	}
	table := filelock.Load(uint64(ino), r.Held, wants)
	granted := do(table)
	r.Held = table.Held(uint64(ino))
	if len(granted) == 0 {
		return
	}
	left := make([]LockRequest, 0, len(r.Waiting))
	for i, w := range r.Waiting {
		if !slices.Contains(granted, filelock.Ticket(i+1)) {
			left = append(left, w)
		}
	}
	for _, ticket := range granted {
		t.answer(ino, r, r.Waiting[ticket-1].Lock, LockGranted)
	}
	r.Waiting = left
}

// answerAll takes up the requests that waited for a delegation to end.
func (t lockTable) answerAll(ino Ino, r *fileLocks) {
	queue := r.Waiting
	r.Waiting = nil
	for i, want := range queue {
		switch {
		case r.Holder != Lease{}:
			r.Waiting = append(r.Waiting, want)
		case r.idle() && !want.Test && i == len(queue)-1:
			t.delegate(ino, r, want.Lock)
		default:
			t.ask(ino, r, want)
		}
	}
}

func (t lockTable) giveBack(o *ReturnLocks) (Result, syscall.Errno) {
	if len(o.Held)+len(o.Waiting) > fileLocksMax {
		return Result{}, syscall.EINVAL
	}
	r := t.of(o.Ino)
	if o.Incarnation != t.entry.Incarnation || r.Holder != t.lease() || r.Number != o.Number {
		return Result{}, ok
	}
	r.Holder, r.Number, r.Held = Lease{}, 0, nil
	table := filelock.Load(uint64(o.Ino), nil, nil)
	for _, l := range o.Held {
		l = owned(l, t.lease())
		if _, found := table.Conflict(uint64(o.Ino), l); found || !lockValid(&l) {
			return Result{}, syscall.EINVAL
		}
		table.Put(uint64(o.Ino), l)
	}
	r.Held = table.Held(uint64(o.Ino))
	waiting := make([]LockRequest, 0, len(o.Waiting)+len(r.Waiting))
	for _, l := range o.Waiting {
		if !lockValid(&l) {
			return Result{}, syscall.EINVAL
		}
		waiting = append(waiting, LockRequest{owned(l, t.lease()), true, false})
	}
	r.Waiting = append(waiting, r.Waiting...)
	t.answerAll(o.Ino, r)
	t.keep(o.Ino, r)
	return Result{Ino: o.Ino, Existed: true}, ok
}

func (t lockTable) unlock(o *UnlockFile) (Result, syscall.Errno) {
	if o.What == ScopeRange && !lockValid(&o.Lock) {
		return Result{}, syscall.EINVAL
	}
	if o.Incarnation != t.entry.Incarnation {
		return Result{}, ok // its locks went with it
	}
	r := t.of(o.Ino)
	l := owned(o.Lock, t.lease())
	before := len(r.Waiting)
	if o.What == ScopeRequest || o.What == ScopeSpace {
		r.Waiting = slices.DeleteFunc(r.Waiting, func(w LockRequest) bool {
			mine := leaseOf(w.Owner) == t.lease()
			return mine && (o.What == ScopeRequest && w.Request == l.Request ||
				o.What == ScopeSpace && w.Owner.Space == l.Owner.Space)
		})
	}
	had := before != len(r.Waiting)
	if r.Holder == (Lease{}) {
		t.changeHeld(o.Ino, r, func(table *filelock.Table) []filelock.Ticket {
			held := table.Held(uint64(o.Ino))
			granted := giveBack(table, uint64(o.Ino), l, o.What)
			had = had || !slices.Equal(held, table.Held(uint64(o.Ino)))
			return granted
		})
	}
	t.keep(o.Ino, r)
	return Result{Ino: o.Ino, Existed: had}, ok
}

// giveBack gives back what a scope says.
func giveBack(table *filelock.Table, file uint64, l filelock.Lock, what LockScope) []filelock.Ticket {
	switch what {
	case ScopeRange:
		return table.Unlock(file, l)
	case ScopeDescriptor:
		return table.CloseDescriptor(file, l.Owner)
	case ScopeHandle:
		return table.Drop(file, func(have filelock.Lock) bool {
			return leaseOf(have.Owner) == leaseOf(l.Owner) && have.Owner.Space == l.Owner.Space && have.Handle == l.Handle
		})
	case ScopeSpace:
		return table.Drop(file, func(have filelock.Lock) bool {
			return leaseOf(have.Owner) == leaseOf(l.Owner) && have.Owner.Space == l.Owner.Space
		})
	}
	return nil
}

// closesCircle reports whether an owner that would wait for a record lock of a file is waited for by one that it would
// wait for, through any number of others, of any nodes and files. The rows of tableWaits are the way from an owner to
// what it waits for; those of this file may not be written yet.
func (t lockTable) closesCircle(ino Ino, r *fileLocks, want filelock.Lock) bool {
	seen := map[filelock.Owner]bool{}
	next := r.blockers(nil, want)
	for len(next) > 0 {
		owner := next[len(next)-1]
		next = next[:len(next)-1]
		if owner == want.Owner {
			return true
		}
		if seen[owner] {
			continue
		}
		seen[owner] = true
		next = r.awaited(next, owner)
		prefix := waitsKey(owner, 0)[:waitsKeyOwner]
		t.scan(prefix, func(key, _ []byte) bool {
			if other := Ino(keyNumber(key, waitsKeyOwner)); other != ino {
				next = t.of(other).awaited(next, owner)
			}
			return true
		})
	}
	return false
}

// blockers adds the owners whose locks exclude another one.
func (r *FileLocks) blockers(to []filelock.Owner, want filelock.Lock) []filelock.Owner {
	for _, l := range r.Held {
		if l.Blocks(want) {
			to = append(to, l.Owner)
		}
	}
	return to
}

// awaited adds the owners for whose record locks an owner waits.
func (r *FileLocks) awaited(to []filelock.Owner, owner filelock.Owner) []filelock.Owner {
	if r.Holder != (Lease{}) {
		return to
	}
	for _, w := range r.Waiting {
		if w.Kind == filelock.Record && w.Owner == owner {
			to = r.blockers(to, w.Lock)
		}
	}
	return to
}

// sweep frees what ended incarnations of a node have, up to a limit. more says that something is left.
func (t lockTable) sweep(owner []byte, limit int) (left int, more bool) {
	t.scan(append([]byte{tableLocked}, owner...), func(key, _ []byte) bool {
		lease, ino := splitReserved(key)
		switch {
		case t.cl.alive(lease):
			return false // incarnations ascend: no dead one follows
		case limit <= 0:
			more = true
			return false
		}
		limit -= 1 + t.of(ino).size/locksPerRow
		return true
	})
	return limit, more
}
