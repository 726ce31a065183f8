package node

import (
	"context"
	"encoding/hex"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// drainingNode is what a node that drains says of drains, and a file that is written there.
func drainingNode(t *testing.T) (*drains, fs.Staged) {
	t.Helper()
	c := metatest.New(t, 3)
	c.Do(1, &meta.Drain{Node: 3})
	rec, err := c.DB.Node(3)
	if err != nil {
		t.Fatal(err)
	}
	id := identity{Node: 3, Store: hex.EncodeToString(rec.Store[:])}
	m, err := newMembers(c.DB, id, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	store, err := content.Open(t.TempDir(), content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	st, err := fs.NewStaging(store, func() meta.Lease { return meta.Lease{Node: 3} }).Create(
		fs.StageInfo{Ino: 7, Parent: 1, Path: "/f"})
	if err == nil {
		_, err = st.WriteAt([]byte("bytes"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	db := c.DB.(*meta.DB)
	names := &paths{names: db}
	return &drains{db: db, members: m, paths: names,
		strays: &strayFiles{self: id.Node, store: store, paths: names, members: m}}, st
}

// A file that was closed just now may still count as open: a drain looks again, as an eviction does.
func TestDrainWaitsForFilesToBeAtRest(t *testing.T) {
	ds, st := drainingNode(t)
	time.AfterFunc(dutyInterval/2, func() {
		if err := st.Drop(); err != nil { // as after its publish
			t.Error(err)
		}
	})
	state, err := ds.state(t.Context(), 3)
	if err != nil || state.UnpublishedCount != 0 {
		t.Errorf("after the close: %+v, %v", state, err)
	}
}

// A drain tells files that are open for writing from those that restore can publish or drop.
func TestDrainTellsOpenFilesFromOthers(t *testing.T) {
	ds, st := drainingNode(t)
	defer func() { _ = st.Drop() }()
	over, cancel := context.WithCancel(t.Context())
	cancel() // nobody waits until it is closed
	state, err := ds.state(over, 3)
	if err != nil || state.UnpublishedCount != 1 || state.OpenCount != 1 ||
		state.Unpublished[0].Reason != "it is open for writing" {
		t.Errorf("%+v, %v", state, err)
	}
}
