package replicate

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
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

// What this node has given up as lost is reported as held again when it was read whole, not as soon as its files have
// their lengths.
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
	case asked := <-s.member.mender.unchecked:
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

// A node that joined later reports a content to the log as lost when all its holders have lost it or left. The rest of
// that node's backlog is settled without the content, which stays owed and listed as lost.
func TestBacklogDoesNotWaitForWhatNoNodeHas(t *testing.T) {
	db := meta.OpenMemory()
	c := metatest.Over(t, db, 2)
	b := randomBytes(1, 1<<20)
	before, gone, after := c.Session(1), c.Session(1), c.Session(1)
	for _, id := range []meta.ContentID{before, gone, after} {
		publishFor(c, id, b, 1, 2)
	}
	for _, n := range []meta.NodeID{1, 2} {
		c.Do(n, &meta.Unheld{Node: n, Contents: []meta.ContentID{gone}, Reason: meta.OwedLost})
	}
	joined := c.Join("n3")
	c.Boot(joined)
	store, err := content.Open(t.TempDir(), content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s, ops := steppedNode(t, c, joined, store, &handClock{now: time.Unix(1, 0)})
	bringWhole(t, store, "", before, b)
	bringWhole(t, store, "", after, b)
	s.Reconcile()
	lost := s.member.lost.next()
	if !slices.Equal(lost, []meta.ContentID{gone}) {
		t.Fatalf("told as lost: %v, want %v", lost, gone)
	}
	c.Do(joined, &meta.Unheld{Node: joined, Contents: lost, Reason: meta.OwedLost})
	s.member.lost.done(lost)
	*ops = nil
	s.Reconcile()
	for _, op := range *ops {
		c.Do(joined, op)
	}
	n, err := c.DB.Node(joined)
	if err != nil || len(n.Backlog) != 0 {
		t.Errorf("the backlog is still %v: %v", n.Backlog, err)
	}
	owed, err := c.DB.OwedTo(joined, 0, 10)
	if err != nil || len(owed) != 1 || owed[0].Content != gone || owed[0].Reason != meta.OwedLost {
		t.Errorf("owed: %v %v", owed, err)
	}
	if list, err := (meta.Losses{DB: db}).Nowhere(10); err != nil || len(list) != 1 || list[0].ID != gone {
		t.Errorf("on no node: %v %v", list, err)
	}
	if again := s.member.lost.next(); len(again) != 0 {
		t.Errorf("told again: %v", again)
	}
}
