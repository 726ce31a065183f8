package meta_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// harm changes a file in place, as a running node has it mapped: one bit flips, or a page becomes zero.
func harm(t *testing.T, name string, rnd *rand.Rand) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	at, n := rnd.IntN(len(raw)), 1
	if rnd.IntN(3) == 0 {
		at &^= 4095
		n = min(4096, len(raw)-at)
	}
	return overwrite(t, name, raw, at, n, rnd)
}

// harmContent flips a bit in the middle of a file's content, which is all zero, in one of the tables.
func harmContent(t *testing.T, tables []string, rnd *rand.Rand) (name, what string) {
	t.Helper()
	const around = 100
	for {
		name = tables[rnd.IntN(len(tables))]
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		at := around + rnd.IntN(len(raw)-2*around)
		if len(bytes.Trim(raw[at-around:at+around], "\x00")) == 0 {
			return name, overwrite(t, name, raw, at, 1, rnd)
		}
	}
}

// overwrite flips a bit of one byte of a file, or makes more bytes zero.
func overwrite(t *testing.T, name string, raw []byte, at, n int, rnd *rand.Rand) string {
	t.Helper()
	part := raw[at : at+n]
	if n == 1 {
		part[0] ^= 1 << rnd.IntN(8)
	} else {
		clear(part)
	}
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(part, int64(at))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d bytes at %d of %d of %s", n, at, len(raw), filepath.Base(name))
}

// openStill opens a copy of a database, which compacts nothing by itself.
func openStill(t *testing.T, dir string) (db *meta.DB, tables []string) {
	t.Helper()
	db, err := meta.Open(copyDir(t, dir), small().Still())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	tables, err = filepath.Glob(filepath.Join(db.Dir(), "*.sst"))
	if err != nil || len(tables) < 3 {
		t.Fatal(tables, err)
	}
	return db, tables
}

// told is what reads of a damaged store have answered.
type told struct {
	t       *testing.T
	what    string
	refused int
}

// take holds an answer against the right one. An answer may be refused.
func (a *told) take(read string, err error, same bool) {
	a.t.Helper()
	switch {
	case errors.Is(err, meta.ErrDamaged):
		a.refused++
	case err != nil:
		a.t.Errorf("%s: %s: %v", a.what, read, err)
	case !same:
		a.t.Errorf("%s: %s: a wrong answer", a.what, read)
	}
}

// pairsOf are the pairs of a database in order.
func pairsOf(t *testing.T, db *meta.DB) (keys []string, values map[string]string) {
	t.Helper()
	r := db.Raw()
	defer r.Close()
	values = map[string]string{}
	err := r.Scan("", "", 1<<30, func(key, value string) {
		keys = append(keys, key)
		values[key] = value
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys, values
}

// readAll reads every key, keys that are not there, and ranges.
func (a *told) readAll(db *meta.DB, keys []string, values map[string]string, rnd *rand.Rand) {
	a.t.Helper()
	r := db.Raw()
	defer r.Close()
	for _, i := range rnd.Perm(len(keys)) {
		got, err := r.Get(keys[i])
		a.take(fmt.Sprintf("get %x", keys[i]), err, string(got) == values[keys[i]])
		got, err = r.Get(keys[i] + "x")
		a.take(fmt.Sprintf("get absent %x", keys[i]), err, got == nil)
	}
	for i := range 40 {
		from := keys[rnd.IntN(len(keys))]
		prefix, limit := from[:rnd.IntN(min(len(from), 10))], 1+rnd.IntN(100)
		if i == 0 {
			prefix, from, limit = "", "", len(keys)+1
		}
		var want, got []string
		for _, k := range keys[sort.SearchStrings(keys, from):] {
			if strings.HasPrefix(k, prefix) && len(want) < limit {
				want = append(want, k+values[k])
			}
		}
		err := r.Scan(prefix, from, limit, func(key, value string) { got = append(got, key+value) })
		a.take(fmt.Sprintf("scan %x from %x", prefix, from), err, slices.Equal(got, want))
	}
}

// Whatever bit of a table flips, and whatever page of it is lost, while the database is open: each answer is right or
// an error that says damage. Also when a compaction has read the damaged table meanwhile.
func TestDamageUnderAnOpenStore(t *testing.T) {
	dir, twin := filledBy(t, 6)
	keys, values := pairsOf(t, twin)
	refused, merged := 0, 0
	for seed := range uint64(24) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		db, tables := openStill(t, dir)
		a := &told{t: t, what: "whole"}
		if seed%4 == 0 {
			a.readAll(db, keys, values, rnd)
		}
		if seed%2 == 0 {
			name, what := harmContent(t, tables, rnd)
			a.what = fmt.Sprintf("seed %d: compacted with %s", seed, what)
			if err := db.Compact(); err != nil {
				t.Fatalf("%s: %v", a.what, err)
			}
			if !db.Uses(name) {
				merged++
			}
		} else {
			a.what = fmt.Sprintf("seed %d: %s", seed, harm(t, tables[rnd.IntN(len(tables))], rnd))
		}
		a.readAll(db, keys, values, rnd)
		if a.refused > 0 {
			refused++
		}
		t.Logf("%s: %d answers refused", a.what, a.refused)
		if err := db.Close(); err != nil && !errors.Is(err, meta.ErrDamaged) {
			t.Errorf("%s: close: %v", a.what, err)
		}
	}
	if refused < 20 || merged < 6 {
		t.Errorf("of 24 damages %d were met; %d of 12 tables were merged", refused, merged)
	}
}

// Badger goes by the index of a table, with its filter of keys, as it is in the file. Where that has changed, keys seem
// to be absent although their blocks are whole.
func TestDamagedIndexUnderAnOpenStore(t *testing.T) {
	dir, twin := filledBy(t, 6)
	keys, values := pairsOf(t, twin)
	refused := 0
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		db, tables := openStill(t, dir)
		name := tables[rnd.IntN(len(tables))]
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		from, to, err := meta.IndexOf(raw)
		if err != nil {
			t.Fatal(err)
		}
		n := min(64, (to-from)/2)
		a := &told{t: t}
		a.what = fmt.Sprintf("seed %d: %s", seed, overwrite(t, name, raw, from+rnd.IntN(to-from-n), n, rnd))
		a.readAll(db, keys, values, rnd)
		if a.refused > 0 {
			refused++
		}
		if err := db.Close(); err != nil && !errors.Is(err, meta.ErrDamaged) {
			t.Errorf("%s: close: %v", a.what, err)
		}
	}
	if refused == 0 {
		t.Error("no damage was met")
	}
}

