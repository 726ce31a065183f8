package meta

// lockReader is the part of a DB that reads locks.
type lockReader struct{ db *DB }

// FileLocks returns what the log has of the locks of a file.
func (lr lockReader) FileLocks(ino Ino) (FileLocks, error) {
	var r fileLocks
	err := lr.db.read(func(s snap) error {
		r = fileLocks{}
		if err := s.load(key64(tableLocks, uint64(ino)), &r); err != nil && err != ErrNotFound {
			return err
		}
		r.FileLocks = r.without(s.cl)
		return nil
	})
	return r.FileLocks, err
}

// Freeing reports whether locks or reserved names of ended incarnations remain to be freed: an Expire frees more.
func (lr lockReader) Freeing() bool { return lr.db.cur.Load().head.Freeing }
