package meta

import "fmt"

// The part of the check that is about names and inodes.

// listing is the directory whose names are being looked at.
type listing struct {
	dir   Ino // 0: none
	is    Inode
	found bool   // dir is a directory
	dirs  uint32 // directories in it so far
}

// inode checks an inode against its name, its content and what belongs to it.
func (c *checker) inode(s snap, key, value []byte) error {
	c.Inodes++
	at := Fault{Ino: Ino(keyNumber(key, 1))}
	var i Inode
	if !c.decoded(at, key, value, &i) {
		return nil
	}
	if i.Ino != at.Ino {
		c.fault(at, "its record is that of inode %d", i.Ino)
		return nil
	}
	c.formed(at, &i)
	for _, look := range []func(snap, Fault, *Inode) error{c.placed, c.named, c.linked, c.attributed, c.leads,
		c.holdsContent, c.isReserved} {
		if err := look(s, at, &i); err != nil {
			return err
		}
	}
	return nil
}

// formed checks an inode by itself.
func (c *checker) formed(at Fault, i *Inode) {
	switch {
	case i.Kind < KindFile || i.Kind > KindBlock:
		c.fault(at, "it is of no known kind: %d", i.Kind)
	case i.Nlink == 0:
		c.fault(at, "it has no link and is there")
	case i.Kind == KindSymlink && (i.Target == "" || i.Size != int64(len(i.Target))):
		c.fault(at, "its size is %d and its target has %d bytes", i.Size, len(i.Target))
	case i.Kind != KindFile && (!i.Content.IsZero() || i.Reserved != Lease{}):
		c.fault(at, "it is no regular file and has a content or a writer")
	case i.Holes > i.Size:
		c.fault(at, "%d of its %d bytes are holes", i.Holes, i.Size)
	}
}

func (c *checker) placed(s snap, at Fault, i *Inode) error {
	return c.hasPolicy(s, at, i.Policy, "its policy %d is not there")
}

// hasPolicy checks that a policy is there; 0 is the cluster's default.
func (c *checker) hasPolicy(s snap, at Fault, id PolicyID, format string) error {
	if id == 0 {
		id = s.head.DefaultPolicy
	}
	raw, err := s.view.get(key32(tablePolicy, uint32(id)))
	if err == nil && raw == nil {
		c.fault(at, format, id)
	}
	return err
}

// named checks that the name of an inode leads to it.
func (c *checker) named(s snap, at Fault, i *Inode) error {
	if i.Ino == RootIno {
		if i.Kind != KindDir || i.Parent != RootIno {
			c.fault(at, "the root is no directory, or has a parent")
		}
		return nil
	}
	var d dirent
	has, err := c.has(s, direntKey(i.Parent, i.Name), &d)
	switch {
	case err != nil:
		return err
	case !has || d.Ino != i.Ino:
		c.fault(at, "it has no name: directory %d has no entry %q that leads to it", i.Parent, i.Name)
	case d.Kind != i.Kind:
		c.fault(at, "it is of kind %d, and its name %q of kind %d", i.Kind, i.Name, d.Kind)
	case d.Reserved != (i.Reserved != Lease{}):
		c.fault(at, "its name %q and it disagree on whether it was published", i.Name)
	}
	return nil
}

// linked checks the count of links. That of a directory with entries is checked with these.
func (c *checker) linked(s snap, at Fault, i *Inode) error {
	if i.Kind == KindDir {
		entries, err := s.count(key64(tableDirent, uint64(i.Ino)), 1)
		if err == nil && entries == 0 && i.Nlink != 2 {
			c.fault(at, "it is an empty directory and has %d links", i.Nlink)
		}
		return err
	}
	if i.Nlink < 2 {
		return nil // names of it are faults where they stand
	}
	names, err := s.count(key64(tableName, uint64(i.Ino)), linkMax+1)
	if err == nil && names != int(i.Nlink)-1 {
		c.fault(at, "it has %d links and %d names", i.Nlink, names+1)
	}
	return err
}

// count counts the pairs under a prefix, up to limit.
func (s snap) count(prefix []byte, limit int) (n int, err error) {
	err = s.each(prefix, prefix, func([]byte, []byte) (bool, error) {
		n++
		return n < limit, nil
	})
	return n, err
}