// An entry that has to read what is damaged is not applied, and nothing after it: it gets no wrong result. Nothing is
// read any more from then on.
func TestDamageStopsApply(t *testing.T) {
	dir, twin := filled(t)
	rec := newRecorder(twin.Clone())
	c := metatest.Resume(t, rec, 3)
	for round := range 3 {
		for i := range 300 {
			c.Propose(1, &meta.Create{Parent: ino(t, twin, fmt.Sprint("fill", round)), Name: fmt.Sprint("f", i),
				Kind: meta.KindFile})
		}
	}
	stopped := 0
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		db, tables := openStill(t, dir)
		for _, name := range tables {
			for range 4 {
				harm(t, name, rnd)
			}
		}
		var failed error
		for _, e := range rec.entries {
			_, _, err := db.Apply(e.index, e.now, e.data)
			if err != nil && !errors.Is(err, meta.ErrDamaged) {
				t.Fatal(err)
			}
			if i, sum := db.Digest(); err == nil && sum != rec.sums[i] {
				t.Fatalf("seed %d: entry %d was applied wrongly", seed, e.index)
			}
			if failed = err; failed != nil {
				break
			}
		}
		if failed == nil {
			continue
		}
		stopped++
		e := rec.entries[0] // again
		for _, e = range rec.entries {
			if e.index > db.Index() {
				break
			}
		}
		if _, _, err := db.Apply(e.index, e.now, e.data); !errors.Is(err, meta.ErrDamaged) {
			t.Errorf("seed %d: went on after %v: %v", seed, failed, err)
		}
	}
	if stopped < 8 {
		t.Errorf("only %d of 10 damages were met", stopped)
	}
}

func ino(t *testing.T, db *meta.DB, name string) meta.Ino {
	t.Helper()
	i, err := db.Lookup(meta.RootIno, name, meta.Lease{})
	if err != nil {
		t.Fatal(err)
	}
	return i.Ino
}

// The first read that meets damage ends the use of the state: all reads fail from then on, the owner of the database is
// called once, and the state is not opened again.
func TestFirstDamagedReadEndsTheUseOfTheState(t *testing.T) {
	dir, _ := filled(t)
	rnd := rand.New(rand.NewPCG(1, 3))
	called := 0
	opts := small().Still()
	var db *meta.DB
	opts.Damaged = func(state uint64, why error) {
		called++
		if !db.Distrust(state, why) {
			t.Error("distrusted before")
		}
	}
	var err error
	db, err = meta.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	fill := ino(t, db, "fill1")
	tables, err := filepath.Glob(filepath.Join(db.Dir(), "*.sst"))
	if err != nil || len(tables) < 3 {
		t.Fatal(tables, err)
	}
	for _, name := range tables {
		for range 150 {
			harm(t, name, rnd)
		}
	}
	var met error
	for i := range 300 {
		_, err := db.Lookup(fill, fmt.Sprint("f", i), meta.Lease{})
		if err != nil && !errors.Is(err, meta.ErrDamaged) {
			t.Fatalf("f%d: %v", i, err)
		}
		if met != nil && err == nil {
			t.Fatalf("f%d was read after %v", i, met)
		}
		met = err
	}
	if met == nil || called != 1 || db.Distrusted() == nil {
		t.Fatalf("%v; called %d times", met, called)
	}
	if err := db.Close(); err != nil && !errors.Is(err, meta.ErrDamaged) {
		t.Fatal(err)
	}
	if _, err := meta.Open(dir, small()); !errors.Is(err, meta.ErrDamaged) {
		t.Fatal(err)
	}
}
