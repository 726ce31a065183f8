package node

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
)

// A node that does not lead tells nothing of others that it heard long ago (G10); the leader's old news says who is silent.
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
