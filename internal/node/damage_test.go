package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// G10: what no node has any more is damaged at the nodes that had it. The disk of a node that never got it is well.
func TestDamageIsWhereTheBytesWere(t *testing.T) {
	c := metatest.New(t, 3)
	store, err := content.Open(t.TempDir(), content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	publish := func(name string) meta.ContentID {
		ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindFile}).Ino
		p := &meta.Publish{Ino: ino, Session: c.Session(1), Size: 1 << 20, Root: [32]byte{1},
			Votes: meta.Votes{View: c.DB.View()}, Missing: []meta.Missed{{Node: 3, Reason: meta.OwedUnreachable}}}
		p.Votes.Add(1)
		p.Votes.Add(2)
		c.Do(1, p)
		return p.Session
	}
	publish("well")
	lost := publish("lost")
	publish("well too")
	for _, had := range []meta.NodeID{1, 2} {
		c.Do(had, &meta.Unheld{Node: had, Contents: []meta.ContentID{lost}, Reason: meta.OwedLost})
	}
	for id, want := range map[meta.NodeID][]content.ID{1: {lost.Bytes()}, 2: {lost.Bytes()}, 3: nil} {
		k := &damage{self: id, db: c.DB.(*meta.DB), store: store}
		if got := k.contents(); !slices.Equal(got, want) {
			t.Errorf("damaged at node %d: %v, want %v", id, got, want)
		}
	}
}

// G10: all damage is counted and some of it is named, and the report says what no node holds any more.
func TestDamageReport(t *testing.T) {
	pathOf := func(id content.ID) string { return fmt.Sprintf("/f%02d", id[0]) }
	if d, ok := damageReport(nil, pathOf, nil); ok {
		t.Errorf("of nothing: %+v", d)
	}
	var ids []content.ID
	for i := range 20 {
		ids = append(ids, content.ID{byte(20 - i)})
	}
	for lost, says := range map[int]string{0: "as soon as a holder that is up has them right", 5: "holds 5 of them",
		20: "holds them any more"} {
		d, ok := damageReport(ids, pathOf, func(id content.ID) bool { return int(id[0]) <= lost })
		if !ok || d.Count != 20 || d.Lost != lost || len(d.Names) != damageNames || d.Names[0] != "/f01" {
			t.Errorf("%+v", d)
		}
		d.Name = "node2"
		text := damageWarning(d)
		for _, part := range []string{"damaged on node2", "20 contents", "/f08, ...", says} {
			if !strings.Contains(text, part) {
				t.Errorf("%q lacks %q", text, part)
			}
		}
	}
}

// A content that went with a replaced disk failed no check.
func TestDamageWarningOfWhatIsGone(t *testing.T) {
	text := damageWarning(admin.Damage{Name: "node2", Count: 1, Lost: 1, Names: []string{"/f"}})
	if !strings.HasPrefix(text, "damaged on node2: 1 content failed its checks or is gone: /f; no node holds") {
		t.Error(text)
	}
}

// G10: a node that is up and misses one question is as damaged as it was. One that is down, or well again, is not.
func TestDamageOfANodeThatMissesAQuestion(t *testing.T) {
	var k damage
	nodes := map[meta.NodeID]meta.Node{1: {State: meta.NodeUp}, 2: {State: meta.NodeUp, Name: "node2"}}
	answer, silent := admin.Damage{Count: 3}, error(nil)
	ask := func(want int) {
		t.Helper()
		k.ask(1, nodes, func(meta.NodeID) (admin.Damage, error) { return answer, silent })
		got := 0
		for _, d := range *k.others.Load() {
			if got += d.Count; d.Node != 2 || d.Name != "node2" {
				t.Errorf("%+v", d)
			}
		}
		if got != want {
			t.Errorf("%d contents are damaged, want %d", got, want)
		}
	}
	ask(3)
	answer, silent = admin.Damage{}, errors.New("no answer")
	ask(3)
	ask(3)
	silent = nil
	ask(0)
	answer = admin.Damage{Count: 2}
	ask(2)
	nodes[2], silent = meta.Node{State: meta.NodeDown}, errors.New("no answer")
	ask(0)
}
