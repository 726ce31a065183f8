package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// The text names what is lost with a node, as far as the list goes, and says what is not known.
func TestLossText(t *testing.T) {
	db := meta.OpenMemory()
	defer db.Close()
	ls := &losses{db: db, paths: &paths{names: db}}
	l := loss{unread: errors.New("it does not run")}
	l.Contents, l.Bytes = 30, 300
	l.List = []meta.Content{{ID: meta.ContentID{Node: 1, Incarnation: 1, Seq: 7}, Ino: 99, Size: 10,
		State: meta.ContentConflict}}
	l.strays = strays{Count: 2, First: []admin.Unpublished{{ID: "staged-1", Path: "/x\ny", SizeBytes: 5,
		Reason: "killed"}}}
	text := ls.text("node2", l)
	for _, want := range []string{"30 file versions (300 bytes) on node2", l.List[0].ID.String(), "conflict version",
		"and 29 more",
		"2 unpublished files", `/x\ny`, "staged-1", "and 1 more",
		"could not be asked for unpublished files (it does not run)"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	if (loss{}).nothing() != true || l.nothing() || ls.text("node2", loss{}) != "" {
		t.Error("nothing is something")
	}
}

// A call to a node that stands still ends when the log says that the node is down, and does not begin after that.
func TestCallsEndWhenTheNodeIsDown(t *testing.T) {
	m := &members{}
	set := func(state meta.NodeState) {
		m.current.Store(&book{nodes: map[meta.NodeID]meta.Node{2: {ID: 2, State: state}}})
	}
	called := 0
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), strayTimeout)
		defer cancel()
		_, err := whileUp(ctx, m, 2, func(ctx context.Context) ([]byte, error) {
			called++
			set(meta.NodeDown)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		return err
	}
	set(meta.NodeUp)
	for range 2 {
		if err := ask(); !errors.Is(err, errNotUp) || called != 1 {
			t.Fatalf("%v, %d calls", err, called)
		}
	}
}
