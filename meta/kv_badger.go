package meta

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/y"

	"github.com/rdmcfs/rdmcfs/internal/durable"
)

// Sizes of badger's parts. They bound its memory. Most of it is buffers of table builders, of which badger pools
// eight that never shrink under load: with memtables of 16 MiB and tables of 4 MiB they came to 400 MiB, with these
// to 50. Values never reach the value log.
const (
	memTableBytes   = 4 << 20
	tableBytes      = 1 << 20
	valueLogBytes   = 64 << 20
	indexCacheBytes = 16 << 20
	valueInlineMax  = memTableBytes / 10
)

// badgerStore keeps versions as badger's own: a version's timestamp is its index + 1.
//
// Durability needs care, because badger does not sync as it goes, and because after power loss a later memtable's log
// may be whole while an earlier one has lost its end. So openings never trust what they find: they begin from the index
// in the marker file, written after everything up to it was synced. Reads at that timestamp don't see later versions;
// applying the log again from there writes the same keys at the same timestamps, which fills every gap. For that the
// versions at the marker must not be compacted away: see keepFrom.
type badgerStore struct {
	db         *badger.DB
	dir        string
	marker     *marker
	live       *liveTables
	compaction *compaction // nil: nothing is compacted
}

func badgerOptions(dir string, opts Options) badger.Options {
	o := badger.DefaultOptions(dir)
	o.MemTableSize = memTableBytes
	o.ValueLogFileSize = valueLogBytes
	o.NumMemtables = 1
	o.ValueThreshold = valueInlineMax
	o.BaseTableSize = tableBytes
	o.NumLevelZeroTables = 4
	o.NumLevelZeroTablesStall = 8
	o.NumCompactors = 2
	o.NumGoroutines = 1
	o.Compression = options.None
	o.BlockCacheSize = 0
	o.IndexCacheSize = indexCacheBytes
	o.DetectConflicts = false
	o.MetricsEnabled = false
	o.SyncWrites = false
	o.VerifyValueChecksum = true
	o.ChecksumVerificationMode = options.OnBlockRead // and tables when they are opened, by verifyStore
	o.Logger = badgerLog{opts.Log}
	if opts.memTable > 0 {
		o.MemTableSize, o.BaseTableSize, o.ValueThreshold = opts.memTable, opts.memTable/4, opts.memTable/10
		o.BaseLevelSize, o.ValueLogFileSize = opts.memTable, 4<<20
	}
	if opts.still {
		o.NumCompactors = 0
	}
	return o
}

// openBadger opens or makes a store and returns the index it begins from.
func openBadger(dir string, opts Options) (*badgerStore, uint64, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, 0, fmt.Errorf("meta: open %s: %w", dir, err)
	}
	if err := dropEmptyLogs(dir); err != nil {
		return nil, 0, fmt.Errorf("meta: open %s: %w", dir, err)
	}
	if err := verifyStore(dir); err != nil {
		return nil, 0, fmt.Errorf("meta: open %s: %w", dir, err)
	}
	var db *badger.DB
	err := contained("open", func() (err error) {
		db, err = badger.OpenManaged(badgerOptions(dir, opts))
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("meta: open %s: %w", dir, asDamage("open", err))
	}
	s := &badgerStore{db: db, dir: dir, live: &liveTables{db: db, dir: dir}}
	index, err := s.begin()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("meta: open %s: %w", dir, err), db.Close())
	}
	if !opts.still {
		s.compaction = newCompaction(db, opts.rest)
	}
	return s, index, nil
}

