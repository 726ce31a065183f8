package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

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
	for lost, says := range map[int]string{0: "are mended from other holders", 5: "holds 5 of them",
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
