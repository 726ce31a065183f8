package node

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// A watch of a path is told of versions that lie there, and of no others.
func TestWatchTellsVersionsOfItsPath(t *testing.T) {
	db := meta.OpenMemory()
	defer db.Close()
	c := metatest.Over(t, db, 1)
	dir := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "a", Kind: meta.KindDir}).Ino
	ino := c.Do(1, &meta.Create{Parent: dir, Name: "f", Kind: meta.KindFile}).Ino
	p := &meta.Publish{Ino: ino, Session: c.Session(1), Size: 5, Root: [32]byte{1}, Votes: meta.Votes{View: db.View()}}
	p.Votes.Add(1)
	c.Do(1, p)
	n := &node{db: db}
	ev := meta.Event{Kind: meta.EventPublished, Ino: ino, Content: p.Session}
	for path, want := range map[string]bool{"": true, "a": true, "a/f": true, "b": false, "a/g": false} {
		out, ok := n.describe(ev, admin.WatchRequest{Path: path})
		if ok != want || ok && (out.Kind != "version" || out.Version.Path != "/a/f") {
			t.Errorf("watch of %q: %v %+v, want %v", path, ok, out, want)
		}
	}
}
