package meta

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/format"
)

// Options of Open.
type Options struct {
	// Log gets what the store below has to say; nil is silence.
	Log *slog.Logger
	// ReserveBytes is the size of the file that keeps space free for the database on a full disk. 0 means
	// DefaultReserveBytes, below 0 none.
	ReserveBytes int64

	// Damaged is called once or more, by a goroutine that reads, when a read has met damage in a state. It is to end the
	// use of the state, see Distrust, which is done for it if it is nil. It must not read the database.
	Damaged func(state uint64, why error)

	// Formats are the formats that the program knows; the zero value is format.Known. A state in a later one is neither
	// opened nor made: the error wraps format.ErrUnknown.
	Formats format.Range
	// Raised is called before a state is stored that is the first here in a later format than the one before. An error
	// keeps the state as it was.
	Raised func(number uint64) error

	memTable int64 // tests: bytes of a memtable, 0 = memTableBytes
	still    bool  // tests: nothing is compacted but by Compact

	rest time.Duration // tests: compactors end after it, 0 = compactionRest
}

// DB is the namespace of one node. Apply, Sync and Restore are called by one goroutine each; reads by any.
type DB struct {
	lockReader
	headReader

	// life is held by every call while it uses store, and taken alone to replace or close it. No call holds it
	// across a wait for another node.
	life   sync.RWMutex
	store  kvStore
	closed bool

	// cur is the applied version. Apply replaces it after the commit.
	cur    atomic.Pointer[version]
	synced atomic.Uint64
	oldest atomic.Uint64 // versions below may be gone: a read that began there starts again

	distrust atomic.Pointer[error] // why nothing is read or applied, see Distrust
	restores atomic.Uint64         // how often the state was replaced; changed while life is held alone

	pins struct {
		sync.Mutex
		open map[*pin]struct{} // under way: their versions are kept
	}

	// All nil in memory.
	disk   *disk
	layout *layout
	opts   Options
}

// version is what reads of one applied index need beside the store. It is never changed.
type version struct {
	head head
	cl   *cluster
}

var _ StateMachine = (*DB)(nil)

// OpenMemory makes a database in memory. It behaves like one on disk: what is applied is durable only after Sync, see
// CrashClone.
func OpenMemory() *DB {
	db, err := openMemory(Options{})
	if err != nil {
		panic(err) // tidy: our own genesis decodes
	}
	return db
}

func openMemory(opts Options) (*DB, error) {
	m := newMemoryStore()
	_, writes := genesis()
	_ = m.commit(0, writes) // memory does not fail
	return newDB(m, 0, opts)
}

// Open opens or makes a database in a directory. After a crash it begins at the last synced index, and its caller
// applies the log again from there. The error wraps ErrDamaged if the bytes on disk are not the bytes that were
// written.
func Open(dir string, opts Options) (*DB, error) {
	l, err := openLayout(dir)
	if err != nil {
		return nil, fmt.Errorf("meta: open %s: %w", dir, err)
	}
	db, err := openState(l, opts)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("meta: open %s: %w", dir, err), l.close())
	}
	return db, nil
}

// OpenEmpty takes a directory whose state is damaged. The database is empty and in memory until Restore or StartOver
// has put another state into the directory; the damaged one stays there until then. promised is the index that the
// damaged state had reached, 0 if that can't be read.
func OpenEmpty(dir string, opts Options) (db *DB, promised uint64, err error) {
	l, err := openLayout(dir)
	if err != nil {
		return nil, 0, fmt.Errorf("meta: open %s: %w", dir, err)
	}
	if m, index, found, err := openMarker(filepath.Join(l.path(l.num), markerName)); err == nil {
		if found {
			promised = index
		}
		_ = m.close()
	}
	if db, err = openMemory(opts); err != nil {
		return nil, promised, err
	}
	db.layout = l
	if db.opts.ReserveBytes == 0 {
		db.opts.ReserveBytes = DefaultReserveBytes
	}
	if db.opts.ReserveBytes > 0 {
		db.disk = newDisk(l.root, db.opts.ReserveBytes, opts.Log)
	}
	return db, promised, nil
}

