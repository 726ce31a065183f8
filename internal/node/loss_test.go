package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// What goes with a node is named, as far as the list goes, and what is not known is said.
func TestLossText(t *testing.T) {
	db := meta.OpenMemory()
	defer db.Close()
	n := &node{db: db}
	l := loss{unread: errors.New("it does not run")}
	l.Contents, l.Bytes = 30, 300
	l.List = []meta.Content{{ID: meta.ContentID{Node: 1, Incarnation: 1, Seq: 7}, Ino: 99, Size: 10,
		State: meta.ContentConflict}}
	l.strays = strays{Count: 2, First: []admin.Unpublished{{ID: "staged-1", Path: "/x\ny", SizeBytes: 5,
		Reason: "killed"}}}
	text := n.lossText("node2", l)
	for _, want := range []string{"30 file versions (300 bytes) on node2", l.List[0].ID.String(), "conflict version",
		"and 29 more",
		"2 unpublished files", `/x\ny`, "staged-1", "and 1 more",
		"could not be asked for unpublished files (it does not run)"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	if (loss{}).nothing() != true || l.nothing() || n.lossText("node2", loss{}) != "" {
		t.Error("nothing is something")
	}
}
