package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// lostFiles is a cluster whose files lay on a third node only, which was evicted.
type lostFiles struct {
	*metatest.Cluster
	looks lostLooks
}

func loseFiles(t *testing.T, names ...string) *lostFiles {
	t.Helper()
	c := &lostFiles{Cluster: metatest.New(t, 2)}
	only := c.JoinWith("a", map[string]string{"kind": "a"})
	c.Boot(only)
	c.Do(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceLabels,
		Labels: map[string]string{"kind": "a"}, MinCopies: 1}})
	for _, name := range names {
		ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindFile, Mode: 0o644}).Ino
		p := &meta.Publish{Ino: ino, Session: c.Session(1), Size: 9000, Votes: meta.Votes{View: c.DB.View()}}
		p.Votes.Add(only)
		c.Do(1, p)
	}
	if n := c.found(t); n != 0 {
		t.Errorf("with their node: %d", n)
	}
	c.Do(1, &meta.Evict{Node: only})
	return c
}

// found is how many contents are found that no node has.
func (c *lostFiles) found(t *testing.T) int {
	t.Helper()
	list, err := c.looks.of(c.DB.(*meta.DB))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Files that went with evicted nodes are found as soon as the log has evicted the last one, though nobody is owed
// them, and are forgotten when they are removed.
func TestWhatWentWithAnEvictedNodeIsFound(t *testing.T) {
	c := loseFiles(t, "f", "g")
	for _, when := range []string{"without their node", "a second time"} {
		if n := c.found(t); n != 2 {
			t.Errorf("%s: %d, want 2", when, n)
		}
	}
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	if n := c.found(t); n != 1 {
		t.Errorf("when one is removed: %d, want 1", n)
	}
}

// Where more are lost than are listed, the next ones take the place of those that are removed.
func TestMoreFilesAreLostThanAreListed(t *testing.T) {
	names := make([]string, nowhereMost+1)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	c := loseFiles(t, names...)
	if n := c.found(t); n != nowhereMost {
		t.Errorf("%d, want %d", n, nowhereMost)
	}
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "5"})
	n := c.found(t)
	for end := time.Now().Add(time.Minute); n != nowhereMost && time.Now().Before(end); n = c.found(t) {
		<-time.After(10 * time.Millisecond) // looks at all contents take a share of the time only
	}
	if n != nowhereMost {
		t.Errorf("after one was removed %d, want %d", n, nowhereMost)
	}
}
