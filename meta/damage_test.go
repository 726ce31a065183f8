package meta_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// small are the options of a database that soon has many tables.
func small() meta.Options { return meta.Options{ReserveBytes: -1}.WithMemTable(1 << 20) }

// filled makes a closed database with tables, and its twin in memory.
func filled(t *testing.T) (dir string, twin *meta.DB) {
	t.Helper()
	return filledBy(t, 3)
}

// filledBy makes a larger one in more rounds: from 6 on its tables are on several levels.
func filledBy(t *testing.T, rounds int) (dir string, twin *meta.DB) {
	t.Helper()
	dir = t.TempDir()
	db := openSmall(t, dir)
	twin = meta.OpenMemory()
	rec := newRecorder(twin)
	c := metatest.Over(t, rec, 3)
	rnd := rand.New(rand.NewPCG(9, 10))
	for round := range rounds {
		churn(c, rnd, 200)
		fill := mkdir(c, meta.RootIno, fmt.Sprint("fill", round))
		c.Do(1, &meta.SetPolicy{Dir: fill, Policy: &meta.Policy{}})
		for i := range 300 {
			c.Inline(1, c.Do(1, &meta.Create{Parent: fill, Name: fmt.Sprint("f", i), Kind: meta.KindFile}).Ino,
				make([]byte, 3000))
		}
	}
	rec.replay(t, db, twin.Index())
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, twin
}

// flipBit inverts one bit of a file.
func flipBit(t *testing.T, name string, rnd *rand.Rand) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	at, bit := rnd.IntN(len(raw)), rnd.IntN(8)
	if rnd.IntN(4) == 0 { // the ends hold the indexes
		at = len(raw) - 1 - rnd.IntN(min(len(raw), 64))
	}
	raw[at] ^= 1 << bit
	if err := os.WriteFile(name, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("bit %d of byte %d of %d of %s", bit, at, len(raw), filepath.Base(name))
}

// Whatever bit of the state's files flips while the node is stopped: it is noticed when the database is opened, or
// nothing that was written has changed.
func TestFlippedBitIsNoticed(t *testing.T) {
	dir, twin := filled(t)
	rnd := rand.New(rand.NewPCG(11, 12))
	noticed := 0
	for trial := range 60 {
		copied := copyDir(t, dir)
		pattern := "state-*/*.sst"
		if trial%5 == 4 {
			pattern = "state-*/*"
		}
		files, err := filepath.Glob(filepath.Join(copied, pattern))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		name := files[rnd.IntN(len(files))]
		if info, err := os.Stat(name); err != nil || info.Size() == 0 {
			continue
		}
		what := flipBit(t, name, rnd)
		db, err := meta.Open(copied, small())
		switch {
		case errors.Is(err, meta.ErrDamaged):
			noticed++
			continue
		case err != nil:
			t.Fatalf("%s: %v", what, err)
		}
		if err := db.Verify(context.Background(), 1); errors.Is(err, meta.ErrDamaged) {
			noticed++
			t.Logf("%s: only when all was read: %v", what, err)
		} else {
			t.Logf("%s: not noticed", what)
			sameState(t, twin, db)
		}
		if err := db.Close(); err != nil && !errors.Is(err, meta.ErrDamaged) {
			t.Fatalf("%s: close: %v", what, err)
		}
		os.RemoveAll(copied)
	}
	if noticed < 40 {
		t.Fatalf("only %d of 60 were noticed", noticed)
	}
}

