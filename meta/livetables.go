package meta

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"sort"
	"sync"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/y"
)

// liveTables reads badger's tables beside badger, to find out whether what badger says is right. Badger's reads pass
// over a block that is damaged: the keys in it are not there then, or older versions of them. Its compactions leave
// out the rest of a table. It never checks the index of a table again.
//
// So each read of badger's is confirmed, after it: the blocks that must have the key, or all keys of the range, are
// checked in the mapped file. And each table that a compaction has merged into others is checked before a read of
// those is believed. For that it is pinned: while an iterator of badger's is open, badger leaves the tables that were
// in use then in place.
type liveTables struct {
	db  *badger.DB
	dir string

	mu     sync.Mutex
	now    *tableSet // nil before the first read
	damage error     // a table that badger has merged into others was damaged: those lack records
}

// tableSet are the tables that were in use at one time. It is never changed.
type tableSet struct {
	shape  shape
	levels [][]*tableFile // the first: level 0, which overlap; the others in key order
	txn    *badger.Txn
	pin    *badger.Iterator // keeps the files in place
	users  int              // views, and 1 while it is the present one; guarded by liveTables.mu
}

// shape tells sets of tables apart. A flush makes level 0 larger, a compaction makes a level smaller.
type shape [8]struct {
	tables      int
	size, stale int64
}

func (l *liveTables) shape() (s shape) {
	for i, level := range l.db.Levels() {
		at := &s[min(i, len(s)-1)]
		at.tables, at.size, at.stale = level.NumTables, level.Size, level.StaleDatSize
	}
	return s
}

// use returns the tables that are in use, until release. It fails if what badger says is wrong from now on.
func (l *liveTables) use() (*tableSet, error) {
	shape := l.shape()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.damage != nil {
		return nil, l.damage
	}
	if l.now == nil || l.now.shape != shape {
		if err := l.renew(); err != nil {
			return nil, err
		}
	}
	l.now.users++
	return l.now, nil
}

// keep returns a set that is in use for one more user.
func (l *liveTables) keep(s *tableSet) *tableSet {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.users++
	return s
}

func (l *liveTables) release(s *tableSet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.releaseLocked(s)
}

func (l *liveTables) releaseLocked(s *tableSet) {
	if s.users--; s.users > 0 {
		return
	}
	for f := range s.all() {
		if f.sets--; f.sets == 0 {
			f.close()
		}
	}
	_ = contained("unpin", func() error { // badger deletes what a compaction has merged
		s.pin.Close()
		s.txn.Discard()
		return nil
	})
}

// renew makes the set of the tables that are in use now the present one.
func (l *liveTables) renew() error {
	next, infos := l.pin()
	err := l.fill(next, infos)
	if err == nil {
		err = l.checkLeft(next.has)
	}
	if err != nil {
		l.releaseLocked(next)
		return err
	}
	if l.now != nil {
		l.releaseLocked(l.now)
	}
	l.now = next
	return nil
}

// pin keeps the tables that are in use in place.
func (l *liveTables) pin() (*tableSet, []badger.TableInfo) {
	for {
		s := &tableSet{shape: l.shape(), users: 1, txn: l.db.NewTransactionAt(math.MaxUint64, false)}
		s.pin = s.txn.NewIterator(badger.IteratorOptions{})
		infos := l.db.Tables()
		if l.shape() == s.shape {
			return s, infos
		}
		s.pin.Close()
		s.txn.Discard()
	}
}

// fill opens the tables of a set that the present one does not have.
func (l *liveTables) fill(s *tableSet, infos []badger.TableInfo) error {
	known := map[uint64]*tableFile{}
	if l.now != nil {
		for f := range l.now.all() {
			known[f.id] = f
		}
	}
	s.levels = make([][]*tableFile, len(s.shape))
	for _, info := range infos {
		f := known[info.ID]
		if f == nil {
			var err error
			if f, err = openTableFile(l.dir, info); err != nil {
				return err
			}
		}
		f.sets++
		s.levels[info.Level] = append(s.levels[info.Level], f)
	}
	for _, files := range s.levels[1:] {
		slices.SortFunc(files, func(a, b *tableFile) int { return y.CompareKeys(a.smallest, b.smallest) })
	}
	return nil
}

// checkLeft checks the tables that are no longer in use: compactions have read them.
func (l *liveTables) checkLeft(inUse func(id uint64) bool) error {
	if l.now == nil {
		return nil
	}
	for f := range l.now.all() {
		if inUse(f.id) {
			continue
		}
		if err := verifyTable(f.name); err != nil {
			if errors.Is(err, ErrDamaged) {
				l.damage = err
			}
			return err
		}
	}
	return nil
}

// closed ends the use of the tables of a store that badger has closed. The error wraps ErrDamaged if the store must not
// be opened again: a compaction has read a damaged table at the end.
func (l *liveTables) closed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now == nil {
		return nil
	}
	err := l.damage
	if err == nil {
		var m badger.Manifest
		if m, err = readManifest(l.dir); err == nil {
			err = l.checkLeft(func(id uint64) bool { _, is := m.Tables[id]; return is })
		}
	}
	l.releaseLocked(l.now)
	l.now = nil
	return err
}

// all are the tables of a set.
func (s *tableSet) all() func(yield func(*tableFile) bool) {
	return func(yield func(*tableFile) bool) {
		for _, files := range s.levels {
			for _, f := range files {
				if !yield(f) {
					return
				}
			}
		}
	}
}

func (s *tableSet) has(id uint64) bool {
	for f := range s.all() {
		if f.id == id {
			return true
		}
	}
	return false
}

// with calls fn with the tables that may have keys from one to another, these included; to is nil for the end. Keys
// are without versions.
func (s *tableSet) with(from, to []byte, fn func(*tableFile) error) error {
	for level, files := range s.levels {
		if level > 0 {
			i := sort.Search(len(files), func(i int) bool { return bytes.Compare(y.ParseKey(files[i].biggest), from) >= 0 })
			files = files[i:]
		}
		for _, f := range files {
			if to != nil && bytes.Compare(y.ParseKey(f.smallest), to) > 0 {
				if level > 0 {
					break
				}
				continue
			}
			if err := fn(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// newest finds the newest version of a key in all tables that is not newer than the one that key names; 0 if there
// is none.
func (s *tableSet) newest(key []byte) (version uint64, deleted bool, err error) {
	plain := y.ParseKey(key)
	hash := y.Hash(plain)
	err = s.with(plain, plain, func(f *tableFile) error {
		v, d, err := f.newest(key, hash)
		if v > version {
			version, deleted = v, d
		}
		return err
	})
	return version, deleted, err
}