func (c *checker) attributed(s snap, at Fault, i *Inode) error {
	if i.Xattrs == 0 {
		return nil // attributes of it are faults where they stand
	}
	n, err := s.count(key64(tableXattr, uint64(i.Ino)), XattrsMax+1)
	if err == nil && n != int(i.Xattrs) {
		c.fault(at, "it counts %d extended attributes and has %d", i.Xattrs, n)
	}
	return err
}

// leads checks that the parents of a directory lead to the root. Two directories may lie in each other, each with its
// name in the other one.
func (c *checker) leads(s snap, at Fault, i *Inode) error {
	if i.Kind != KindDir {
		return nil
	}
	if len(c.rooted) > rootedMax {
		clear(c.rooted)
	}
	slow := Inode{Ino: i.Ino, Parent: i.Parent}
	for fast, steps := slow, 1; fast.Ino != RootIno && !c.rooted[fast.Ino]; steps++ {
		if has, err := c.has(s, inodeKey(fast.Parent), &fast); err != nil || !has {
			return err // the name of what has no parent is a fault of its own
		}
		if steps%2 == 0 {
			if _, err := c.has(s, inodeKey(slow.Parent), &slow); err != nil {
				return err
			}
			if slow.Ino == fast.Ino && fast.Ino != RootIno {
				c.fault(at, "its parents do not lead to the root")
				return nil
			}
		}
	}
	c.rooted[i.Ino] = true
	return nil
}

// isReserved checks the row of a file that was not published yet.
func (c *checker) isReserved(s snap, at Fault, i *Inode) error {
	if i.Reserved == (Lease{}) {
		return nil
	}
	raw, err := s.view.get(reservedKey(i.Reserved, i.Ino))
	if err == nil && (raw == nil || i.Version != 0) {
		c.fault(at, "it is reserved for node %d without a record of that, or has a version", i.Reserved.Node)
	}
	return err
}

// dirent checks a name against its directory and its inode.
func (c *checker) dirent(s snap, key, value []byte) error {
	dir, name := Ino(keyNumber(key, 1)), string(key[9:])
	at := Fault{Ino: dir, Name: name}
	if err := c.list(s, dir); err != nil {
		return err
	}
	var d dirent
	if !c.decoded(at, key, value, &d) {
		return nil
	}
	if checkName(name) != ok {
		c.fault(at, "no program can use the name %q", name)
	}
	if d.Kind == KindDir {
		c.listing.dirs++
	}
	var i Inode
	has, err := c.has(s, inodeKey(d.Ino), &i)
	switch {
	case err != nil:
		return err
	case !has:
		c.fault(at, "it leads to inode %d, which is not there", d.Ino)
		return nil
	case i.Kind != d.Kind:
		c.fault(at, "it is of kind %d, and its inode %d of kind %d", d.Kind, d.Ino, i.Kind)
	}
	return c.knows(s, at, &i)
}

// knows checks that an inode knows of a name that leads to it.
func (c *checker) knows(s snap, at Fault, i *Inode) error {
	if i.Parent == at.Ino && i.Name == at.Name {
		return nil
	}
	raw, err := s.view.get(nameKey(i.Ino, at.Ino, at.Name))
	if err == nil && raw == nil {
		c.fault(at, "it leads to inode %d, which does not have this name", i.Ino)
	}
	return err
}

// list begins with the names of a directory, and ends with those of the one before.
func (c *checker) list(s snap, dir Ino) error {
	if c.listing.dir == dir {
		return nil
	}
	if err := c.endListing(s); err != nil {
		return err
	}
	c.listing = listing{dir: dir}
	has, err := c.has(s, inodeKey(dir), &c.listing.is)
	if c.listing.found = has && c.listing.is.Kind == KindDir; err == nil && !c.listing.found {
		c.fault(Fault{Ino: dir}, "it has names in it and is no directory, or is not there")
	}
	return err
}

// endListing checks the links of the directory whose names were looked at.
func (c *checker) endListing(snap) error {
	l := c.listing
	c.listing = listing{}
	if l.found && l.is.Nlink != 2+l.dirs {
		c.fault(Fault{Ino: l.dir}, "it has %d links and %d directories in it", l.is.Nlink, l.dirs)
	}
	return nil
}

