package meta

import "github.com/dgraph-io/badger/v4"

// WithMemTable makes badger flush and compact early.
func (o Options) WithMemTable(bytes int64) Options {
	o.memTable = bytes
	return o
}

// Compact flattens the tables of a database on disk and collects the value log.
func (db *DB) Compact() error {
	b := db.store.(*badgerStore).db
	if err := b.Flatten(2); err != nil {
		return err
	}
	if err := b.RunValueLogGC(0.01); err != nil && err != badger.ErrNoRewrite {
		return err
	}
	return nil
}

// Tables is the number of badger's tables.
func (db *DB) Tables() int { return len(db.store.(*badgerStore).db.Tables()) }

// Forge changes the record of an inode behind apply's back.
func (db *DB) Forge(ino Ino) {
	i, err := db.Inode(ino)
	if err != nil {
		panic(err) // tidy: a test's own mistake
	}
	i.Mode ^= 1
	if err := db.store.commit(db.Index(), []kvWrite{{key: inodeKey(ino), value: encodeRecord(&i)}}); err != nil {
		panic(err) // tidy: memory does not fail
	}
}
