package node

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/internal/content"
)

// BenchmarkUnpublished measures what each status costs with 1,000 files that were not published, and a large overlay in
// addition to them.
func BenchmarkUnpublished(b *testing.B) {
	s, files := openStaging(b, b.TempDir())
	for i := range 1000 {
		st, err := files.Create(fs.StageInfo{Ino: 7, Parent: 1, Path: fmt.Sprint("/f", i)})
		if err == nil {
			_, err = st.WriteAt([]byte("bytes"), 0)
		}
		if err := errors.Join(err, st.Keep("why")); err != nil {
			b.Fatal(err)
		}
	}
	list := func(b *testing.B) {
		for b.Loop() {
			if n := len(s.unused()); n < 1000 {
				b.Fatalf("%d are listed", n)
			}
		}
	}
	b.Run("files", list)
	o := writtenOverlay(b, s.store)
	b.Run("files and an open overlay", list)
	if err := o.KeepUnpublished("why"); err != nil {
		b.Fatal(err)
	}
	b.Run("files and an overlay", list)
}

// writtenOverlay is an overlay of 1 GiB in which each other page was written.
func writtenOverlay(tb testing.TB, store *content.Store) *content.Overlay {
	tb.Helper()
	const size = 1 << 30
	id := content.ID{15: 1}
	if _, err := store.Put(tb.Context(), id, content.Shape{Size: size,
		Holes: blockset.Ranges{{Count: size / content.BlockBytes}}}, nil); err != nil {
		tb.Fatal(err)
	}
	if err := store.Commit(id); err != nil {
		tb.Fatal(err)
	}
	o, err := store.NewOverlay(id, content.Origin{Ino: 3})
	if err != nil {
		tb.Fatal(err)
	}
	for off := int64(0); off < size; off += 2 * content.PageBytes {
		if _, err := o.WriteAt([]byte("x"), off); err != nil {
			tb.Fatal(err)
		}
	}
	return o
}

// What a status costs does not depend on how much was written to files that are open.
func TestStatusDoesNotReadOpenFiles(t *testing.T) {
	t.Parallel() // it waits more than it works
	s, _ := openStaging(t, t.TempDir())
	o := writtenOverlay(t, s.store)
	defer func() {
		if err := o.Drop(); err != nil {
			t.Error(err)
		}
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	list := s.unused()
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; len(list) != 0 || got > 1<<20 {
		t.Errorf("%d listed, %d bytes allocated", len(list), got)
	}
}
