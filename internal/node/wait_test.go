package node

import (
	"errors"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// A wait for all nodes ends although a content lies on no node any more; what still lies somewhere is waited for.
func TestWaitDoesNotWaitForWhatNoNodeHas(t *testing.T) {
	db := meta.OpenMemory()
	c := metatest.Over(t, db, 2)
	publish := func() meta.ContentID {
		id := c.Session(1)
		ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: id.String(), Kind: meta.KindFile}).Ino
		p := &meta.Publish{Ino: ino, Session: id, Size: 1 << 20, Root: [32]byte{1}, Votes: meta.Votes{View: db.View()}}
		p.Votes.Add(1)
		p.Votes.Add(2)
		c.Do(1, p)
		return id
	}
	lose := func(id meta.ContentID, nodes ...meta.NodeID) {
		for _, n := range nodes {
			c.Do(n, &meta.Unheld{Node: n, Contents: []meta.ContentID{id}, Reason: meta.OwedLost})
		}
	}
	want := func(only bool) {
		t.Helper()
		count, _, err := db.OwedCount(2)
		nowhere, nerr := meta.Losses{DB: db}.Nowhere(nowhereMost)
		got, gerr := owedLostOnly(db, admin.Node{ID: 2, OwedCount: count}, nowhere)
		if err = errors.Join(err, nerr, gerr); err != nil || got != only {
			t.Errorf("owed nothing but what is lost: %v, want %v: %v", got, only, err)
		}
	}
	lose(publish(), 1, 2)
	want(true)
	lose(publish(), 2)
	want(false)
}

// G10: a node that is cut off does not say that nothing is owed any more: it can't know.
func TestWaitOfANodeThatIsCutOff(t *testing.T) {
	ws := &waits{ctx: t.Context(), raft: &lateRaft{}}
	res, err := ws.wait(t.Context(), admin.WaitRequest{Timeout: 50 * time.Millisecond}) // no log answers here
	if res.Done || admin.CodeOf(err) != admin.CodeUnavailable {
		t.Errorf("%+v, %v", res, err)
	}
}
