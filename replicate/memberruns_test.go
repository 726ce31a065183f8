package replicate

import (
	"errors"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
)

// A session is made once. When the member closes, those that run end, and none begins.
func TestMemberRuns(t *testing.T) {
	m := &Member{runs: newMemberRuns()}
	id := meta.ContentID{Node: 2, Incarnation: 1, Seq: 1}
	h, err := m.enter(id, 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := m.enter(id, 2, 0); err != nil || again != h || m.runs.find(id) != h {
		t.Errorf("asked for again: %v", err)
	}
	h.pushed.Store(7)
	bytes := map[meta.NodeID]int64{2: 1}
	if m.runs.pushed(bytes); bytes[2] != 8 {
		t.Errorf("%d bytes", bytes[2])
	}
	m.runs.stop()
	m.runs.stop()
	m.runs.wg.Wait()
	if m.runs.find(id) != nil {
		t.Error("the session is left")
	}
	if _, err := m.enter(id, 2, 0); !errors.Is(err, ErrClosed) {
		t.Errorf("after the close: %v", err)
	}
}

// Failed commits come back in order, each once.
func TestFailedCommits(t *testing.T) {
	var f failedCommits
	one, two := meta.ContentID{Node: 1, Seq: 1}, meta.ContentID{Node: 1, Seq: 2}
	for _, id := range []meta.ContentID{two, one, two} {
		f.add(id)
	}
	if got := f.take(); len(got) != 2 || got[0] != one || got[1] != two || len(f.take()) != 0 {
		t.Errorf("%v", got)
	}
}