// name checks a further name of an inode.
func (c *checker) name(s snap, key, _ []byte) error {
	ino := Ino(keyNumber(key, 1))
	dir, name := splitName(key)
	at := Fault{Ino: ino}
	var i Inode
	if has, err := c.has(s, inodeKey(ino), &i); err != nil || !has || i.Nlink < 2 || i.Kind == KindDir {
		c.faultUnless(err, at, "it has a further name %q in directory %d, and is not there or has one link", name, dir)
		return err
	}
	var d dirent
	if has, err := c.has(s, direntKey(dir, name), &d); err != nil || !has || d.Ino != ino {
		c.faultUnless(err, at, "directory %d has no entry %q that leads to it", dir, name)
		return err
	}
	return nil
}

// faultUnless notes a fault if there was no error.
func (c *checker) faultUnless(err error, f Fault, format string, args ...any) {
	if err == nil {
		c.fault(f, format, args...)
	}
}

// xattr checks that an extended attribute belongs to something.
func (c *checker) xattr(s snap, key, _ []byte) error {
	ino := Ino(keyNumber(key, 1))
	if c.removedInos[ino] > 0 {
		return nil
	}
	var i Inode
	if has, err := c.has(s, inodeKey(ino), &i); err != nil || !has || i.Xattrs == 0 {
		c.faultUnless(err, Fault{Ino: ino}, "it has the extended attribute %q, and is not there or counts none", key[9:])
		return err
	}
	return nil
}

// reserved checks the row of a reserved inode.
func (c *checker) reserved(s snap, key, _ []byte) error {
	l, ino := splitReserved(key)
	var i Inode
	if has, err := c.has(s, inodeKey(ino), &i); err != nil || !has || i.Reserved != l {
		c.faultUnless(err, Fault{Ino: ino}, "a record says that node %d has reserved it", l.Node)
		return err
	}
	return nil
}

// delegated checks who gives the new names of a directory.
func (c *checker) delegated(s snap, key, value []byte) error {
	at := Fault{Ino: Ino(keyNumber(key, 1))}
	var l Lease
	if !c.decoded(at, key, value, &l) {
		return nil
	}
	raw, err := s.view.get(namesOfKey(l, at.Ino))
	if err != nil {
		return err
	}
	var i Inode
	has, err := c.has(s, inodeKey(at.Ino), &i)
	if err == nil && (raw == nil || !has || i.Kind != KindDir) {
		c.fault(at, "its new names are given by node %d, and it is no directory or the node does not know", l.Node)
	}
	return err
}

// delegatedTo checks the row by which a node finds the directories whose new names it gives.
func (c *checker) delegatedTo(s snap, key, _ []byte) error {
	to, dir := splitReserved(key)
	var l Lease
	if has, err := c.has(s, namesKey(dir), &l); err != nil || !has || l != to {
		c.faultUnless(err, Fault{Ino: dir}, "a record says that node %d gives its new names", to.Node)
		return err
	}
	return nil
}

// removedFile checks a removed file that is kept.
func (c *checker) removedFile(s snap, key, value []byte) error {
	index := keyNumber(key, 1)
	var f removedRecord
	if !c.decoded(Fault{}, key, value, &f) {
		return nil
	}
	at := Fault{Content: f.Inode.Content}
	what := fmt.Sprintf("the removed file %q", f.Path)
	raw, err := s.view.get(keptKey(f.Expires, removedID(index)))
	if err != nil {
		return err
	}
	if raw == nil {
		c.fault(at, "%s is kept and would never expire", what)
	}
	n, err := s.count(key64(tableXattr, uint64(f.Inode.Ino)), XattrsMax+1)
	if err == nil && n != int(f.Inode.Xattrs) {
		c.fault(at, "%s counts %d extended attributes and has %d", what, f.Inode.Xattrs, n)
	}
	var rec contentRecord
	if f.Inode.Content.IsZero() || err != nil {
		return err
	}
	has, err := c.has(s, keyContent(tableContent, f.Inode.Content), &rec)
	if err == nil && (!has || rec.State != ContentRemoved || rec.Size != f.Inode.Size) {
		c.fault(at, "%s has no content of its size", what)
	}
	return err
}
