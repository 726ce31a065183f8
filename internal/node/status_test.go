package node

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// A node that does not lead reports nothing about others that it heard from long ago (G10). A leader does report old
// news: it shows which nodes are silent.
func TestProgressKnown(t *testing.T) {
	now := time.Now()
	progress := map[consensus.ID]consensus.Progress{
		1: {Visible: 10, LastSeen: now.Add(-time.Minute)}, 2: {Visible: 20, LastSeen: now.Add(-time.Second)},
		3: {Visible: 30, LastSeen: now.Add(-time.Minute)},
	}
	for _, c := range []struct {
		leader, id consensus.ID
		known      bool
	}{
		{leader: 1, id: 1, known: true}, {leader: 1, id: 2, known: true}, {leader: 1, id: 3, known: true}, {leader: 1, id: 4},
		{leader: 2, id: 1, known: true}, {leader: 2, id: 2, known: true}, {leader: 2, id: 3}, {leader: 2, id: 4},
		{leader: 0, id: 1, known: true}, {leader: 0, id: 2, known: true}, {leader: 0, id: 3},
	} {
		p, ok := progressKnown(consensus.Status{ID: 1, Leader: c.leader, Progress: progress}, c.id, now)
		if ok != c.known || ok && p != progress[c.id] {
			t.Errorf("node 1 while %d leads knows of %d: %v, %+v", c.leader, c.id, ok, p)
		}
	}
}

// Status says how the blocks of a transfer go, and why, once that was chosen.
func TestShownChoice(t *testing.T) {
	if c := shownChoice(schedule.Choice{}); c != nil {
		t.Errorf("%+v before there is a group", c)
	}
	chosen, err := schedule.Choose(schedule.Conditions{Members: 4, Size: 1 << 30, BlockMax: 256 << 10,
		WindowBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(shownChoice(chosen))
	if err != nil || !strings.HasPrefix(string(text),
		`{"algorithm":"binomial-pipeline","block_bytes":262144,"window":32,"reasons":["binomial-pipeline as a hypercube`) {
		t.Errorf("%s, %v", text, err)
	}
	if chosen, err = schedule.Choose(schedule.Conditions{Members: 2, Size: 9, CallBytes: 9}); err != nil {
		t.Fatal(err)
	}
	if c := shownChoice(chosen); c.Algorithm != "calls" || c.BlockBytes != 0 || len(c.Reasons) != 1 {
		t.Errorf("calls: %+v", c)
	}
}

// A leader names a node that is up and has never reported to it: nobody else would know of it.
func TestLeaderMissesReports(t *testing.T) {
	two := meta.Node{ID: 2, Store: [16]byte{2}, State: meta.NodeUp}
	down := meta.Node{ID: 3, Store: [16]byte{3}, State: meta.NodeDown}
	lead := consensus.Status{ID: 7, Leader: 7, Progress: map[consensus.ID]consensus.Progress{}}
	follow := consensus.Status{ID: 8, Leader: 7}
	if !unheard(lead, two) || unheard(lead, down) || unheard(follow, two) {
		t.Error("who is missed is wrong")
	}
	lead.Progress[raftID(2, two.Store)] = consensus.Progress{Visible: 5}
	if unheard(lead, two) {
		t.Error("who has reported is missed")
	}
}

// A path below the root of the mounts may begin as the mount point does.
func TestLookupOfAPathThatRepeatsTheMountPoint(t *testing.T) {
	db := meta.OpenMemory()
	defer db.Close()
	c := metatest.Over(t, db, 1)
	c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindDir})
	dir := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "data", Kind: meta.KindDir}).Ino
	inner := c.Do(1, &meta.Create{Parent: dir, Name: "f", Kind: meta.KindDir}).Ino
	ps := &paths{names: db, lease: (&proposer{}).lease} // on a mount at /data this is /data/data/f
	for _, name := range []string{"data/f", "/data/f"} {
		if ino, clean, err := ps.lookup(name); err != nil || ino.Ino != inner || clean != "/data/f" {
			t.Errorf("%s: inode %d, %q, %v, want inode %d", name, ino.Ino, clean, err, inner)
		}
	}
}

// Status of a node that is cut off names the voters that it does not reach: the table has them as up, as the log does.
func TestCutOffNamesTheVotersThatAreMissing(t *testing.T) {
	st := admin.Status{Node: 1, Nodes: []admin.Node{{ID: 1, Name: "a", Voter: true}, {ID: 2, Name: "b", Voter: true},
		{ID: 3, Name: "c", Voter: true, Connected: true}, {ID: 4, Name: "d"}}}
	if text := cutOffWarning(st, nil); !strings.Contains(text, "no connection to b;") {
		t.Error(text)
	}
	st.Nodes[1].Connected = true
	if text := cutOffWarning(st, nil); strings.Contains(text, "no connection") {
		t.Error(text)
	}
	if text := cutOffWarning(st, []meta.NodeID{2, 3}); !strings.Contains(text, "refused by b, c: they know another data") {
		t.Error(text)
	}
	st.Quorum = true
	if text := cutOffWarning(st, nil); strings.Contains(text, "no quorum") || !strings.Contains(text, notLetIn) {
		t.Errorf("with a quorum it says: %s", text)
	}
}

// Status of a node that does not lead says why changes fail everywhere: the leader can't write its log. What the leader
// said long ago counts no more.
func TestStatusSaysThatTheLeaderCantWrite(t *testing.T) {
	db := meta.OpenMemory()
	c := &cluster{db: db, members: &members{names: db}, proposer: newProposer(t.Context(), nil, 1, 1),
		split: &splitState{}}
	c.proposer.beginIncarnation(1)
	leader := raftID(2, [16]byte{2})
	refused := func(p consensus.Progress) string {
		return c.changesRefused(consensus.Status{ID: raftID(1, [16]byte{1}), Leader: leader,
			Progress: map[consensus.ID]consensus.Progress{leader: p}})
	}
	now := time.Now()
	if why := refused(consensus.Progress{ReadOnly: true, LastSeen: now}); !strings.Contains(why, "node 2, which leads") {
		t.Errorf("while the leader can't write: %q", why)
	}
	for _, p := range []consensus.Progress{{LastSeen: now}, {ReadOnly: true, LastSeen: now.Add(-time.Minute)}} {
		if why := refused(p); why != "" {
			t.Errorf("of %+v it says %q", p, why)
		}
	}
}

// A node that takes over what a draining or evicted one held has neither joined nor returned.
func TestWhoTakesOverIsOwedForThat(t *testing.T) {
	for _, tc := range []struct {
		owed meta.Owed
		want string
	}{
		{meta.Owed{Reason: meta.OwedJoined}, "joined or returned later"},
		{meta.Owed{Reason: meta.OwedJoined, Unplaced: true}, "takes over from another node"},
		{meta.Owed{Reason: meta.OwedLost, Unplaced: true}, "lost or damaged there"},
	} {
		if got := owedWords(tc.owed); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.owed, got, tc.want)
		}
	}
}
