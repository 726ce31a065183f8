package meta

import "fmt"

// What a recovery may have lost is skipped: numbers that were given out then are not given out again.
const (
	lostIncarnations = 1 << 16
	lostInos         = 1 << 20
)

// recovered is why nodes are down after a recovery, until they boot.
const recovered = "away since the cluster was recovered"

// Recover begins a new generation of the cluster, in which one node votes alone, at an index after all that was
// applied. It is for a state that nobody uses: most voters are lost for good, and with them what the log held beyond
// this state. All nodes are down until they boot again, and look for what they have to hold. The caller syncs.
func (db *DB) Recover(index uint64, generation uint32, lead NodeID) error {
	n, err := db.Node(lead)
	if err == nil && n.State == NodeEvicted {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("meta: recover with node %d: %w", lead, err)
	}
	if index <= db.Index() || generation <= db.Generation() {
		return fmt.Errorf("meta: recover at %d to generation %d: the state is at %d, of generation %d", index, generation,
			db.Index(), db.Generation())
	}
	db.life.RLock()
	defer db.life.RUnlock()
	if db.closed {
		return ErrClosed
	}
	_, _, err = db.apply(index, 0, 0, func(t *tx) Result {
		beginGeneration(t, generation, lead)
		return Result{}
	})
	return err
}

func beginGeneration(t *tx, generation uint32, lead NodeID) {
	t.head.Generation = generation
	t.save(votersKey, &electorate{Voters: []NodeID{lead}})
	for _, m := range t.cl.nodes {
		if m == nil || m.State == NodeEvicted {
			continue
		}
		n := *m
		n.Voter = n.ID == lead
		if n.State == NodeUp {
			n.State, n.DownIndex, n.Reason = NodeDown, t.head.Index, recovered
		}
		if n.Incarnation > 0 {
			n.Incarnation += lostIncarnations
			t.restart(n.ID, n.Incarnation)
			t.progressOf(n.ID).LastIno += lostInos
			t.fence(n.ID, n.Incarnation)
		}
		t.changed(n)
	}
	t.recheckAll()
}
