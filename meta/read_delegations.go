package meta

// NamesHolder is who gives the new names of a directory by itself; the zero lease: the log.
func (db *DB) NamesHolder(dir Ino) (Lease, error) {
	var out Lease
	err := db.read(func(s snap) error {
		out = Lease{}
		if err := s.load(namesKey(dir), &out); err != nil && err != ErrNotFound {
			return err
		}
		if !s.cl.alive(out) {
			out = Lease{}
		}
		return nil
	})
	return out, err
}

// NameTaken reports whether a directory has a name, also one that another writer has reserved.
func (db *DB) NameTaken(dir Ino, name string) (bool, error) {
	taken := false
	err := db.read(func(s snap) error {
		var d dirent
		err := s.load(direntKey(dir, name), &d)
		taken = err == nil
		if err == ErrNotFound {
			err = nil
		}
		return err
	})
	return taken, err
}

// NewFile is the record of a file that a holder of a directory's new names makes, reserved under its lease. It has no
// number yet.
func NewFile(from Reader, dir Inode, o *Create, lease Lease, now int64) (Inode, error) {
	if errno := checkName(o.Name); errno != ok {
		return Inode{}, errno
	}
	i := ownedBy(&dir, KindFile, o.Mode, o.Cred)
	if i.Policy == 0 {
		p, err := from.Policy(0)
		if err != nil {
			return Inode{}, err
		}
		i.Policy = p.ID
	}
	i.Nlink, i.Parent, i.Name, i.Reserved = 1, dir.Ino, o.Name, lease
	i.Atime, i.Mtime, i.Ctime, i.Btime = now, now, now, now
	return i, nil
}

// NamesHeld lists directories whose new names a lease gives, after one of them, up to limit.
func (db *DB) NamesHeld(l Lease, after Ino, limit int) (list []Ino, err error) {
	prefix := namesOfKey(l, 0)[:9]
	err = db.read(func(s snap) error {
		list = nil
		return s.each(prefix, namesOfKey(l, after+1), func(key, _ []byte) (bool, error) {
			_, dir := splitReserved(key)
			list = append(list, dir)
			return len(list) < limit, nil
		})
	})
	return list, err
}
