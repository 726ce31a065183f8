package node

import (
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// A watch of a path gets the versions that lie there, and no others.
func TestWatchTellsVersionsOfItsPath(t *testing.T) {
	db := meta.OpenMemory()
	defer db.Close()
	c := metatest.Over(t, db, 1)
	dir := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "a", Kind: meta.KindDir}).Ino
	ino := c.Do(1, &meta.Create{Parent: dir, Name: "f", Kind: meta.KindFile}).Ino
	p := &meta.Publish{Ino: ino, Session: c.Session(1), Size: 5, Root: [32]byte{1}, Votes: meta.Votes{View: db.View()}}
	p.Votes.Add(1)
	c.Do(1, p)
	wr := &watchReport{db: db, raft: &lateRaft{}, versions: &versions{db: db, paths: &paths{names: db}}}
	ev := meta.Event{Kind: meta.EventPublished, Ino: ino, Content: p.Session}
	for path, want := range map[string]bool{"": true, "a": true, "a/f": true, "b": false, "a/g": false} {
		out, ok := wr.describe(ev, admin.WatchRequest{Path: path})
		if ok != want || ok && (out.Kind != "version" || out.Version.Path != "/a/f") {
			t.Errorf("watch of %q: %v %+v, want %v", path, ok, out, want)
		}
	}
}

// G10: a watcher that takes nothing learns once how much it has missed, and that the state was replaced.
func TestG10WatchTellsOfGaps(t *testing.T) {
	var w watchers
	slow, quick := w.join(), w.join()
	for range watchQueue + 3 {
		w.notify([]meta.Event{{Kind: meta.EventPublished}, {Kind: meta.EventOwed}})
		<-quick.events
	}
	if got := w.gap(quick); got != "" {
		t.Errorf("who was told of all: %q", got)
	}
	var said []string
	tell := func() {
		if err := w.notifyGap(slow, func(ev admin.Event) error {
			said = append(said, ev.Kind+": "+ev.Message)
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	tell()
	tell()
	if len(said) != 1 || !strings.HasPrefix(said[0], "message: 3 more versions and changes of nodes") {
		t.Errorf("who was too slow: %q", said)
	}
	w.skip()
	tell()
	if len(said) != 2 || !strings.Contains(said[1], "the state of another one") {
		t.Errorf("with another state: %q", said)
	}
}

// A watcher hears that a node was evicted, though status lists it no more.
func TestWatchTellsOfAnEviction(t *testing.T) {
	c := metatest.New(t, 2)
	w := &watchReport{db: c.DB.(*meta.DB), raft: &lateRaft{}}
	c.Do(1, &meta.Evict{Node: 2, Reason: "sold"})
	c.Do(1, &meta.Down{Node: 1, Incarnation: c.Lease(1).Incarnation})
	ev, ok := w.describe(meta.Event{Kind: meta.EventNode, Node: 2}, admin.WatchRequest{})
	if !ok || ev.Kind != "node" || ev.Node.Name != "node2" || ev.Node.State != "evicted" || ev.Node.Reason != "sold" {
		t.Errorf("%+v, %v", ev, ok)
	}
}
