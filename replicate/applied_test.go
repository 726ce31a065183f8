package replicate

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// What the log says of a session, from before its publish until nobody wants its content.
func TestAppliedJudgesSessions(t *testing.T) {
	c := metatest.New(t, 2)
	a := applied{c.DB, func() meta.Lease { return c.Lease(2) }}
	ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile}).Ino
	id, given := c.Session(1), c.Session(1)
	want := func(what string, verdict session.Verdict, wanted bool) {
		t.Helper()
		if v, w := a.judge(id), a.wanted(id); v != verdict || w != wanted {
			t.Errorf("%s: %v, wanted %v; want %v, %v", what, v, w, verdict, wanted)
		}
	}
	want("before the publish", session.Undecided, true)
	p := &meta.Publish{Ino: ino, Session: id, Size: 1 << 20, Root: [32]byte{1}, Votes: meta.Votes{View: c.DB.View()}}
	p.Votes.Add(1)
	p.Votes.Add(2)
	c.Do(1, p)
	want("published", session.Published, true)
	if !a.known(id, p.Root) || a.known(id, [32]byte{2}) || a.nowhere(id) || !a.wasDecided(id) {
		t.Error("the published content is not known as what it is")
	}
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "f"})
	want("its file is gone", session.Aborted, false)
	c.Do(1, &meta.Abort{Session: given})
	if v := a.judge(given); v != session.Aborted {
		t.Errorf("a session that was given up: %v", v)
	}
}

// A node is let in when the log has its present incarnation.
func TestAppliedKnowsWhetherThisProcessIsIn(t *testing.T) {
	c := metatest.New(t, 1)
	lease := c.Lease(1)
	a := applied{c.DB, func() meta.Lease { return lease }}
	if _, in := a.letIn(); !in {
		t.Error("the present incarnation is not let in")
	}
	c.Boot(1)
	if _, in := a.letIn(); in || !a.drainedSince(0) {
		t.Error("an incarnation that has ended is let in")
	}
}
