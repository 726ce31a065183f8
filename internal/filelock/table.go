package filelock

import "slices"

// Kind tells the two systems of locks apart. They do not see each other.
type Kind uint8

// The kinds of locks.
const (
	Record Kind = iota // fcntl(2): of ranges of bytes
	Flock              // flock(2): of whole files, by open file
)

// Mode is how a lock is held.
type Mode uint8

// The modes of a lock.
const (
	Shared Mode = iota
	Exclusive
)

// Owner is who holds a lock: a process, or an open file. Space tells apart the numbers that different mounts of a node
// give. Node and Incarnation tell apart those of nodes; in the table of one node they are 0.
type Owner struct {
	Node, Incarnation uint32
	Space, ID         uint64
}

// Lock is a lock that is held, or asked for.
type Lock struct {
	Kind       Kind
	Mode       Mode
	First, End uint64 // the first and the last byte, both included
	Owner      Owner
	Handle     uint64 // the open file by which it was taken last, unique in the owner's space
	PID        uint32 // the process that took it, for F_GETLK
	Request    uint64 // the request that took it last, numbered by its node; 0 in the table of one node
}

// Blocks reports whether two locks of one file exclude each other.
func (l Lock) Blocks(o Lock) bool { return l.conflicts(o) }

func (l Lock) overlaps(o Lock) bool { return l.First <= o.End && o.First <= l.End }

// conflicts reports whether two locks of one file exclude each other.
func (l Lock) conflicts(o Lock) bool {
	return l.Kind == o.Kind && l.Owner != o.Owner && l.overlaps(o) && (l.Mode == Exclusive || o.Mode == Exclusive)
}

// Answer is what became of a request.
type Answer uint8

// The answers.
const (
	Granted  Answer = iota // the lock is held
	Refused                // another lock excludes it
	Waiting                // another lock excludes it for now
	Deadlock               // the owners that it would wait for wait for its own
)

// Ticket names a request that waits.
type Ticket uint64

// waiter is a request that waits.
type waiter struct {
	ticket Ticket
	file   uint64
	want   Lock
}

// Table holds the locks of all files, and the requests that wait for them. The zero value is empty and ready.
type Table struct {
	held    map[uint64][]Lock // by file
	waiters []waiter          // of all files, the oldest first
	next    Ticket

	// Circle reports whether a request for a record lock that would begin to wait would wait for itself; nil searches
	// this table.
	Circle func(file uint64, want Lock) bool
}

// Load makes a table of one file. Its requests have the tickets from 1 on, in their order.
func Load(file uint64, held, waiting []Lock) *Table {
	t := &Table{}
	t.keep(file, slices.Clone(held))
	for _, want := range waiting {
		t.next++
		t.waiters = append(t.waiters, waiter{t.next, file, want})
	}
	return t
}

// Held lists the locks of a file.
func (t *Table) Held(file uint64) []Lock { return slices.Clone(t.held[file]) }

// Waiting lists the requests of a file that wait, the oldest first.
func (t *Table) Waiting(file uint64) (tickets []Ticket, wants []Lock) {
	for _, w := range t.waiters {
		if w.file == file {
			tickets, wants = append(tickets, w.ticket), append(wants, w.want)
		}
	}
	return tickets, wants
}

// Files lists the files on which a mount holds locks, in order.
func (t *Table) Files(space uint64) (files []uint64) {
	for file, held := range t.held {
		if slices.ContainsFunc(held, func(l Lock) bool { return l.Owner.Space == space }) {
			files = append(files, file)
		}
	}
	slices.Sort(files)
	return files
}

// Count is how many locks and requests a file has.
func (t *Table) Count(file uint64) int {
	_, waiting := t.Waiting(file)
	return len(t.held[file]) + len(waiting)
}

// Keep forgets all files but those that which picks.
func (t *Table) Keep(which func(file uint64) bool) {
	for file := range t.held {
		if !which(file) {
			delete(t.held, file)
		}
	}
	t.waiters = slices.DeleteFunc(t.waiters, func(w waiter) bool { return !which(w.file) })
}

// Same reports whether two lists have the same locks.
func Same(a, b []Lock) bool { return slices.Equal(a, b) }

// Put makes an owner hold a lock that somebody else has granted.
func (t *Table) Put(file uint64, l Lock) { t.change(file, l, true) }

// Drop gives back the locks of a file that which picks.
func (t *Table) Drop(file uint64, which func(Lock) bool) (granted []Ticket) {
	return t.drop(file, which)
}

// Empty reports whether nothing is held and nobody waits.
func (t *Table) Empty() bool { return len(t.held) == 0 && len(t.waiters) == 0 }

// Conflict is a lock that excludes another one, if there is any: the first of the owner who has held any for longest.
func (t *Table) Conflict(file uint64, want Lock) (Lock, bool) {
	return t.find(file, func(have Lock) bool { return have.conflicts(want) })
}

