package replicate

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// What is owed to a node is reported as held when the store has it whole, and only then.
func TestReportsOnlyWhatIsHereWhole(t *testing.T) {
	for name, tc := range map[string]struct {
		bring func(t *testing.T, store *content.Store, dir string, id meta.ContentID, b []byte)
		held  bool
	}{
		"absent": {bring: func(*testing.T, *content.Store, string, meta.ContentID, []byte) {}},
		"whole":  {bring: bringWhole, held: true},
		"a part": {bring: func(t *testing.T, store *content.Store, _ string, id meta.ContentID, b []byte) {
			recv, err := store.Begin(storeID(id), content.Shape{Size: int64(len(b))})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = recv.Close() })
		}},
		"damaged": {bring: func(t *testing.T, store *content.Store, dir string, id meta.ContentID, b []byte) {
			bringWhole(t, store, dir, id, b)
			damage(t, dir, id)
			if found, err := store.Check(t.Context(), storeID(id)); err != nil || found == nil {
				t.Fatalf("the damage is not found: %v", err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := metatest.New(t, 3)
			dir := filepath.Join(t.TempDir(), "store")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			store, err := content.Open(dir, content.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			s, _ := steppedNode(t, c, 3, store, &handClock{now: time.Unix(1, 0)})
			id, b := c.Session(1), randomBytes(1, 2<<20)
			publishFor(c, id, b, 1, 2)
			tc.bring(t, store, dir, id, b)
			s.Reconcile()
			if held := s.Held(); (len(held) == 1 && held[0] == id) != tc.held {
				t.Errorf("reported as held: %v, want it reported: %v", held, tc.held)
			}
		})
	}
}

func bringWhole(t *testing.T, store *content.Store, _ string, id meta.ContentID, b []byte) {
	t.Helper()
	if _, err := store.Put(t.Context(), storeID(id), content.Shape{Size: int64(len(b))}, bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	if err := store.Commit(storeID(id)); err != nil {
		t.Fatal(err)
	}
}

// What this node has given up as lost is reported as held again when it was read whole, not as soon as its files have their lengths.
func TestLostContentIsReadBeforeItIsReported(t *testing.T) {
	c := metatest.New(t, 3)
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	store, err := content.Open(dir, content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	id, b := c.Session(1), randomBytes(1, 2<<20)
	bringWhole(t, store, dir, id, b)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if store, err = content.Open(dir, content.Options{}); err != nil { // nothing of it was read since
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	publishFor(c, id, b, 1, 2, 3)
	c.Do(3, &meta.Unheld{Node: 3, Contents: []meta.ContentID{id}, Reason: meta.OwedLost})
	s, _ := steppedNode(t, c, 3, store, &handClock{now: time.Unix(1, 0)})
	s.Reconcile()
	if held := s.Held(); len(held) != 0 {
		t.Fatalf("reported as held unread: %v", held)
	}
	select {
	case asked := <-s.member.unchecked:
		if found, err := store.Check(t.Context(), storeID(asked)); err != nil || found != nil {
			t.Fatalf("check: %v %v", found, err)
		}
	default:
		t.Fatal("nobody is asked to read it")
	}
	s.Reconcile()
	if held := s.Held(); len(held) != 1 || held[0] != id {
		t.Errorf("reported as held: %v, want %v", held, id)
	}
}
