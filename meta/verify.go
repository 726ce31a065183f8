package meta

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/ristretto/v2/z"
	"google.golang.org/protobuf/proto"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/internal/durable"
)

// ErrDamaged is the class of errors of a database whose bytes on disk are not the bytes that were written. Its state
// must not be served: it is remade from the other nodes, or from the log, see OpenEmpty.
var ErrDamaged = errors.New("meta: the state database is damaged")

func damagef(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

// Badger must not be the first to see a damaged table. At its opening it panics in a goroutine of its own, or exits.
// A read that meets a damaged block finds nothing, without an error, and a compaction leaves out the rest of the
// table. So all tables are checked here before badger opens them, and again from time to time.

// readManifest reads which tables a store has. There are none in a new store.
func readManifest(dir string) (m badger.Manifest, err error) {
	f, err := os.Open(filepath.Join(dir, badger.ManifestFilename))
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	defer f.Close()
	err = contained("manifest", func() (err error) {
		m, _, err = badger.ReplayManifestFile(f, 0, badgerOptions(dir, Options{}))
		return err
	})
	return m, asDamage("manifest", err)
}

// verifyStore checks the manifest and all tables that it names. It is called while badger has the store closed.
func verifyStore(dir string) error {
	m, err := readManifest(dir)
	if err != nil {
		return err
	}
	for id := range m.Tables {
		name := table.NewFilename(id, dir)
		if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) {
			return damagef("table %s is missing", filepath.Base(name))
		}
		if err := verifyTable(name); err != nil {
			return err
		}
	}
	return nil
}

// verifyTable checks every block of a table. One that has been removed meanwhile, by a compaction, is whole.
func verifyTable(name string) error {
	file, err := z.OpenMmapFile(name, os.O_RDONLY, 0)
	if err != nil {
		if _, serr := os.Stat(name); errors.Is(serr, os.ErrNotExist) {
			return nil
		}
		return asDamage(filepath.Base(name), err)
	}
	defer file.Close(-1) // as long as it is
	base := filepath.Base(name)
	return contained(base, func() error {
		if _, _, err := findIndex(file.Data); err != nil {
			return damagef("table %s: %v", base, err)
		}
		t, err := table.OpenTable(file, table.Options{ReadOnly: true})
		if err == nil {
			err = t.VerifyChecksum()
		}
		return asDamage("table "+base, err)
	})
}

var errFooter = errors.New("the index is damaged")

// findIndex finds a table's index and checks it: index | its length, 4 bytes | checksum | its length, 4 bytes. Badger
// exits where lengths make no sense.
func findIndex(b []byte) (from, to int, err error) {
	b, sum, ok := cutSum(b)
	if !ok || len(b) < 4 {
		return 0, 0, errFooter
	}
	to = len(b) - 4
	from = to - int(number(b[to:], coder.Big))
	if from < 0 || crc32.Checksum(b[from:to], castagnoli) != sum {
		return 0, 0, errFooter
	}
	return from, to, nil
}

// cutSum cuts a checksum and its length, 4 bytes, off the end.
func cutSum(b []byte) (rest []byte, sum uint32, ok bool) {
	if len(b) < 4 {
		return nil, 0, false
	}
	b, length := b[:len(b)-4], int(number(b[len(b)-4:], coder.Big))
	var want pb.Checksum
	if length > len(b) || proto.Unmarshal(b[len(b)-length:], &want) != nil || want.Algo != pb.Checksum_CRC32C ||
		want.Sum > math.MaxUint32 {
		return nil, 0, false
	}
	return b[:len(b)-length], uint32(want.Sum), true
}

// number reads the 4 bytes of a number.
func number(b []byte, order coder.Order) (n uint32) {
	c := coder.Reader(b[:4], order)
	c.U32(&n)
	return n
}

// contained turns a panic over damaged bytes into an error, also where they can't be read from the disk at all.
func contained(what string, do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			text, _, _ := strings.Cut(strings.TrimSpace(fmt.Sprint(r)), "\n")
			err = asDamage(what, errors.New(text)) // a panic for want of memory says nothing about the bytes
		}
	}()
	return do()
}

// notDamage are errors of the system that say nothing about the bytes on disk.
var notDamage = []syscall.Errno{
	syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.EACCES, syscall.EPERM, syscall.ENOMEM,
	syscall.EROFS, syscall.EAGAIN,
}

// asDamage says of an error of badger that the store is damaged, unless the system had a reason of its own. Badger
// keeps only the text of that.
func asDamage(what string, err error) error {
	if err == nil || errors.Is(err, ErrDamaged) {
		return err
	}
	for _, errno := range notDamage {
		if errors.Is(err, errno) || strings.Contains(err.Error(), errno.Error()) {
			return err
		}
	}
	return damagef("%s: %v", what, err)
}

// errReplaced ends the check of a store that is no longer in use.
var errReplaced = errors.New("meta: the state was replaced")

