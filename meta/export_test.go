package meta

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/table"
)

// WithMemTable makes badger flush and compact early.
func (o Options) WithMemTable(bytes int64) Options {
	o.memTable = bytes
	return o
}

// RestAfter ends the compactors when nothing was committed for a time.
func (o Options) RestAfter(d time.Duration) Options {
	o.rest = d
	return o
}

// Level0 is the number of tables that were not compacted yet.
func (db *DB) Level0() int { return db.store.(*badgerStore).db.Levels()[0].NumTables }

// Still keeps badger from compacting by itself: over some damages it ends the process, see decision 030.
func (o Options) Still() Options {
	o.still = true
	return o
}

// Compact flattens the tables of a database on disk and collects the value log.
func (db *DB) Compact() error {
	s := db.store.(*badgerStore)
	b := s.db
	if s.compaction != nil { // Flatten ends the compactors and starts them, too
		s.compaction.close()
		defer func() { s.compaction = newCompaction(b, 0) }()
	}
	if err := b.Flatten(2); err != nil {
		return err
	}
	if err := b.RunValueLogGC(0.01); err != nil && err != badger.ErrNoRewrite {
		return err
	}
	return nil
}

// IndexOf finds the index in the bytes of a table.
func IndexOf(table []byte) (from, to int, err error) { return findIndex(table) }

// Dir is the directory of the store.
func (db *DB) Dir() string { return db.store.(*badgerStore).dir }

// Tables is the number of badger's tables.
func (db *DB) Tables() int { return len(db.store.(*badgerStore).db.Tables()) }

// Uses reports whether a file is one of badger's tables.
func (db *DB) Uses(name string) bool {
	s := db.store.(*badgerStore)
	return slices.ContainsFunc(s.db.Tables(), func(t badger.TableInfo) bool {
		return table.NewFilename(t.ID, s.dir) == name
	})
}

// RawRead is a read of the store below a database, at its present version: also of one that is distrusted.
type RawRead struct{ view kvView }

// Raw begins a read; it must be closed.
func (db *DB) Raw() RawRead { return RawRead{db.store.view(db.Index())} }

// Get reads one key; nil if it is not there.
func (r RawRead) Get(key string) ([]byte, error) { return r.view.get([]byte(key)) }

// Scan calls fn with up to limit pairs that begin with prefix, from a key on.
func (r RawRead) Scan(prefix, from string, limit int, fn func(key, value string)) error {
	return snap{view: r.view}.each([]byte(prefix), []byte(from), func(key, value []byte) (bool, error) {
		fn(string(key), string(value))
		limit--
		return limit > 0, nil
	})
}

// Close ends the read.
func (r RawRead) Close() { r.view.close() }

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

// ForgePair changes a pair behind apply's back, as if apply had: the digest adds up. A nil value removes it.
func (db *DB) ForgePair(key string, value []byte) {
	v := db.cur.Load()
	next := *v
	view := db.store.view(v.head.Index)
	old, err := view.get([]byte(key))
	view.close()
	if err != nil {
		panic(err) // tidy: memory does not fail
	}
	if old != nil {
		next.head.Sum.sub(hashPair([]byte(key), old))
	}
	if value != nil {
		next.head.Sum.add(hashPair([]byte(key), value))
	}
	next.head.Index++ // a version of its own: the memory store has one of each index
	writes := []kvWrite{{[]byte(key), value}, {headKey, encodeRecord(&next.head)}}
	if err := db.store.commit(next.head.Index, writes); err != nil {
		panic(err) // tidy: memory does not fail
	}
	db.cur.Store(&next)
}

// ForgeInode changes the record of an inode, and ForgeContent that of a content, as ForgePair.
func (db *DB) ForgeInode(ino Ino, change func(*Inode)) {
	i, err := db.Inode(ino)
	if err != nil {
		panic(err) // tidy: a test's own mistake
	}
	change(&i)
	db.ForgePair(string(inodeKey(ino)), encodeRecord(&i))
}

// ForgeContent is described with ForgeInode.
func (db *DB) ForgeContent(id ContentID, change func(*Content)) {
	var r contentRecord
	if err := db.read(func(s snap) error { return s.load(keyContent(tableContent, id), &r) }); err != nil {
		panic(err) // tidy: a test's own mistake
	}
	change(&r.Content)
	db.ForgePair(string(keyContent(tableContent, id)), encodeRecord(&r))
}

// ForgeDirent makes a name.
func (db *DB) ForgeDirent(dir Ino, name string, ino Ino, kind Kind) {
	db.ForgePair(string(direntKey(dir, name)), encodeRecord(&dirent{ino, kind, false}))
}

// VerifyBesideCompaction checks the tables while a compaction deletes them, and has only cut their files to nothing
// so far.
func (db *DB) VerifyBesideCompaction() (gone int, err error) {
	s := db.store.(*badgerStore)
	before, done := s.db.Tables(), false
	var empty []string
	defer func() {
		for _, name := range empty {
			os.Remove(name)
		}
	}()
	pace := func(time.Duration) error {
		if done {
			return nil
		}
		done = true
		if err := db.Compact(); err != nil {
			return err
		}
		if _, err := db.Inode(RootIno); err != nil { // the next read lets the merged tables go
			return err
		}
		for _, t := range before {
			name := table.NewFilename(t.ID, s.dir)
			if _, err := os.Stat(name); os.IsNotExist(err) {
				empty = append(empty, name)
				if err := os.WriteFile(name, nil, 0o600); err != nil {
					return err
				}
			}
		}
		return nil
	}
	err = s.verify(context.Background(), pace, db.whileInUse(s))
	return len(empty), err
}

// Contained is contained.
func Contained(what string, do func() error) error { return contained(what, do) }

// Token reports whether a join token's hash is known and when it expires; used tokens are remembered.
func Token(of Reader, hash [32]byte) (expires int64, used bool, err error) {
	var k tokenRecord
	err = of.(*DB).read(func(s snap) error {
		k = tokenRecord{}
		return s.load(tokenKey(hash), &k)
	})
	return k.Expires, err == nil && k.Left == 0, err
}

// Names lists (parent, name) pairs of an inode, at most limit.
func Names(of Reader, ino Ino, limit int) ([]Dirent, error) {
	return Checks{of.(*DB)}.names(ino, limit)
}
