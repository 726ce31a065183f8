package meta_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/rdmcfs/rdmcfs/internal/durable"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		// Badger leaves these two behind when it refuses to open a damaged store. A store that is not closed leaves
		// others, too.
		goleak.IgnoreTopFunction("github.com/dgraph-io/badger/v4.(*DB).monitorCache"),
		goleak.IgnoreTopFunction("github.com/dgraph-io/ristretto/v2/z.(*AllocatorPool).freeupAllocators"))
}

func openSmall(tb testing.TB, dir string) *meta.DB {
	tb.Helper()
	db, err := meta.Open(dir, meta.Options{ReserveBytes: -1}.WithMemTable(1<<20))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { db.Close() })
	return db
}

// What is deleted stays deleted, and what is there stays there, through flushes, compactions, value log collection and
// reopening, while versions below the synced one are let go.
func TestDeletesStayDeleted(t *testing.T) {
	dir := t.TempDir()
	db, twin := openSmall(t, dir), meta.OpenMemory()
	rec := newRecorder(twin)
	c := metatest.Over(t, rec, 3)
	rnd := rand.New(rand.NewPCG(5, 6))
	tables := 0
	for round := range 8 {
		churn(c, rnd, 300)
		fill := mkdir(c, meta.RootIno, fmt.Sprint("fill", round))
		c.Do(1, &meta.SetPolicy{Dir: fill, Policy: &meta.Policy{}})
		for i := range 400 { // files made and removed again
			name := fmt.Sprint("f", i)
			ino := c.Do(1, &meta.Create{Parent: fill, Name: name, Kind: meta.KindFile}).Ino
			c.Inline(1, ino, make([]byte, 3000))
			if i%2 == 0 {
				c.Do(2, &meta.Unlink{Parent: fill, Name: name})
			}
		}
		rec.replay(t, db, twin.Index())
		if _, err := db.Sync(); err != nil {
			t.Fatal(err)
		}
		if err := db.Compact(); err != nil {
			t.Fatal(err)
		}
		tables = max(tables, db.Tables())
		sameState(t, twin, db)
		if round%2 == 1 {
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			db = openSmall(t, dir)
			sameState(t, twin, db)
		}
	}
	if tables < 2 {
		t.Fatalf("only %d tables: nothing was compacted", tables)
	}
}

// sameState holds every pair of one database against the other's, by snapshot.
func sameState(t *testing.T, want, got *meta.DB) {
	t.Helper()
	var sums [2]string
	for i, db := range []*meta.DB{want, got} {
		s, _, err := db.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(s)
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		sums[i] = string(raw)
	}
	if sums[0] != sums[1] {
		t.Fatalf("states differ: %d and %d bytes", len(sums[0]), len(sums[1]))
	}
}

// A crash loses whole memtable logs but not what was synced: later logs that survive don't make a hole.
func TestCrashAcrossMemtables(t *testing.T) {
	dir := t.TempDir()
	db := openSmall(t, dir)
	rec := newRecorder(db)
	c := metatest.Over(t, rec, 3)
	rnd := rand.New(rand.NewPCG(7, 8))
	var ends map[string]int
	for range 4 {
		for range 4 {
			churn(c, rnd, 400)
		}
		copied := copyDir(t, dir)
		if damageLogs(t, copied, 100_000+rnd.IntN(500_000), ends) == 0 {
			t.Fatal("nothing was lost")
		}
		synced := db.Synced()
		crashed, err := meta.Open(copied, meta.Options{ReserveBytes: -1}.WithMemTable(1<<20))
		if err != nil {
			t.Fatal(err)
		}
		if crashed.Index() != synced {
			t.Fatalf("begins at %d, synced %d", crashed.Index(), synced)
		}
		rec.replay(t, crashed, db.Index())
		sameState(t, db, crashed)
		if err := crashed.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Sync(); err != nil {
			t.Fatal(err)
		}
		ends = logEnds(t, dir)
	}
}

