package meta_test

import (
	"fmt"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// compactors is how many of badger's compactors run in this process.
func compactors(t *testing.T) (n int) {
	t.Helper()
	var text strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&text, 2); err != nil {
		t.Fatal(err)
	}
	return strings.Count(text.String(), ").runCompactor(")
}

func awaitCompactors(t *testing.T, running bool, why string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); (compactors(t) > 0) != running; <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d compactors run, %s", compactors(t), why)
		}
	}
}

// Compactors end in a database that nobody writes to, and run again when somebody does: level zero does not grow.
func TestCompactorsRest(t *testing.T) {
	opts := meta.Options{ReserveBytes: -1}.WithMemTable(1 << 20).RestAfter(20 * time.Millisecond)
	db, err := meta.Open(t.TempDir(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	twin := meta.OpenMemory()
	rec := newRecorder(twin)
	c := metatest.Over(t, rec, 3)
	awaitCompactors(t, false, "and nobody writes")
	for round := range 3 {
		for i := range 1900 { // some seven memtables
			ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: fmt.Sprint("f", round, "-", i), Kind: meta.KindFile}).Ino
			c.Inline(1, ino, make([]byte, 3000))
		}
		rec.replay(t, db, twin.Index())
		awaitCompactors(t, false, "and nobody writes any more")
		if n := db.Level0(); n > 5 { // less than 4, and what was flushed since
			t.Fatalf("round %d: %d tables of level zero are left", round, n)
		}
	}
	sameState(t, twin, db)
}
