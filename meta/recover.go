package meta

import (
	"errors"
	"fmt"
)

// Numbers that were given out in what a recovery has lost are not given out again: they are skipped. The step of the
// generation is added, so that of two generations that were begun by mistake each gives out numbers of its own: a node
// that goes from one to the other brings its contents along.
const (
	lostNodes        = 16
	lostIncarnations = 1 << 16
	lostInos         = 1 << 32
	incarnationsStep = 1 << 4
	inosStep         = 1 << 12
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
	if err := shed(db); err != nil {
		return fmt.Errorf("meta: recover: %w", err)
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

// shed rewrites a state whose store has more than is read of it: what this node had applied before a crash, and had not
// synced. Normally the log brings the same entries again. The new generation has others at those indexes, and the old
// ones would show through.
func shed(db *DB) error {
	if db.closed || !db.store.beyond(db.Index()) {
		return nil
	}
	r, _, err := db.Snapshot()
	if err != nil {
		return err
	}
	return errors.Join(db.Restore(r), r.Close())
}

func beginGeneration(t *tx, generation uint32, lead NodeID) {
	step := uint64(generation - t.head.Generation)
	t.head.Generation = generation
	t.head.LastNode = min(t.head.LastNode+lostNodes, nodesMax)
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
		n.Incarnation += uint32(lostIncarnations + step*incarnationsStep) // one that has not booted yet may have since
		membership{t}.restart(n.ID, n.Incarnation)
		t.progressOf(n.ID).LastIno += lostInos + step*inosStep
		membership{t}.changed(n)
		membership{t}.fence(n.ID, n.Incarnation)
	}
	membership{t}.recheckAll()
}
