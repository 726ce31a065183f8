package node

import (
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// What was published and replaced before the log was asked for it is no error: else its bytes would be listed as
// unpublished.
func TestRestoredAndReplaced(t *testing.T) {
	out := replicate.Outcome{Result: meta.Result{Index: 9, Ino: 7, Version: 3}}
	for size, state := range map[int64]meta.ContentState{0: meta.ContentCurrent, 5: meta.ContentRetired} {
		c := unlisted(out, replicate.Push{Size: size, Attr: meta.AttrPatch{Mtime: 11}})
		if c.State != state || c.Ino != 7 || c.Version != 3 || c.Published != 9 || c.Size != size || c.Mtime != 11 {
			t.Errorf("%d bytes: %+v", size, c)
		}
	}
}

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

// G10: where says why a node lacks this file, and not why it lacks another one.
func TestHolderHasTheReasonOfItsFile(t *testing.T) {
	c := metatest.New(t, 3)
	self, err := c.DB.Node(1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMembers(c.DB, identity{Node: 1, Store: hex.EncodeToString(self.Store[:])}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{db: c.DB.(*meta.DB), members: m}
	contents := map[meta.OwedReason]meta.ContentID{}
	for i, why := range []meta.OwedReason{meta.OwedFull, meta.OwedUnreachable} {
		ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: string(rune('a' + i)), Kind: meta.KindFile}).Ino
		op := &meta.Publish{Ino: ino, Session: c.Session(1), Size: 1 << 20, Root: [32]byte{1},
			Votes: meta.Votes{View: c.DB.View()}, Missing: []meta.Missed{{Node: 3, Reason: why}}}
		op.Votes.Add(1)
		op.Votes.Add(2)
		c.Do(1, op)
		contents[why] = op.Session
	}
	for why, id := range contents {
		for node, want := range map[meta.NodeID]string{2: "", 3: why.String()} {
			h, err := n.holder(node, id)
			if err != nil || h.Holds != (want == "") || h.Reason != want {
				t.Errorf("%v: node %d: %+v, %v, want %q", id, node, h, err, want)
			}
		}
	}
}

// A watcher hears that a node was evicted, though status lists it no more.
func TestWatchTellsOfAnEviction(t *testing.T) {
	c := metatest.New(t, 2)
	n := &node{db: c.DB.(*meta.DB), id: identity{Node: 1}}
	c.Do(1, &meta.Evict{Node: 2, Reason: "sold"})
	c.Do(1, &meta.Down{Node: 1, Incarnation: c.Lease(1).Incarnation})
	ev, ok := n.describe(meta.Event{Kind: meta.EventNode, Node: 2}, admin.WatchRequest{})
	if !ok || ev.Kind != "node" || ev.Node.Name != "node2" || ev.Node.State != "evicted" || ev.Node.Reason != "sold" {
		t.Errorf("%+v, %v", ev, ok)
	}
}

// G10: a node that is cut off does not say that nothing is owed any more: it can't know.
func TestWaitOfANodeThatIsCutOff(t *testing.T) {
	n := &node{ctx: t.Context(), db: meta.OpenMemory(), log: slog.New(slog.DiscardHandler)}
	defer n.db.Close()
	var err error
	if n.members, err = newMembers(n.db, identity{Node: 1, Store: strings.Repeat("01", 16)}, time.Now); err != nil {
		t.Fatal(err)
	}
	res, err := n.wait(t.Context(), admin.WaitRequest{Timeout: 50 * time.Millisecond}) // no log answers here
	if res.Done || admin.CodeOf(err) != admin.CodeUnavailable {
		t.Errorf("%+v, %v", res, err)
	}
}