// A crash right after badger has created a log leaves an empty file.
func TestOpenWithEmptyLogs(t *testing.T) {
	dir := t.TempDir()
	db := openSmall(t, dir)
	c := metatest.Over(t, db, 1)
	file(c, meta.RootIno, "f")
	if _, err := db.Sync(); err != nil {
		t.Fatal(err)
	}
	copied := copyDir(t, dir)
	for _, name := range []string{"00077.mem", "000077.vlog"} {
		states, err := filepath.Glob(filepath.Join(copied, "state-*"))
		if err != nil || len(states) != 1 {
			t.Fatal(states, err)
		}
		if err := os.WriteFile(filepath.Join(states[0], name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sameState(t, db, openSmall(t, copied))
}

// Readers see whole versions while entries are applied, synced, compacted and the state is replaced by a snapshot: each
// rename moves a file between two directories, and a reader finds it in exactly one.
func TestReadersSeeOneVersion(t *testing.T) {
	for name, db := range map[string]*meta.DB{"memory": meta.OpenMemory(), "disk": openSmall(t, t.TempDir())} {
		t.Run(name, func(t *testing.T) {
			c := metatest.Over(t, db, 1)
			a, b := mkdir(c, meta.RootIno, "a"), mkdir(c, meta.RootIno, "b")
			f := file(c, a, "f")
			var stop atomic.Bool
			var wg sync.WaitGroup
			reads := make([]int, 3)
			for r := range reads {
				wg.Go(func() {
					last := uint64(0)
					for !stop.Load() {
						n, err := meta.Names(db, f, 10)
						if err != nil || len(n) != 1 {
							t.Errorf("names %v %v", n, err)
							return
						}
						if i := db.Index(); i < last {
							t.Errorf("index went back from %d to %d", last, i)
							return
						} else {
							last = i
						}
						readSnapshot(t, db, r == 0 && reads[r]%50 == 0)
						reads[r]++
					}
				})
			}
			dirs := [2]meta.Ino{a, b}
			for i := range 2000 {
				c.Do(1, &meta.Rename{OldParent: dirs[i%2], OldName: "f", NewParent: dirs[1-i%2], NewName: "f"})
				if i%100 == 0 {
					if _, err := db.Sync(); err != nil {
						t.Fatal(err)
					}
				}
				if i%1000 == 500 {
					restoreOnto(t, db)
				}
			}
			stop.Store(true)
			wg.Wait()
		})
	}
}

func readSnapshot(t *testing.T, db *meta.DB, now bool) {
	if !now {
		return
	}
	s, _, err := db.Snapshot()
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	fresh := meta.OpenMemory()
	if raw, err := io.ReadAll(s); err == nil && len(raw) == 0 {
		t.Error("empty snapshot", fresh)
	} else if err != nil && err != meta.ErrClosed {
		t.Error(err)
	}
}

// restoreOnto replaces a state by its own snapshot.
func restoreOnto(t *testing.T, db *meta.DB) {
	t.Helper()
	s, _, err := db.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	raw, err := io.ReadAll(s)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	go func() { // ends with the pipe
		_, err := w.Write(raw)
		w.CloseWithError(err)
	}()
	if err := db.Restore(r); err != nil {
		t.Fatal(err)
	}
	r.Close()
}

// An entry larger than one of badger's transactions is applied whole.
func TestLargeEntry(t *testing.T) {
	db, twin := openSmall(t, t.TempDir()), meta.OpenMemory()
	rec := newRecorder(twin)
	c := metatest.Over(t, rec, 1)
	l := c.Lease(1)
	index := twin.Index()
	const n = 4000
	for seq := uint64(1); seq <= n; seq++ { // nothing acknowledged: all results are kept
		e := meta.Entry{Node: 1, Incarnation: l.Incarnation, Seq: seq, Generation: meta.FirstGeneration}
		e.Op = &meta.Create{Parent: meta.RootIno, Name: fmt.Sprint("f", seq), Kind: meta.KindFile}
		index++
		if res, _, err := rec.Apply(index, 0, meta.EncodeEntry(e)); err != nil || res.Errno != 0 {
			t.Fatal(res.Errno, err)
		}
	}
	boot := meta.Entry{Node: 1, Generation: meta.FirstGeneration, Op: &meta.Boot{Node: 1, Store: [16]byte{15: 1}}}
	if res, _, err := rec.Apply(index+1, 0, meta.EncodeEntry(boot)); err != nil || res.Errno != 0 {
		t.Fatal(res.Errno, err)
	}
	rec.replay(t, db, twin.Index())
	sameState(t, twin, db)
}

// OwedCount by buckets equals what OwedTo lists.
func TestOwedCountByBuckets(t *testing.T) {
	c := metatest.New(t, 3)
	rnd := rand.New(rand.NewPCG(9, 10))
	var files []meta.Ino
	base := map[meta.Ino]meta.ContentID{}
	for i := range 9000 {
		switch {
		case i%3000 == 1500:
			c.Do(1, &meta.Down{Node: 3, Incarnation: c.Lease(3).Incarnation})
		case i%3000 == 2200:
			c.Boot(3)
			c.Do(3, &meta.Held{Node: 3, UpTo: uint64(rnd.IntN(i))})
		case i == 4000:
			c.Join("node4")
		case i%7 == 0:
			files = append(files, newFile(c, fmt.Sprint("f", i)))
		case i%11 == 0 && len(files) > 5:
			i, err := c.DB.Inode(files[0])
			if err != nil {
				t.Fatal(err)
			}
			c.Do(1, &meta.Unlink{Parent: i.Parent, Name: i.Name})
			files = files[1:]
		default:
			f := files[rnd.IntN(len(files))]
			p := push(c, 1, f, base[f], votes(c, 1, 2))
			c.Do(1, p)
			base[f] = p.Session
		}
		if i%997 == 0 || i == 8999 {
			for n := meta.NodeID(1); n <= 4; n++ {
				list, err := c.DB.OwedTo(n, 0, 1<<30)
				if err != nil {
					continue // not joined yet
				}
				count, size, err := c.DB.OwedCount(n)
				if err != nil || count != len(list) || size != int64(count)<<20 {
					t.Fatalf("at %d node %d: counted %d, %d bytes, %v; listed %d", i, n, count, size, err, len(list))
				}
			}
		}
	}
}

func TestOnlyOn(t *testing.T) {
	c := metatest.New(t, 2)
	db := c.DB.(*meta.DB)
	f := newFile(c, "f")
	p := push(c, 1, f, meta.ContentID{}, votes(c, 1, 2))
	c.Do(1, p)
	if d, err := db.OnlyOn(1, 0, 10); err != nil || d.Contents != 0 || d.Checked != db.Index() || d.View != db.View() {
		t.Fatal(d, err)
	}
	c.Do(2, &meta.Unheld{Node: 2, Contents: []meta.ContentID{p.Session}, Reason: meta.OwedLost})
	if d, err := db.OnlyOn(1, 0, 10); err != nil || d.Contents != 1 || d.Bytes != p.Size || len(d.List) != 1 ||
		d.List[0].ID != p.Session {
		t.Fatal(d, err)
	}
	if d, err := db.OnlyOn(2, 0, 10); err != nil || d.Contents != 0 {
		t.Fatal(d, err)
	}
}

// Believed lists what Holds is true for, page by page, without inline contents, whatever was lost or is owed.
func TestBelieved(t *testing.T) {
	c := metatest.New(t, 3)
	var want []meta.ContentID
	for i := range 40 {
		p := push(c, 1, newFile(c, fmt.Sprint("f", i)), meta.ContentID{}, votes(c, 1, 2))
		if i%3 == 0 {
			p.Votes = votes(c, 1, 2, 3)
			want = append(want, p.Session)
		}
		c.Do(1, p)
	}
	c.Do(3, &meta.Unheld{Node: 3, Contents: want[:1], Reason: meta.OwedLost})
	want = want[1:]
	for _, limit := range []int{1, 7, 100} {
		var got []meta.ContentID
		for after := (meta.ContentID{}); ; {
			list, next, err := c.DB.Believed(3, after, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, rec := range list {
				got = append(got, rec.ID)
			}
			if after = next; next.IsZero() {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d: %v, want %v", limit, got, want)
		}
	}
}

// What the marker says is durable was synced before: the logs of all memtables, inactive ones too, and the directory
// that names them.
func TestSyncedMeansSynced(t *testing.T) {
	dir := t.TempDir()
	db := openSmall(t, dir)
	c := metatest.Over(t, db, 1)
	file(c, meta.RootIno, "f")
	states, err := filepath.Glob(filepath.Join(dir, "state-*"))
	if err != nil || len(states) != 1 {
		t.Fatal(states, err)
	}
	older := filepath.Join(states[0], "90000.mem") // stands for the log of a memtable that is not flushed yet
	if err := os.WriteFile(older, []byte("older"), 0o600); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(states[0], "*.mem"))
	if err != nil || len(logs) < 2 {
		t.Fatal(logs, err)
	}
	stop := durable.Record()
	index, err := db.Sync()
	synced := stop()
	if err != nil || index != db.Index() {
		t.Fatalf("synced %d of %d, %v", index, db.Index(), err)
	}
	for _, name := range append(logs, states[0]) {
		if _, err := os.Stat(name); err == nil && !slices.Contains(synced, name) {
			t.Errorf("%s is not synced; synced are %v", name, synced)
		}
	}
	if err := os.Remove(older); err != nil {
		t.Fatal(err)
	}
}

// A snapshot whose records were changed is refused, though every frame of it is whole: the digest of the head does
// not fit.
func TestSnapshotOfAChangedStateIsRefused(t *testing.T) {
	db := meta.OpenMemory()
	defer db.Close() // what is forged is not looked at in the end
	c := metatest.Over(t, db, 1)
	f := file(c, meta.RootIno, "f")
	for _, changed := range []bool{false, true} {
		if changed {
			db.Forge(f)
		}
		s, _, err := db.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		err = meta.OpenMemory().Restore(s)
		s.Close()
		if changed != errors.Is(err, meta.ErrSnapshot) || !changed && err != nil {
			t.Fatalf("changed %v: restore says %v", changed, err)
		}
		if s, _, err = db.Snapshot(); err != nil {
			t.Fatal(err)
		}
		_, err = meta.CheckSnapshot(s)
		s.Close()
		if changed != errors.Is(err, meta.ErrSnapshot) || !changed && err != nil {
			t.Fatalf("changed %v: a check says %v", changed, err)
		}
	}
}
