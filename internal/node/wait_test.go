package node

import (
	"errors"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control"
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

// waits is what answers waits on node 1.
func (n *checkedNode) waits(t *testing.T) *waits {
	t.Helper()
	m, raft := membersOf(t, n.c), &lateRaft{}
	peers := control.NewPeers(control.PeersConfig{Resolve: m.address})
	t.Cleanup(func() { peers.Close() })
	nodes := &nodeReport{self: 1, db: n.db, peers: peers, clock: &clock{wall: time.Now, raft: raft}, room: hasRoom}
	k := &damage{self: 1, db: n.db, store: n.store, members: m, paths: n.paths}
	return &waits{ctx: t.Context(), db: n.db, raft: raft, nodes: nodes, lost: &lostLooks{}, damage: k,
		holdings: &holdings{db: n.db, members: m, paths: n.paths, policies: &policies{db: n.db, members: m, paths: n.paths},
			nodes: nodes, damage: k}}
}

// G10: damage that this node knows of and the log does not is waited for, by the name of its file too. Then it is
// mended, or owed.
func TestWaitKnowsOfDamageHere(t *testing.T) {
	n := newCheckedNode(t, 2)
	id := n.file(t, "a", "f", 1, 2)
	n.file(t, "a", "well", 1, 2)
	ws := n.waits(t)
	want := func(when string, count int, reqs ...admin.WaitRequest) {
		t.Helper()
		for _, req := range reqs {
			out, _, err := ws.outstanding(req)
			got := 0
			for _, line := range out {
				if got += line.OwedCount; line.ID != 1 || line.OwedBytes != 100_000 ||
					line.OwedReason != meta.OwedLost.String() {
					t.Errorf("%s: %+v waits for %+v", when, req, line)
				}
			}
			if err != nil || got != count {
				t.Errorf("%s: %+v waits for %d contents, want %d: %v", when, req, got, count, err)
			}
		}
	}
	here := []admin.WaitRequest{{}, {Path: "/a/f"}, {Nodes: []uint32{1}}}
	elsewhere := []admin.WaitRequest{{Path: "/a/well"}, {Nodes: []uint32{2}}, {Path: "/a/f", Nodes: []uint32{2}}}
	want("before it is known", 0, append(here, elsewhere...)...)
	n.flip(t, id)
	if d, err := n.store.Check(t.Context(), id.Bytes()); err != nil || d == nil {
		t.Fatalf("the damage is not found: %v", err)
	}
	want("known here", 1, here...)
	want("known here", 0, elsewhere...)
	n.c.Do(1, &meta.Unheld{Node: 1, Contents: []meta.ContentID{id}, Reason: meta.OwedLost})
	want("owed", 1, here...)
	n.flip(t, id) // back
	if d, err := n.store.Check(t.Context(), id.Bytes()); err != nil || d != nil {
		t.Fatalf("damaged: %v %v", d, err)
	}
	n.c.Do(1, &meta.Held{Node: 1, Contents: []meta.ContentID{id}, View: n.c.DB.View()})
	want("mended", 0, append(here, elsewhere...)...)
}

// A file that rides in the log is owed to nobody. A wait for it says why a node does not have it yet.
func TestWaitForAFileInTheLogSaysWhy(t *testing.T) {
	n := newCheckedNode(t, 2)
	ino := n.c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "small", Kind: meta.KindFile}).Ino
	n.c.Do(1, &meta.Down{Node: 2, Incarnation: n.c.Lease(2).Incarnation})
	n.c.Inline(1, ino, []byte("text"))
	out, _, err := n.waits(t).outstanding(admin.WaitRequest{Path: "/small"})
	if err != nil || len(out) != 1 || out[0].ID != 2 || out[0].OwedCount != 1 || out[0].OwedBytes != 4 ||
		out[0].OwedReason != meta.OwedDown.String() {
		t.Errorf("%+v, %v", out, err)
	}
}

// G10: a node that is cut off does not say that nothing is owed any more: it can't know.
func TestWaitOfANodeThatIsCutOff(t *testing.T) {
	ws := &waits{ctx: t.Context(), raft: &lateRaft{}}
	res, err := ws.wait(t.Context(), admin.WaitRequest{Timeout: 50 * time.Millisecond}) // no log answers here
	if res.Done || admin.CodeOf(err) != admin.CodeUnavailable {
		t.Errorf("%+v, %v", res, err)
	}
}
