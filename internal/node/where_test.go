package node

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// where tells who has a file, and refuses what is none.
func TestWhere(t *testing.T) {
	ps, c, _, _ := treeOfPaths(t)
	m, db := membersOf(t, c), c.DB.(*meta.DB)
	hs := &holdings{db: db, members: m, paths: ps, policies: &policies{db: db, members: m, paths: ps},
		nodes: &nodeReport{db: db, room: hasRoom}, damage: &damage{}}
	out, err := hs.where(t.Context(), admin.WhereRequest{Path: "d/f"})
	if err != nil || out.Path != "/d/f" || len(out.Holders) != 1 || !out.Holders[0].Holds || out.SizeBytes != 5 {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := hs.where(t.Context(), admin.WhereRequest{Path: "/d"}); admin.CodeOf(err) != admin.CodeInvalid {
		t.Errorf("of a directory: %v", err)
	}
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
	db := c.DB.(*meta.DB)
	hs := &holdings{db: db, members: m, nodes: &nodeReport{db: db, room: hasRoom}, damage: &damage{}}
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
			h, err := hs.holder(node, id)
			if err != nil || h.Holds != (want == "") || h.Reason != want {
				t.Errorf("%v: node %d: %+v, %v, want %q", id, node, h, err, want)
			}
		}
	}
}