// A damaged block of records keeps the database from being opened, in whichever table it lies. Found by the check of
// all records only, it would be read, and passed on, until then.
func TestDamagedBlockIsNoticedAtTheOpening(t *testing.T) {
	dir, _ := filled(t)
	tables, err := filepath.Glob(filepath.Join(dir, "state-*/*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	for _, name := range tables {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []int{100, len(whole) / 2} { // the index is at the end
			raw := slices.Clone(whole)
			raw[at] ^= 4
			if err := os.WriteFile(name, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := meta.Open(dir, small()); !errors.Is(err, meta.ErrDamaged) {
				t.Fatalf("%s with a wrong byte %d of %d: %v", filepath.Base(name), at, len(raw), err)
			}
		}
		if err := os.WriteFile(name, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	openSmall(t, dir)
}

// A table that a compaction deletes while it is checked is no damage.
func TestVerifyBesideCompaction(t *testing.T) {
	dir, _ := filled(t)
	// Closing writes what was changed to a table of level 0, which the compaction merges with the others, unless
	// badger has done so by itself before the check began.
	var db *meta.DB
	rnd := rand.New(rand.NewPCG(17, 18))
	for gone, try := 0, 0; gone == 0; try++ {
		if try == 100 {
			t.Fatal("badger was first each time")
		}
		db = openSmall(t, dir)
		churn(metatest.Resume(t, db, 3), rnd, 200)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db = openSmall(t, dir)
		var err error
		if gone, err = db.VerifyBesideCompaction(); err != nil {
			t.Fatalf("%d tables were deleted meanwhile: %v", gone, err)
		}
		if gone == 0 {
			db.Close()
		}
	}
	c := metatest.Resume(t, db, 3)
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := db.Verify(context.Background(), 1); errors.Is(err, meta.ErrDamaged) {
				done <- err
				return
			}
		}
	}()
	for range 10 {
		churn(c, rnd, 200)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A damaged state stays on disk until the one that takes its place is there whole.
func TestDamagedStateIsReplaced(t *testing.T) {
	dir, twin := filled(t)
	tables, err := filepath.Glob(filepath.Join(dir, "state-*/*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	flipBit(t, tables[0], rand.New(rand.NewPCG(13, 14)))
	for _, whole := range []bool{false, true} {
		if _, err := meta.Open(dir, small()); !errors.Is(err, meta.ErrDamaged) {
			t.Fatalf("opened: %v", err)
		}
		db, promised, err := meta.OpenEmpty(dir, small())
		if err != nil || promised != twin.Index() || db.Index() != 0 {
			t.Fatalf("promised %d, want %d, at %d: %v", promised, twin.Index(), db.Index(), err)
		}
		s, _, err := twin.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if whole {
			err = db.Restore(s)
		}
		if err := errors.Join(err, s.Close(), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	db := openSmall(t, dir)
	sameState(t, twin, db)
	if err := db.Verify(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "state-*")); len(left) != 1 {
		t.Fatalf("left: %v", left)
	}
}

// Records that are each whole, but are not the records that were applied, are noticed when all are read.
func TestVerifyAddsUp(t *testing.T) {
	db := meta.OpenMemory()
	defer db.Close() // what is forged is not looked at in the end
	c := metatest.Over(t, db, 1)
	f := file(c, meta.RootIno, "f")
	if err := db.Verify(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	db.Forge(f)
	if err := db.Verify(context.Background(), 1); !errors.Is(err, meta.ErrDamaged) {
		t.Fatalf("a forged record: %v", err)
	}
}

// A state that is distrusted is not read, given to others or opened any more, until another is in its place.
func TestDistrusted(t *testing.T) {
	dir, twin := filled(t)
	db := openSmall(t, dir)
	for range 2 {
		state := db.State()
		if !db.Distrust(state, errors.New("outvoted")) || db.Distrust(state, errors.New("again")) {
			t.Fatal("distrusted not at all, or twice")
		}
		_, errRead := db.Inode(meta.RootIno)
		_, _, errApply := db.Apply(db.Index()+1, 1, nil)
		_, _, errSnapshot := db.Snapshot()
		for _, err := range []error{errRead, errApply, errSnapshot, db.Distrusted()} {
			if !errors.Is(err, meta.ErrDamaged) {
				t.Fatalf("went on: %v", err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		var err error
		if _, err = meta.Open(dir, small()); !errors.Is(err, meta.ErrDamaged) {
			t.Fatalf("opened: %v", err)
		}
		if db, _, err = meta.OpenEmpty(dir, small()); err != nil {
			t.Fatal(err)
		}
		s, _, err := twin.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		state = db.State()
		err = db.Restore(s)
		if db.Distrust(state, errors.New("too late")) {
			t.Fatal("a verdict about the old state hits the new one")
		}
		if err := errors.Join(err, s.Close(), db.Distrusted()); err != nil {
			t.Fatal(err)
		}
		sameState(t, twin, db)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// A panic of badger for want of memory or of files says nothing about the bytes on disk.
func TestPanicForWantOfMemoryIsNoDamage(t *testing.T) {
	for cause, damaged := range map[any]bool{
		fmt.Errorf("mmap: %w", syscall.ENOMEM): false, "open: " + syscall.EMFILE.Error(): false, "index out of range": true,
		errors.New("bad block"): true,
	} {
		err := meta.Contained("table", func() error { panic(cause) })
		if err == nil || errors.Is(err, meta.ErrDamaged) != damaged {
			t.Errorf("%v: %v", cause, err)
		}
	}
}