// Own is the first lock that an owner has himself of a kind and range, if there is any.
func (t *Table) Own(file uint64, l Lock) (Lock, bool) {
	return t.find(file, func(have Lock) bool {
		return have.Kind == l.Kind && have.Owner == l.Owner && have.overlaps(l)
	})
}

// find gives the first lock that which picks, as one with those of its owner and mode that it touches.
func (t *Table) find(file uint64, which func(Lock) bool) (Lock, bool) {
	held := t.held[file]
	i := slices.IndexFunc(held, which)
	if i < 0 {
		return Lock{}, false
	}
	l := held[i]
	for j := i - 1; j >= 0 && held[j].extends(l); j-- {
		l.First = held[j].First
	}
	for j := i + 1; j < len(held) && held[j].extends(l); j++ {
		l.End = held[j].End
	}
	return l, true
}

// Set takes a lock, or changes the mode of what its owner holds. Where another lock excludes it, wait tells whether the
// request is to wait; then ticket names it. granted are requests that waited and hold their locks now.
//
// As on Linux, an flock that changes its mode is given back first: if it is refused then, its owner holds nothing.
func (t *Table) Set(file uint64, want Lock, wait bool) (answer Answer, ticket Ticket, granted []Ticket) {
	gaveBack := false
	if want.Kind == Flock {
		for i, l := range t.held[file] {
			if l.Kind == Flock && l.Owner == want.Owner && l.Mode == want.Mode {
				t.held[file][i] = want // the kernel uses an owner's number again before the RELEASE of the last one
				return Granted, 0, nil
			}
		}
		gaveBack = t.change(file, want, false)
	}
	answer, ticket = t.set(file, want, wait)
	if gaveBack || answer == Granted {
		granted = t.grant(file)
	}
	return answer, ticket, granted
}

func (t *Table) set(file uint64, want Lock, wait bool) (Answer, Ticket) {
	if _, found := t.Conflict(file, want); !found {
		t.change(file, want, true)
		return Granted, 0
	}
	switch {
	case !wait:
		return Refused, 0
	case want.Kind == Record && t.closesCircleOf(file, want):
		return Deadlock, 0
	}
	t.next++
	t.waiters = append(t.waiters, waiter{t.next, file, want})
	return Waiting, t.next
}

// Unlock gives back what the owner of l holds of its kind and range.
func (t *Table) Unlock(file uint64, l Lock) (granted []Ticket) {
	if !t.change(file, l, false) {
		return nil
	}
	return t.grant(file)
}

// Cuts reports whether Unlock would leave a part before and a part after what it gives back of one lock.
func (t *Table) Cuts(file uint64, l Lock) bool {
	return slices.ContainsFunc(t.held[file], func(have Lock) bool {
		return have.Kind == l.Kind && have.Owner == l.Owner && have.First < l.First && have.End > l.End
	})
}

// CloseDescriptor gives back the record locks of an owner, as POSIX wants it when a process closes any descriptor of
// the file.
func (t *Table) CloseDescriptor(file uint64, owner Owner) (granted []Ticket) {
	return t.drop(file, func(l Lock) bool { return l.Kind == Record && l.Owner == owner })
}

// CloseHandle gives back all that was taken by an open file: its last descriptor is closed.
func (t *Table) CloseHandle(file uint64, space, handle uint64) (granted []Ticket) {
	return t.drop(file, func(l Lock) bool { return l.Owner.Space == space && l.Handle == handle })
}

// CloseSpace gives back all locks of a mount, and ends its requests.
func (t *Table) CloseSpace(space uint64) (granted, ended []Ticket) {
	t.waiters = slices.DeleteFunc(t.waiters, func(w waiter) bool {
		if w.want.Owner.Space == space {
			ended = append(ended, w.ticket)
		}
		return w.want.Owner.Space == space
	})
	files := make([]uint64, 0, len(t.held))
	for file := range t.held {
		files = append(files, file)
	}
	slices.Sort(files)
	for _, file := range files {
		granted = append(granted, t.drop(file, func(l Lock) bool { return l.Owner.Space == space })...)
	}
	return granted, ended
}

// Holds reports whether anything is held by an open file.
func (t *Table) Holds(file uint64, space, handle uint64) bool {
	return slices.ContainsFunc(t.held[file], func(l Lock) bool {
		return l.Owner.Space == space && l.Handle == handle
	})
}

// Cancel ends a request that waits; false if it does not wait any more.
func (t *Table) Cancel(ticket Ticket) bool {
	i := slices.IndexFunc(t.waiters, func(w waiter) bool { return w.ticket == ticket })
	if i < 0 {
		return false
	}
	t.waiters = slices.Delete(t.waiters, i, i+1)
	return true
}

