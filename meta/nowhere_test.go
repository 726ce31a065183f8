package meta_test

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// wantNowhere checks what no node has, evicted ones or not.
func wantNowhere(t *testing.T, c *metatest.Cluster, when string, want ...meta.ContentID) {
	t.Helper()
	list, err := meta.Losses{DB: c.DB.(*meta.DB)}.HeldByNobody(10)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[meta.ContentID]bool)
	for _, x := range list {
		got[x.ID] = true
	}
	for _, id := range want {
		if !got[id] {
			t.Errorf("%s: %v is not among what no node has", when, id)
		}
	}
	if len(list) != len(want) {
		t.Errorf("%s: no node has %v, want %v", when, list, want)
	}
}

// G4: what was lost with the nodes that were evicted is counted, whatever the reason for which others lack it: one was
// left out, and one was away.
func TestWhatWentWithEvictedNodesIsNowhere(t *testing.T) {
	c := metatest.New(t, 4)
	f := newFile(c, "f")
	p := push(c, 1, f, meta.ContentID{}, votes(c, 2, 3))
	p.Missing = []meta.Missed{{Node: 1, Reason: meta.OwedFull}, {Node: 4, Reason: meta.OwedFull}}
	c.Do(1, p)
	n, err := c.DB.Node(4)
	if err != nil {
		t.Fatal(err)
	}
	c.Do(1, &meta.Down{Node: 4, Incarnation: n.Incarnation})
	g := newFile(c, "g")
	away := push(c, 1, g, meta.ContentID{}, votes(c, 2, 3))
	away.Missing = []meta.Missed{{Node: 1, Reason: meta.OwedFull}}
	c.Do(1, away)
	wantNowhere(t, c, "with two holders")
	c.Do(1, &meta.Evict{Node: 2})
	wantNowhere(t, c, "with one holder")
	n, err = c.DB.Node(3)
	if err != nil {
		t.Fatal(err)
	}
	c.Do(1, &meta.Down{Node: 3, Incarnation: n.Incarnation})
	wantNowhere(t, c, "while the holder is down")
	c.Do(1, &meta.Evict{Node: 3})
	wantNowhere(t, c, "without a holder", p.Session, away.Session)
}

// A content that only a node lacks that was away has no row: its ranges say so.
func TestWhatWentWhileTheOthersWereAwayIsNowhere(t *testing.T) {
	c := metatest.New(t, 3)
	for id := meta.NodeID(2); id <= 3; id++ {
		n, err := c.DB.Node(id)
		if err != nil {
			t.Fatal(err)
		}
		c.Do(1, &meta.Down{Node: id, Incarnation: n.Incarnation})
	}
	p := push(c, 1, newFile(c, "f"), meta.ContentID{}, votes(c, 1))
	c.Do(1, p)
	c.Boot(2)
	c.Boot(3)
	wantNowhere(t, c, "with its holder")
	c.Do(2, &meta.Evict{Node: 1})
	wantNowhere(t, c, "without its holder", p.Session)
}

// Bytes that ride in the log are at the nodes that have applied the entry.
func TestNodeThatIsDownLacksWhatRodeInTheLogSince(t *testing.T) {
	c := metatest.New(t, 3)
	before := c.Inline(1, newFile(c, "before"), []byte("bytes")).Inode.Content
	n, err := c.DB.Node(3)
	if err != nil {
		t.Fatal(err)
	}
	c.Do(1, &meta.Down{Node: 3, Incarnation: n.Incarnation})
	since := c.Inline(1, newFile(c, "since"), []byte("bytes")).Inode.Content
	for _, x := range []struct {
		when string
		id   meta.ContentID
		want bool
	}{{"before", before, true}, {"since", since, false}} {
		if holds, err := c.DB.Holds(3, x.id); err != nil || holds != x.want {
			t.Errorf("%s it was down: %v %v, want %v", x.when, holds, err, x.want)
		}
	}
	c.Boot(3)
	if holds, err := c.DB.Holds(3, since); err != nil || !holds {
		t.Errorf("up again: %v %v", holds, err)
	}
}

// G4: files whose only node by their labels was evicted are owed to nobody, and are counted.
func TestWhatNoOtherNodeMayHaveIsNowhere(t *testing.T) {
	c := metatest.New(t, 2)
	only := c.JoinWith("a", map[string]string{"kind": "a"})
	c.Boot(only)
	c.Do(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceLabels,
		Labels: map[string]string{"kind": "a"}, MinCopies: 1}})
	p := push(c, 1, newFile(c, "f"), meta.ContentID{}, votes(c, only))
	c.Do(1, p)
	wantNowhere(t, c, "with its node")
	c.Do(1, &meta.Evict{Node: only})
	wantNowhere(t, c, "without its node", p.Session)
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	wantNowhere(t, c, "without its name")
}

// A node is said to have lost what it told the log, and nothing else that it is owed.
func TestNodeHasLostWhatItSaysThatItHasLost(t *testing.T) {
	c := metatest.New(t, 3)
	p := push(c, 1, newFile(c, "f"), meta.ContentID{}, votes(c, 1, 2))
	p.Missing = []meta.Missed{{Node: 3, Reason: meta.OwedFull}}
	c.Do(1, p)
	c.Do(2, &meta.Unheld{Node: 2, Contents: []meta.ContentID{p.Session}, Reason: meta.OwedLost})
	rec, err := c.DB.Content(p.Session)
	if err != nil {
		t.Fatal(err)
	}
	for node, want := range map[meta.NodeID]bool{1: false, 2: true, 3: false} {
		lost, err := meta.Losses{DB: c.DB.(*meta.DB)}.IsLost(node, rec)
		if err != nil || lost != want {
			t.Errorf("node %d has lost it: %v %v, want %v", node, lost, err, want)
		}
	}
}