// dropEmptyLogs removes the logs that a crash left between their creation and their first byte: badger refuses to
// open them.
func dropEmptyLogs(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if ext := filepath.Ext(f.Name()); ext != ".mem" && ext != ".vlog" {
			continue
		}
		info, err := f.Info()
		if err == nil && info.Size() == 0 {
			err = os.Remove(filepath.Join(dir, f.Name()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// begin reads the marker, or writes the first state.
func (s *badgerStore) begin() (uint64, error) {
	m, index, found, err := openMarker(filepath.Join(s.dir, markerName))
	if err != nil {
		return 0, err
	}
	s.marker = m
	if !found {
		_, writes := genesis()
		if err := s.commit(0, writes); err != nil {
			return 0, errors.Join(err, m.close())
		}
		if err := s.sync(0); err != nil {
			return 0, errors.Join(err, m.close())
		}
	}
	s.keepFrom(index)
	return index, nil
}

func stamp(index uint64) uint64 { return index + 1 }

func (s *badgerStore) view(index uint64) kvView {
	v := &badgerView{txn: s.db.NewTransactionAt(stamp(index), false), live: s.live, ts: stamp(index)}
	v.set, v.err = s.live.use()
	return v
}

// commit writes one version. A large one takes several of badger's transactions; that is safe, since nobody reads the
// version before all of them are done, and an opening never begins from one that was not synced whole.
func (s *badgerStore) commit(index uint64, writes []kvWrite) error {
	s.compaction.committed()
	txn := s.db.NewTransactionAt(stamp(index), true)
	defer func() { txn.Discard() }()
	for _, w := range writes {
		err := put(txn, w)
		if errors.Is(err, badger.ErrTxnTooBig) {
			if err := txn.CommitAt(stamp(index), nil); err != nil {
				return err
			}
			txn = s.db.NewTransactionAt(stamp(index), true)
			err = put(txn, w)
		}
		if err != nil {
			return fmt.Errorf("set key %x: %w", w.key, err)
		}
	}
	return txn.CommitAt(stamp(index), nil)
}

func put(txn *badger.Txn, w kvWrite) error {
	if w.value == nil {
		return txn.Delete(w.key)
	}
	return txn.Set(w.key, w.value)
}

// sync makes the logs of all memtables durable (badger's own Sync does the active one only), then the marker. A log
// that vanishes meanwhile has been flushed to a table, which badger syncs.
func (s *badgerStore) sync(index uint64) error {
	if err := s.db.Sync(); err != nil {
		return err
	}
	logs, err := filepath.Glob(filepath.Join(s.dir, "*.mem"))
	if err != nil {
		return err
	}
	for _, name := range logs {
		if err := durable.Sync(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := durable.Sync(s.dir); err != nil {
		return err
	}
	return s.marker.write(index)
}

// keepFrom lets badger drop what reads at index and above don't need.
func (s *badgerStore) keepFrom(index uint64) { s.db.SetDiscardTs(stamp(index)) }

func (s *badgerStore) beyond(index uint64) bool { return s.db.MaxVersion() > stamp(index) }

func (s *badgerStore) close() error {
	s.compaction.close()
	err := s.db.Close()
	left := s.live.closed()
	if errors.Is(left, ErrDamaged) {
		left = errors.Join(left, durable.WriteFile(filepath.Join(s.dir, distrustName), []byte(left.Error())))
	}
	return errors.Join(err, left, s.marker.close())
}

// badgerView confirms what badger says, see liveTables.
type badgerView struct {
	txn  *badger.Txn
	live *liveTables
	set  *tableSet
	err  error // why there is no set
	ts   uint64
}

func (v *badgerView) get(key []byte) (value []byte, err error) {
	if v.err != nil {
		return nil, v.err
	}
	err = contained("read", func() error {
		if err := v.set.with(key, key, (*tableFile).checkRoot); err != nil {
			return err
		}
		item, err := v.txn.Get(key)
		if errors.Is(err, badger.ErrKeyNotFound) {
			return v.confirm(key, 0)
		}
		if err != nil {
			return err
		}
		if value, err = item.ValueCopy(nil); err != nil {
			return err
		}
		return v.confirm(key, item.Version())
	})
	if err != nil {
		return nil, asDamage("read", err)
	}
	return value, nil
}

// confirm fails if the tables have a newer version of a key than badger has found, or one where badger has found none,
// 0. What is newer than the tables is in memory.
func (v *badgerView) confirm(key []byte, found uint64) error {
	version, deleted, err := v.set.newest(y.KeyWithTs(key, v.ts))
	if err != nil || version <= found || found == 0 && (deleted || v.deletedSince(key, version)) {
		return err
	}
	return damagef("badger has version %d of key %x, its tables have version %d", found, key, version)
}

// deletedSince reports whether badger knows that a key was deleted after a version.
func (v *badgerView) deletedSince(key []byte, version uint64) bool {
	it := v.txn.NewKeyIterator(key, badger.IteratorOptions{})
	defer it.Close()
	it.Rewind()
	return it.Valid() && it.Item().Version() > version
}

func (v *badgerView) scan(prefix, from []byte) kvCursor {
	c := &badgerCursor{live: v.live, prefix: prefix, from: from, until: after(prefix), err: v.err}
	c.contained(func() error {
		c.it = v.txn.NewIterator(badger.IteratorOptions{Prefix: prefix})
		if err := v.catchUp(c); err != nil {
			return err
		}
		if err := c.set.with(from, c.until, (*tableFile).checkRoot); err != nil {
			return err
		}
		c.it.Seek(from)
		return nil
	})
	return c
}

// catchUp gives a cursor the set of the tables that its iterator reads. After a compaction, the iterator is made again.
func (v *badgerView) catchUp(c *badgerCursor) (err error) {
	for v.live.shape() != v.set.shape {
		c.it.Close()
		c.it = nil
		next, err := v.live.use()
		if err != nil {
			return err
		}
		v.live.release(v.set)
		v.set = next
		c.it = v.txn.NewIterator(badger.IteratorOptions{Prefix: c.prefix})
	}
	c.set = v.live.keep(v.set)
	return nil
}

// after is the first key after all that begin with a prefix, nil if there is none.
func after(prefix []byte) []byte {
	end := bytes.TrimRight(prefix, "\xff")
	if len(end) == 0 {
		return nil
	}
	end = bytes.Clone(end)
	end[len(end)-1]++
	return end
}

func (v *badgerView) close() {
	v.txn.Discard()
	if v.set != nil {
		v.live.release(v.set)
	}
}

type badgerCursor struct {
	live    *liveTables
	set     *tableSet // what it reads
	it      *badger.Iterator
	prefix  []byte
	from    []byte // all before is confirmed
	until   []byte // the end; nil is the end of all
	started bool
	ended   bool  // badger's iterator must not be moved past its end
	err     error // nothing can be read any more

	sureOfEnd bool
}

// contained calls do unless that has failed before.
func (c *badgerCursor) contained(do func() error) {
	if c.err == nil {
		c.err = contained("scan", do)
	}
}

func (c *badgerCursor) next() bool {
	if c.ended {
		return false
	}
	c.contained(func() error {
		if c.started {
			c.it.Next()
		}
		c.started = true
		c.ended = !c.it.ValidForPrefix(c.prefix)
		return nil
	})
	return !c.ended && c.err == nil
}

func (c *badgerCursor) key() []byte            { return c.it.Item().Key() }
func (c *badgerCursor) value() ([]byte, error) { return c.it.Item().ValueCopy(nil) }

func (c *badgerCursor) sure() error {
	c.contained(func() error {
		if !c.started || c.sureOfEnd {
			return nil
		}
		to := c.until
		if !c.ended {
			to = bytes.Clone(c.key())
		}
		err := c.set.with(c.from, to, func(f *tableFile) error { return f.check(c.from, to) })
		c.from, c.sureOfEnd = to, c.ended
		return err
	})
	return c.err
}

func (c *badgerCursor) close() {
	if c.it != nil {
		_ = contained("scan", func() error { c.it.Close(); return nil })
	}
	if c.set != nil {
		c.live.release(c.set)
	}
}

// badgerLog passes badger's messages on; its chatter is debugging.
type badgerLog struct{ log *slog.Logger }

func (l badgerLog) Errorf(f string, a ...any)   { l.say(slog.LevelError, f, a) }
func (l badgerLog) Warningf(f string, a ...any) { l.say(slog.LevelWarn, f, a) }
func (l badgerLog) Infof(f string, a ...any)    { l.say(slog.LevelDebug, f, a) }
func (l badgerLog) Debugf(string, ...any)       {}

func (l badgerLog) say(level slog.Level, format string, args []any) {
	if l.log != nil && l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, "badger: "+strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
}
