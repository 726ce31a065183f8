package consensus

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// rebuild remakes the state of a node that has none any more, and starts the node.
func (c *cluster) rebuild(id ID, promised uint64) (over bool) {
	c.t.Helper()
	tn := c.nodes[id]
	tn.sm = newToy()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := Rebuild(ctx, c.config(tn), RebuildOptions{Promised: promised, Say: func(text string) { c.t.Logf("node %d: %s", id, text) },
		StartOver: func() error { over = true; return nil }})
	if err != nil {
		c.t.Fatalf("rebuild node %d: %v", id, err)
	}
	c.start(id)
	return over
}

// A voter and an observer whose states are lost, after the log was cut, take another node's and go on with their logs.
func TestRebuildFromOthers(t *testing.T) {
	c := newCluster(t, 5, func(c *cluster) { c.tune.TailEntries = 50; c.tune.SyncEntries = 10 })
	leader := c.waitVoters(3)
	var voter, observer ID
	for _, tn := range c.running() {
		switch st := tn.node.Status(); {
		case st.Role == RoleObserver:
			observer = tn.id
		case tn.id != leader:
			voter = tn.id
		}
	}
	for i := range 400 {
		c.propose(leader, fmt.Sprint("s", i))
	}
	eventually(t, 10*time.Second, "the voter's log is cut", func() bool { return c.nodes[voter].node.Status().LogFirst > 300 })
	c.converge()
	for _, more := range []int{0, 100, 400} { // the snapshot is the last entry's; within the own log, or not; beyond it
		for _, id := range []ID{voter, observer} {
			at := c.nodes[id].sm.Applied()
			c.stop(id)
			for i := range more {
				c.propose(leader, fmt.Sprint("m", id, more, i))
			}
			tn := c.nodes[id]
			kept := tn.sm
			if id == voter {
				tn.sm = newToy()
				if err := c.tryStart(id); !errors.Is(err, ErrStateBehind) {
					t.Fatalf("a voter without its state: %v", err)
				}
			}
			if c.rebuild(id, kept.Synced()) {
				t.Fatal("started over, though others have the state")
			}
			if got := tn.sm.Applied(); got < at {
				t.Fatalf("node %d went back from %d to %d", id, at, got)
			}
			c.propose(id, fmt.Sprint("back", id, more))
			c.converge()
		}
	}
}

// A lone node whose log holds everything applies it again. One whose log was cut says that nobody has its state.
func TestRebuildAlone(t *testing.T) {
	for _, cut := range []bool{false, true} {
		c := newCluster(t, 1, func(c *cluster) {
			if cut {
				c.tune.TailEntries, c.tune.SyncEntries = 50, 10
			}
		})
		leader := c.waitVoters(1)
		for i := range 400 {
			c.propose(leader, fmt.Sprint("s", i))
		}
		if cut {
			eventually(t, 10*time.Second, "the log is cut", func() bool { return c.nodes[leader].node.Status().LogFirst > 300 })
		}
		want := c.nodes[leader].sm.state()
		c.stop(leader)
		if cut {
			tn := c.nodes[leader]
			tn.sm = newToy()
			err := Rebuild(context.Background(), c.config(tn), RebuildOptions{Say: func(string) {}, StartOver: func() error { return errors.New("over") }})
			if !errors.Is(err, ErrNoCopy) {
				t.Fatalf("nobody has the state: %v", err)
			}
			continue
		}
		if !c.rebuild(leader, want.Index) {
			t.Fatal("no peers, and not started over")
		}
		c.propose(leader, "again")
		if got := c.nodes[leader].sm.state(); got.Results["s399"] != want.Results["s399"] || got.Count != want.Count+1 {
			t.Fatalf("state %+v, want %+v", got, want)
		}
	}
}

// A state that turns out to be wrong while the node runs is replaced by another node's: on an observer, a voter and the leader. Nothing is
// applied until then, and no command is lost.
func TestRebuildWhileRunning(t *testing.T) {
	c := newCluster(t, 5, nil)
	leader := c.waitVoters(3)
	c.propose(leader, "first")
	c.converge()
	for i, by := range []string{"apply", "verdict"} {
		for _, tn := range c.running() {
			wrong := fmt.Errorf("test: %w", ErrStateWrong)
			tn.sm.mu.Lock()
			tn.sm.fail = wrong
			tn.sm.mu.Unlock()
			if by == "verdict" {
				tn.node.Rebuild(wrong)
			}
			c.propose(1+tn.id%5, fmt.Sprint("during", i, tn.id))
			c.propose(tn.id, fmt.Sprint("own", i, tn.id))
			eventually(t, 20*time.Second, "the state is replaced", func() bool {
				tn.sm.mu.Lock()
				defer tn.sm.mu.Unlock()
				return tn.sm.fail == nil && tn.node.rebuilding() == nil
			})
		}
	}
	c.converge()
	if got := c.nodes[1].sm.state(); got.Count != 1+2*2*5 {
		t.Fatalf("%d commands", got.Count)
	}
}

// A state that takes the place of a wrong one may be wrong too: another is taken, though nothing is applied that would show it.
func TestRebuildAgain(t *testing.T) {
	c := newCluster(t, 3, nil)
	leader := c.waitVoters(3)
	c.propose(leader, "first")
	c.converge()
	tn := c.nodes[1+leader%3]
	wrong := fmt.Errorf("test: %w", ErrStateWrong)
	tn.sm.mu.Lock()
	tn.sm.fail, tn.sm.bad = wrong, 2
	tn.sm.mu.Unlock()
	tn.node.Rebuild(wrong)
	eventually(t, 20*time.Second, "the third state is whole", func() bool { return tn.sm.isWrong() == nil && tn.node.rebuilding() == nil })
	c.propose(tn.id, "second")
	c.converge()
}

// A node that refuses to send its state does the one that asks no harm.
func TestRefusedSnapshot(t *testing.T) {
	c := newCluster(t, 2, nil)
	leader := c.waitVoters(1)
	c.propose(leader, "first")
	other := 3 - leader
	if !c.nodes[leader].node.beginSnapshot(other) {
		t.Fatal("busy")
	}
	if _, _, err := c.nodes[other].node.openSnapshot(t.Context(), leader); err == nil {
		t.Fatal("two at once")
	}
	c.nodes[leader].node.endSnapshot(other)
	conn, _, err := c.nodes[other].node.openSnapshot(t.Context(), leader)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