// verify checks the blocks of all tables that are in use, while others read and write. inUse calls a function while
// the store can't be closed, and returns an error if it has been.
func (s *badgerStore) verify(ctx context.Context, pace func(time.Duration) error, inUse func(func()) error) error {
	var tables []badger.TableInfo
	list := func() { tables = s.db.Tables() }
	if err := inUse(list); err != nil {
		return err
	}
	for _, t := range slices.Clone(tables) {
		began := time.Now()
		// A compaction takes a table off the list, cuts its file to nothing and removes it. So an error counts only
		// if the table is on the list afterwards, and then only if it comes again.
		for first := true; ; first = false {
			bad := verifyTable(table.NewFilename(t.ID, s.dir))
			if bad == nil {
				break
			}
			if err := inUse(list); err != nil {
				return err
			}
			if !slices.ContainsFunc(tables, func(other badger.TableInfo) bool { return other.ID == t.ID }) {
				break
			}
			if !first {
				return bad
			}
		}
		if err := pace(time.Since(began)); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// verifier is a store that can check what it has on disk.
type verifier interface {
	verify(ctx context.Context, pace func(time.Duration) error, inUse func(func()) error) error
}

// whileInUse returns a function that calls another while store is the one in use, and can't be closed.
func (db *DB) whileInUse(store kvStore) func(func()) error {
	return func(do func()) error {
		db.life.RLock()
		defer db.life.RUnlock()
		switch {
		case db.closed:
			return ErrClosed
		case db.store != store:
			return errReplaced
		}
		do()
		return nil
	}
}

// Verify checks that the state is what was applied: each block on disk against its checksum, and the sum of all pairs
// of one version against the digest that apply keeps. It takes a fraction, part, of up to 1 of one processor's time
// while others go on. The error wraps ErrDamaged if something differs.
func (db *DB) Verify(ctx context.Context, part float64) error {
	pace := func(busy time.Duration) error {
		if part >= 1 {
			return ctx.Err()
		}
		timer := time.NewTimer(time.Duration(float64(busy) * (1 - part) / part))
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		}
	}
	db.life.RLock()
	store := db.store
	closed := db.closed
	db.life.RUnlock()
	if closed {
		return ErrClosed
	}
	if v, ok := store.(verifier); ok {
		if err := v.verify(ctx, pace, db.whileInUse(store)); err != nil {
			return fmt.Errorf("meta: verify: %w", err)
		}
	}
	return db.verifySum(pace)
}

// verifySum adds up the pairs of the current version, as a snapshot brings them.
func (db *DB) verifySum(pace func(time.Duration) error) error {
	r, index, err := db.Snapshot()
	if err != nil {
		return err
	}
	defer r.Close()
	in, err := newSnapshotReader(r)
	if err != nil {
		return fmt.Errorf("meta: verify: %w", err)
	}
	raw, sum, err := in.addUp(pace)
	if err != nil {
		return fmt.Errorf("meta: verify: %w", err)
	}
	var h head
	if err := decodeRecord(raw, &h); err != nil {
		return damagef("head at index %d: %v", index, err)
	}
	if h.Index != index || h.Sum != sum {
		return damagef("records at index %d do not add up to their digest", index)
	}
	return nil
}

// addUp reads all pairs. It returns the record of the head and the sum of the others.
func (r *snapshotReader) addUp(pace func(time.Duration) error) (raw []byte, sum sum128, err error) {
	for {
		began := time.Now()
		pairs, err := r.frame()
		if err != nil || pairs == nil {
			return raw, sum, err
		}
		for _, p := range pairs {
			if bytes.Equal(p.key, headKey) {
				raw = p.value
			} else {
				sum.add(hashPair(p.key, p.value))
			}
		}
		if err := pace(time.Since(began)); err != nil {
			return raw, sum, err
		}
	}
}

// Snapshotted is what a snapshot says of itself.
type Snapshotted struct {
	Index uint64
	Time  int64 // of the last entry before it, in nanoseconds since 1970
	Files uint64
	Bytes uint64 // of all contents
}

// CheckSnapshot reads a snapshot to its end and checks all of it. The error wraps ErrSnapshot if it is damaged or cut.
func CheckSnapshot(r io.Reader) (Snapshotted, error) {
	in, err := newSnapshotReader(r)
	if err != nil {
		return Snapshotted{}, err
	}
	raw, sum, err := in.addUp(func(time.Duration) error { return nil })
	var h head
	if err == nil && (decodeRecord(raw, &h) != nil || h.Index != in.index || h.Sum != sum) {
		err = fmt.Errorf("meta: the records do not add up to their digest: %w", ErrSnapshot)
	}
	return Snapshotted{h.Index, h.Time, h.Files, h.Bytes}, err
}

// distrustName is a file in a state directory that must not be opened any more: why.
const distrustName = "DISTRUSTED"

// State is the number of the state in use, from 1 on: it grows when Restore puts another state in its place.
func (db *DB) State() uint64 { return 1 + db.restores.Load() }

// Distrust ends the use of a state that has turned out to be wrong: reads, snapshots and Apply return an error that
// wraps ErrDamaged, also after another start, until Restore has put another state in its place. It does nothing and
// returns false if state, see State, has been replaced, or is distrusted already.
func (db *DB) Distrust(state uint64, why error) bool {
	if !errors.Is(why, ErrDamaged) {
		why = damagef("%v", why)
	}
	db.life.RLock()
	defer db.life.RUnlock()
	if db.closed || db.State() != state || !db.distrust.CompareAndSwap(nil, &why) {
		return false
	}
	if db.layout == nil {
		return true
	}
	name := filepath.Join(db.layout.path(db.layout.num), distrustName)
	if err := durable.WriteFile(name, []byte(why.Error())); err != nil && db.opts.Log != nil {
		db.opts.Log.Warn("meta: the distrusted state is not marked", "err", err) // it is checked again at the next start
	}
	return true
}

// Distrusted is why nothing can be read, nil normally.
func (db *DB) Distrusted() error {
	if why := db.distrust.Load(); why != nil {
		return *why
	}
	return nil
}