// StartOver makes the state that of index 0, on disk: all of the log is applied again.
func (db *DB) StartOver() error {
	r, _, err := OpenMemory().Snapshot()
	if err != nil {
		return err
	}
	defer r.Close()
	return db.Restore(r)
}

// openState opens the current state directory, or makes the first one.
func openState(l *layout, opts Options) (*DB, error) {
	var d *disk
	if opts.ReserveBytes >= 0 {
		if opts.ReserveBytes == 0 {
			opts.ReserveBytes = DefaultReserveBytes
		}
		d = newDisk(l.root, opts.ReserveBytes, opts.Log)
	}
	num := max(1, l.num)
	if l.lost {
		return nil, damagef("%s is missing or damaged", currentName)
	}
	marker, err := os.Stat(filepath.Join(l.path(num), markerName))
	if l.num > 0 && (errors.Is(err, os.ErrNotExist) || err == nil && marker.Size() == 0) {
		return nil, damagef("%s of the current state is missing or empty", markerName)
	}
	if why, err := os.ReadFile(filepath.Join(l.path(num), distrustName)); err == nil {
		return nil, damagef("%s", why)
	}
	if err := d.prepare(l.path(num), false); err != nil {
		return nil, err
	}
	s, index, err := openBadger(l.path(num), opts)
	if err != nil {
		return nil, err
	}
	db, err := newDB(s, index, opts)
	if err == nil {
		err = d.opened()
	}
	if err == nil && l.num == 0 {
		err = l.use(num)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	db.disk, db.layout = d, l
	return db, nil
}

// newDB loads the version at index from a store.
func newDB(s kvStore, index uint64, opts Options) (*DB, error) {
	db := &DB{store: s, opts: opts}
	db.lockReader, db.headReader = lockReader{db}, headReader{db}
	db.pins.open = map[*pin]struct{}{}
	v, err := loadVersion(s, index)
	if err == nil {
		err = db.opts.knows(&v.head)
	}
	if err != nil {
		return nil, err
	}
	db.publishVersion(v)
	db.synced.Store(index)
	db.oldest.Store(index)
	return db, nil
}

func (db *DB) publishVersion(v *version) { db.cur.Store(v) }

func loadVersion(s kvStore, index uint64) (*version, error) {
	view := s.view(index)
	defer view.close()
	raw, err := view.get(headKey)
	if err != nil {
		return nil, fmt.Errorf("meta: open: read head: %w", asDamage("head", err))
	}
	v := new(version)
	if err := decodeRecord(raw, &v.head); err != nil {
		return nil, fmt.Errorf("meta: open: head at index %d: %w: %w", index, ErrDamaged, err)
	}
	if v.head.Index != index {
		return nil, fmt.Errorf("meta: open: head is of index %d, not %d: %w", v.head.Index, index, ErrDamaged)
	}
	if v.cl, err = loadCluster(view, v.head.DefaultPolicy); err != nil {
		return nil, fmt.Errorf("meta: open: nodes and policies: %w", asDamage("nodes and policies", err))
	}
	return v, nil
}

// knows returns an error that wraps format.ErrUnknown if the program does not know the format of a state.
func (o *Options) knows(h *head) error {
	known := o.Formats
	if known == (format.Range{}) {
		known = format.Known
	}
	if h.format() > known.Newest { // entries of earlier formats can always be applied
		return known.Check(h.format())
	}
	return nil
}

// raise is called before a state takes the place of another one.
func (o *Options) raise(from, to *head) error {
	if from.format() >= to.format() {
		return nil
	}
	if err := o.knows(to); err != nil || o.Raised == nil {
		return err
	}
	return o.Raised(to.format())
}

// Clone copies a database in memory at its present state, with what is synced and what is not.
func (db *DB) Clone() *DB { return db.CrashClone(db.Index()) }

// CrashClone copies a database in memory as it would be found after power loss, when of what was not synced only the
// entries up to keep had reached the disk. It panics for a database on disk.
func (db *DB) CrashClone(keep uint64) *DB {
	m, index := db.store.(*memoryStore).clone(keep)
	out, err := newDB(m, index, Options{Formats: db.opts.Formats})
	if err != nil {
		panic(err) // tidy: what was applied decodes
	}
	return out
}

// Apply applies one entry. See StateMachine.
func (db *DB) Apply(index uint64, now int64, data []byte) (Result, []Event, error) {
	db.life.RLock()
	defer db.life.RUnlock()
	if db.closed {
		return Result{}, nil, ErrClosed
	}
	if err := db.Distrusted(); err != nil {
		return Result{}, nil, err
	}
	return db.apply(index, now, len(data), func(t *tx) Result { return t.run(data) })
}

func (db *DB) apply(index uint64, now int64, size int, run func(*tx) Result) (Result, []Event, error) {
	cur := db.cur.Load()
	if index <= cur.head.Index {
		return Result{Index: index, Duplicate: true}, nil, nil
	}
	if err := db.disk.admit(size); err != nil {
		return Result{}, nil, err
	}
	view := db.store.view(cur.head.Index)
	defer view.close()
	t := newTx(view, cur.head, cur.cl)
	t.head.Index = index
	t.head.Time = max(cur.head.Time, now)
	t.now = t.head.Time
	res, writes := t.complete(run)
	if t.err != nil {
		return Result{}, nil, fmt.Errorf("meta: apply entry %d: %w", index, asDamage("records", t.err))
	}
	if err := db.opts.raise(&cur.head, &t.head); err != nil {
		return Result{}, nil, fmt.Errorf("meta: apply entry %d: %w", index, err)
	}
	if err := db.store.commit(index, writes); err != nil {
		return Result{}, nil, fmt.Errorf("meta: commit entry %d: %w", index, err)
	}
	db.disk.wrote(writes)
	db.publishVersion(&version{head: t.head, cl: t.cl})
	return res, t.events, nil
}

// Sync makes everything applied so far durable and returns that index.
func (db *DB) Sync() (uint64, error) {
	db.life.RLock()
	defer db.life.RUnlock()
	if db.closed {
		return 0, ErrClosed
	}
	index := db.Index()
	if err := db.store.sync(index); err != nil {
		return 0, fmt.Errorf("meta: sync index %d: %w", index, err)
	}
	db.synced.Store(index)
	db.letGo(index)
	return index, nil
}

// letGo lets the store drop versions that nobody reads any more: below what is synced and below every pin.
func (db *DB) letGo(index uint64) {
	db.pins.Lock()
	defer db.pins.Unlock()
	for p := range db.pins.open {
		index = min(index, p.index())
	}
	if index > db.oldest.Load() {
		db.oldest.Store(index)
		db.store.keepFrom(index)
	}
}

// Synced is the index up to which everything is durable.
func (db *DB) Synced() uint64 { return db.synced.Load() }

// SpaceLow reports whether the disk is so full that changes must be refused before they are proposed.
func (db *DB) SpaceLow() bool { return db.disk.low() }

// KeepSpace keeps space for a disk that becomes full, the more the less is free. It returns after which time it is to
// be called again.
func (db *DB) KeepSpace() time.Duration { return db.disk.keep() }

// SpaceFor reports whether an operation may be proposed as far as the disk is concerned. Removing names is how users
// make space: it may use the reserve, except the part that is kept for what other nodes change.
func (db *DB) SpaceFor(op Op) bool {
	switch op.(type) {
	case *Unlink, *Rmdir, *ReturnLocks, *UnlockFile:
		return !db.disk.bare()
	}
	return !db.disk.low()
}

// Close syncs and closes the database.
func (db *DB) Close() error {
	_, err := db.Sync()
	if err == ErrClosed {
		return nil
	}
	db.life.Lock()
	defer db.life.Unlock()
	if db.closed {
		return nil
	}
	db.closed = true
	abandonPins(db)
	db.disk.release()
	err = errors.Join(err, db.store.close())
	if db.layout != nil {
		err = errors.Join(err, db.layout.close())
	}
	return err
}
