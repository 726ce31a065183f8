package node

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// A node that does not lead tells nothing of others that it heard long ago (G10); the leader's old news says who is
// silent.
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
