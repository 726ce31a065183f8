package node

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// Files that went with evicted nodes are found as soon as the log has evicted the last one, though nobody is owed
// them, and are forgotten when they are removed.
func TestWhatWentWithAnEvictedNodeIsFound(t *testing.T) {
	c := metatest.New(t, 2)
	only := c.JoinWith("a", map[string]string{"kind": "a"})
	c.Boot(only)
	c.Do(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceLabels,
		Labels: map[string]string{"kind": "a"}, MinCopies: 1}})
	for _, name := range []string{"f", "g"} {
		ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindFile, Mode: 0o644}).Ino
		p := &meta.Publish{Ino: ino, Session: c.Session(1), Size: 9000, Votes: meta.Votes{View: c.DB.View()}}
		p.Votes.Add(only)
		c.Do(1, p)
	}
	db, looks := c.DB.(*meta.DB), &lostLooks{}
	expect := func(when string, want int) {
		t.Helper()
		if list, err := looks.of(db); err != nil || len(list) != want {
			t.Errorf("%s: no node has %v, want %d (%v)", when, list, want, err)
		}
	}
	expect("with their node", 0)
	c.Do(1, &meta.Evict{Node: only})
	expect("without their node", 2)
	expect("a second time", 2)
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	expect("when one is removed", 1)
}
