package meta

import "syscall"

// delegations are the directories whose new names one node gives by itself.
type delegations struct{ *tx }

// code implements record.
func (l *Lease) code(c *fields) { c.lease(l) }

// holder is who gives the new names of a directory; the zero lease: the log.
func (d delegations) holder(dir Ino) Lease {
	var l Lease
	if !d.load(namesKey(dir), &l) || !d.cl.alive(l) {
		return Lease{}
	}
	return l
}

// mayName reports whether the proposer may put a new name into a directory.
func (d delegations) mayName(dir *Inode) syscall.Errno {
	if l := d.holder(dir.Ino); l != (Lease{}) && l != d.lease() {
		return syscall.EREMOTE
	}
	return ok
}

// delegate gives a directory to the proposer, and numbers for what it makes.
func (d delegations) delegate(o *DelegateNames) (Result, syscall.Errno) {
	if o.Dir != 0 {
		switch i := d.inode(o.Dir); {
		case i == nil:
			return Result{}, syscall.ENOENT
		case i.Kind != KindDir:
			return Result{}, syscall.ENOTDIR
		case d.mayName(i) != ok:
			return Result{}, syscall.EBUSY
		}
		d.give(o.Dir, d.lease())
	}
	if !o.Numbers {
		return Result{}, ok
	}
	p := d.progressOf(d.entry.Node)
	if p.LastIno+NamesBlock >= inoPerNode {
		return Result{}, syscall.ENOSPC
	}
	first := Ino(d.entry.Node)<<inoBits | Ino(p.LastIno+1)
	p.LastIno += NamesBlock
	return Result{Ino: first}, ok
}

// give replaces the holder of a directory.
func (d delegations) give(dir Ino, to Lease) {
	d.end(dir)
	d.save(namesKey(dir), &to)
	d.set(namesOfKey(to, dir), present)
}

// end takes a directory from its holder, if there is one.
func (d delegations) end(dir Ino) {
	var l Lease
	if d.load(namesKey(dir), &l) {
		d.del(namesKey(dir))
		d.del(namesOfKey(l, dir))
	}
}

// inherit gives a new directory to whom the one has that it was made in, if that is the maker.
func (d delegations) inherit(in, made *Inode) {
	if made.Kind == KindDir && d.holder(in.Ino) == d.lease() {
		d.give(made.Ino, d.lease())
	}
}

// giveBack ends delegations of directories to the proposer.
func (d delegations) giveBack(o *ReturnNames) (Result, syscall.Errno) {
	for _, dir := range o.Dirs[:min(len(o.Dirs), ReturnMax)] {
		if d.holder(dir) == d.lease() {
			d.end(dir)
			d.emit(Event{Kind: EventNamesReturned, Ino: dir})
		}
	}
	return Result{}, ok
}

// ReturnMax bounds the directories of a ReturnNames; those beyond are left out.
const ReturnMax = 1024

// recall asks the holder of a directory to give it back.
func (d delegations) recall(o *RecallNames) (Result, syscall.Errno) {
	l := d.holder(o.Dir)
	if l == (Lease{}) {
		return Result{}, ok
	}
	d.emit(Event{Kind: EventNamesRecalled, Ino: o.Dir, Node: l.Node, Incarnation: l.Incarnation})
	return Result{Ino: o.Dir, Existed: true}, ok
}

// given reports whether a number is one of those that the proposer may give. Whether it has given it before is for the
// proposer to know, except that no inode has it now.
func (d delegations) given(ino Ino) bool {
	low := uint64(ino) & (inoPerNode - 1)
	return ino>>inoBits == Ino(d.entry.Node) && low > 0 && low <= d.progressOf(d.entry.Node).LastIno
}

// reserve makes the name and the inode of a file that the proposer has made.
func (d delegations) reserve(o *Reserve) (Result, syscall.Errno) {
	switch {
	case o.Incarnation != d.entry.Incarnation:
		return Result{}, syscall.ESTALE
	case !d.given(o.Ino):
		return Result{}, syscall.EINVAL
	}
	if i := d.inode(o.Ino); i != nil {
		return Result{Ino: i.Ino, Existed: true, Inode: *i}, ok
	}
	dir, errno := tree{d.tx}.dir(o.Parent, o.Name)
	if errno != ok {
		return Result{}, errno
	}
	if e, _ := (tree{d.tx}).entryOf(dir, o.Name); e.Ino != 0 {
		return Result{}, syscall.EEXIST
	}
	if errno := d.mayName(dir); errno != ok {
		return Result{}, errno
	}
	i, errno := d.made(o.Ino, dir, &o.Made, o.Btime)
	if errno != ok {
		return Result{}, errno
	}
	if errno := (tree{d.tx}).shape(i, &Create{Kind: KindFile}); errno != ok {
		return Result{}, errno
	}
	tree{d.tx}.addName(dir, o.Name, i)
	return Result{Ino: i.Ino, Inode: *i}, ok
}

// made is the inode of a file that the proposer has made. It has no name yet.
func (d delegations) made(ino Ino, dir *Inode, m *Made, btime int64) (*Inode, syscall.Errno) {
	if d.cl.policies[m.Policy] == nil {
		return nil, syscall.EINVAL
	}
	i := tree{d.tx}.newInodeAs(ino, dir, KindFile, m.Mode, m.Cred)
	i.Policy = m.Policy
	i.born(btime)
	return i, ok
}

// linkNumbered is linkNew for a file that the holder of the directory's names has made.
func (d delegations) linkNumbered(dir *Inode, o *Publish) (*Inode, syscall.Errno) {
	if !d.given(o.Ino) {
		return nil, syscall.EINVAL
	}
	if d.holder(dir.Ino) != d.lease() {
		return nil, syscall.ESTALE
	}
	i, errno := d.made(o.Ino, dir, o.Made, o.Btime)
	if errno != ok {
		return nil, errno
	}
	tree{d.tx}.addName(dir, o.LinkName, i)
	return i, ok
}

// sweep frees what ended incarnations of a node hold, up to a limit. more says that something is left.
func (d delegations) sweep(owner []byte, limit int) (left int, more bool) {
	d.scan(append([]byte{tableNamesOf}, owner...), func(key, _ []byte) bool {
		lease, dir := splitReserved(key)
		switch {
		case d.cl.alive(lease):
			return false // incarnations ascend: no dead one follows
		case limit <= 0:
			more = true
			return false
		}
		limit--
		d.end(dir)
		return true
	})
	return limit, more
}