// Rename gives a file another number, as a mount has it. What others have under the old one is of another file from
// now on, and stays. What owners hold under the new one has to be of others.
func (t *Table) Rename(space, file, to uint64) (granted []Ticket) {
	var move, stay []Lock
	for _, l := range t.held[file] {
		if l.Owner.Space == space {
			move = append(move, l)
		} else {
			stay = append(stay, l)
		}
	}
	t.keep(file, stay)
	t.keep(to, append(t.held[to], move...))
	for i, w := range t.waiters {
		if w.file == file && w.want.Owner.Space == space {
			t.waiters[i].file = to
		}
	}
	return append(t.grant(file), t.grant(to)...)
}

// drop gives back the locks of a file that which picks.
func (t *Table) drop(file uint64, which func(Lock) bool) (granted []Ticket) {
	before := len(t.held[file])
	if before == 0 {
		return nil
	}
	t.keep(file, slices.DeleteFunc(t.held[file], which))
	if len(t.held[file]) == before {
		return nil
	}
	return t.grant(file)
}

// Grant gives waiting requests of a file what they can have.
func (t *Table) Grant(file uint64) (granted []Ticket) { return t.grant(file) }

// grant gives waiting requests of a file what they want, the oldest first, until nobody can have more: one that gets a
// shared lock for an exclusive one frees others.
func (t *Table) grant(file uint64) (granted []Ticket) {
	for {
		before := len(granted)
		t.waiters = slices.DeleteFunc(t.waiters, func(w waiter) bool {
			if w.file != file {
				return false
			}
			if _, found := t.Conflict(file, w.want); found {
				return false
			}
			t.change(file, w.want, true)
			granted = append(granted, w.ticket)
			return true
		})
		if len(granted) == before {
			return granted
		}
	}
}

// change takes the range of l from what its owner holds of its kind, and with take puts l there. It reports whether
// the owner held anything of that range. What an owner holds stays together, in the order of bytes.
func (t *Table) change(file uint64, l Lock, take bool) (had bool) {
	var before, own, after []Lock
	for _, have := range t.held[file] {
		switch {
		case have.Kind == l.Kind && have.Owner == l.Owner:
			had = had || have.overlaps(l)
			own = have.without(own, l)
		case own == nil:
			before = append(before, have)
		default:
			after = append(after, have)
		}
	}
	if take {
		own = joined(own, l)
	}
	t.keep(file, slices.Concat(before, own, after))
	return had
}

// without adds what is left of a lock when the range of another one is taken from it.
func (l Lock) without(to []Lock, o Lock) []Lock {
	if !l.overlaps(o) {
		return append(to, l)
	}
	if to == nil {
		to = []Lock{} // the owner's place, though nothing may be left
	}
	if l.First < o.First {
		left := l
		left.End = o.First - 1
		to = append(to, left)
	}
	if l.End > o.End {
		right := l
		right.First = o.End + 1
		to = append(to, right)
	}
	return to
}

// joined adds a lock to those of its owner, none of which it overlaps, as one with what it touches and the same open
// file has taken: each lock goes with its own.
func joined(own []Lock, l Lock) []Lock {
	own = slices.DeleteFunc(own, func(have Lock) bool {
		if have.Handle != l.Handle || !have.extends(l) {
			return false
		}
		l.First, l.End = min(l.First, have.First), max(l.End, have.End)
		return true
	})
	i := slices.IndexFunc(own, func(have Lock) bool { return have.First > l.First })
	if i < 0 {
		i = len(own)
	}
	return slices.Insert(own, i, l)
}

// extends reports whether a lock lies beside another one of its owner and is like it.
func (l Lock) extends(o Lock) bool {
	return l.Kind == o.Kind && l.Owner == o.Owner && l.Mode == o.Mode &&
		(l.First > 0 && l.First-1 == o.End || o.First > 0 && o.First-1 == l.End)
}

func (t *Table) keep(file uint64, locks []Lock) {
	if len(locks) == 0 {
		delete(t.held, file)
		return
	}
	if t.held == nil {
		t.held = map[uint64][]Lock{}
	}
	t.held[file] = locks
}

func (t *Table) closesCircleOf(file uint64, want Lock) bool {
	if t.Circle != nil {
		return t.Circle(file, want)
	}
	return t.closesCircle(file, want)
}

// closesCircle reports whether an owner that would wait is waited for by one that it would wait for, through any
// number of others. Only record locks count, as on Linux.
func (t *Table) closesCircle(file uint64, want Lock) bool {
	seen := map[Owner]bool{}
	next := t.blockers(nil, file, want)
	for len(next) > 0 {
		owner := next[len(next)-1]
		next = next[:len(next)-1]
		switch {
		case owner == want.Owner:
			return true
		case seen[owner]:
			continue
		}
		seen[owner] = true
		for _, w := range t.waiters {
			if w.want.Owner == owner && w.want.Kind == Record {
				next = t.blockers(next, w.file, w.want)
			}
		}
	}
	return false
}

// blockers adds the owners whose locks exclude another one.
func (t *Table) blockers(to []Owner, file uint64, want Lock) []Owner {
	for _, l := range t.held[file] {
		if l.conflicts(want) {
			to = append(to, l.Owner)
		}
	}
	return to
}
