package replicate

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// storingNode is a stepped node over a store on disk.
func storingNode(t *testing.T, c *metatest.Cluster, node meta.NodeID) (*stepped, *content.Store) {
	t.Helper()
	store, err := content.Open(t.TempDir(), content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, _ := steppedNode(t, c, node, store, &handClock{now: time.Unix(1, 0)})
	t.Cleanup(func() {
		s.member.close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, store
}

// vote makes a node take a small content of another node.
func vote(t *testing.T, s *stepped, id meta.ContentID, b []byte) {
	t.Helper()
	if st := s.Put(id.Node, &putItem{Content: id, Root: contentRoot(b), Bytes: b}); st.Status != session.StatusVoted {
		t.Fatalf("no vote for %v: status %d, %s", id, st.Status, st.Text)
	}
}

// publishFor publishes a version of a new file with the votes of some nodes.
func publishFor(c *metatest.Cluster, id meta.ContentID, b []byte, voters ...meta.NodeID) meta.Result {
	ino := c.Do(id.Node, &meta.Create{Parent: meta.RootIno, Name: id.String(), Kind: meta.KindFile}).Ino
	p := &meta.Publish{Ino: ino, Session: id, Size: int64(len(b)), Root: contentRoot(b),
		Votes: meta.Votes{View: c.DB.View()}}
	for _, n := range voters {
		p.Votes.Add(n)
	}
	return c.Do(id.Node, p)
}

// A fence that is carried out late ends the sessions of the incarnation that it is about, and no later one.
func TestFenceEndsNoLaterIncarnation(t *testing.T) {
	c := metatest.New(t, 3)
	s, store := storingNode(t, c, 2)
	id := c.Session(1)
	vote(t, s, id, []byte("of the first incarnation"))
	c.Boot(1)
	next := c.Session(1)
	vote(t, s, next, []byte("of the second incarnation"))
	s.member.verdicts.fenced(1, id.Incarnation)
	if _, ok := store.State(storeID(id)); ok {
		t.Error("the fenced session is still here")
	}
	if state, ok := store.State(storeID(next)); !ok || state != content.Undecided {
		t.Error("a fence dropped a vote of the next incarnation")
	}
}

// A session was published, and its writer fenced, before this node came to either.
func TestFenceDropsNothingThatWasPublished(t *testing.T) {
	c := metatest.New(t, 3)
	s, store := storingNode(t, c, 2)
	id, b := c.Session(1), []byte("published before the fence")
	vote(t, s, id, b)
	publishFor(c, id, b, 1, 2)
	c.Boot(1)
	s.member.verdicts.fenced(1, id.Incarnation)
	s.member.verdicts.decided(id, session.Published)
	if state, ok := store.State(storeID(id)); !ok || state != content.Committed {
		t.Errorf("a fence dropped what was published: %v %v", state, ok)
	}
}

// The bytes that were voted for here are not the bytes of the publish.
func TestCommitsNoBytesOfAnotherRoot(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		c := metatest.New(t, 2)
		s, store := storingNode(t, c, 2)
		id := c.Session(1)
		vote(t, s, id, []byte("what came"))
		publishFor(c, id, []byte("published"), 1, 2)
		if restarted {
			clear(s.member.votes.roots)
		}
		s.member.verdicts.decided(id, session.Published)
		if state, ok := store.State(storeID(id)); ok {
			t.Errorf("restarted %v: bytes of another root are %v", restarted, state)
		}
		if lost := s.Lost(); len(lost) != 1 || lost[0] != id {
			t.Errorf("restarted %v: told to the log as lost: %v", restarted, lost)
		}
	}
}

// A member stored a content after the publish had gone without its vote.
func TestContentThatCameLateIsReportedAtOnce(t *testing.T) {
	c := metatest.New(t, 3)
	s, store := storingNode(t, c, 3)
	id, b := c.Session(1), []byte("late")
	vote(t, s, id, b)
	publishFor(c, id, b, 1, 2)
	s.member.verdicts.decided(id, session.Published)
	if state, _ := store.State(storeID(id)); state != content.Committed {
		t.Fatalf("not committed: %v", state)
	}
	if held := s.Held(); len(held) != 1 || held[0] != id {
		t.Errorf("reported as held: %v, want %v", held, id)
	}
}

// A file is removed before this node comes to its publish: nothing is remembered of the vote.
func TestVoteForWhatIsGoneIsForgotten(t *testing.T) {
	c := metatest.New(t, 3)
	s, store := storingNode(t, c, 2)
	id, b := c.Session(1), []byte("soon gone")
	vote(t, s, id, b)
	publishFor(c, id, b, 1, 2)
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: id.String()})
	if _, err := c.DB.Content(id); !isNotFound(err) {
		t.Fatalf("the content is still in the log's state: %v", err)
	}
	s.member.verdicts.decided(id, session.Published)
	if state, ok := store.State(storeID(id)); !ok || state != content.Committed {
		t.Errorf("it is %v", state)
	}
	if n := len(s.member.votes.roots); n > 0 {
		t.Errorf("%d votes are remembered", n)
	}
}
