package consensus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// rebuild remakes the state of a node that has lost it, and starts the node.
func (c *cluster) rebuild(id ID, promised uint64) (over bool) {
	c.t.Helper()
	tn := c.nodes[id]
	tn.sm = newToy()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := Rebuild(ctx, c.config(tn), RebuildOptions{Promised: promised, Say: func(text string) {
		c.t.Logf("node %d: %s", id, text)
	},
		StartOver: func() error { over = true; return nil }})
	if err != nil {
		c.t.Fatalf("rebuild node %d: %v", id, err)
	}
	c.start(id)
	return over
}

// A voter and an observer whose states are lost, after the log was cut, take another node's and go on with their logs.
func TestRebuildFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		eventually(t, 10*time.Second, "the voter's log is cut", func() bool {
			return c.nodes[voter].node.inside().LogFirst > 300
		})
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
	})
}

// A lone node whose log holds everything applies it again. One whose log was cut says that nobody has its state.
func TestRebuildAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
				eventually(t, 10*time.Second, "the log is cut", func() bool { return c.nodes[leader].node.inside().LogFirst > 300 })
			}
			want := c.nodes[leader].sm.state()
			c.stop(leader)
			if cut {
				tn := c.nodes[leader]
				tn.sm = newToy()
				err := Rebuild(context.Background(), c.config(tn), RebuildOptions{Say: func(string) {}, StartOver: func() error {
					return errors.New("over")
				}})
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
	})
}

// A state that turns out to be wrong while the node runs is replaced by another node's: on an observer, a voter and
// the leader. Nothing is applied until then, and no command is lost.
func TestRebuildWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
					return tn.sm.fail == nil && tn.node.replacer.why() == nil
				})
			}
		}
		c.converge()
		if got := c.nodes[1].sm.state(); got.Count != 1+2*2*5 {
			t.Fatalf("%d commands", got.Count)
		}
	})
}

// A lone node whose state is wrong says what to do, and does not ask without a pause.
func TestRebuildOfALoneNodeSaysWhatToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		voter := c.waitVoters(1)
		c.propose(voter, "first")
		tn := c.nodes[voter]
		tn.node.Rebuild(fmt.Errorf("test: %w", ErrStateWrong))
		eventually(t, 20*time.Second, "it is said", func() bool {
			return strings.Contains(tn.node.Status().Rebuild, "start this one again")
		})
	})
}

// A state that takes the place of a wrong one may be wrong too: another is taken, though nothing is applied that
// would show it.
func TestRebuildAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		eventually(t, 20*time.Second, "the third state is whole", func() bool {
			return tn.sm.isWrong() == nil && tn.node.replacer.why() == nil
		})
		c.propose(tn.id, "second")
		c.converge()
	})
}

// A node that refuses to send its state does the one that asks no harm.
func TestRefusedSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		leader := c.waitVoters(1)
		c.propose(leader, "first")
		other := 3 - leader
		if !c.nodes[leader].node.snapshots.begin(other) {
			t.Fatal("busy")
		}
		if _, _, err := c.nodes[other].node.greeter.openSnapshot(t.Context(), leader); err == nil {
			t.Fatal("two at once")
		}
		c.nodes[leader].node.snapshots.end(other)
		conn, _, err := c.nodes[other].node.greeter.openSnapshot(t.Context(), leader)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	})
}

// Two nodes were stopped; the state of the only voter is lost, and its log is cut. The observer has received nothing
// since its start, and has everything.
func TestRebuildVoterFromObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, func(c *cluster) { c.tune.TailEntries, c.tune.SyncEntries = 50, 10 })
		voter := c.waitVoters(1)
		observer := 3 - voter
		for i := range 400 {
			c.propose(voter, fmt.Sprint("s", i))
		}
		eventually(t, 10*time.Second, "the log is cut", func() bool { return c.nodes[voter].node.inside().LogFirst > 300 })
		c.converge()
		c.stop(observer)
		for i := range 7 { // the observer has missed these
			c.propose(voter, fmt.Sprint("m", i))
		}
		want := c.nodes[voter].sm.state()
		c.stop(voter)
		c.start(observer)
		if c.rebuild(voter, want.Index) {
			t.Fatal("started over")
		}
		c.propose(voter, "again")
		c.converge()
		if got := c.nodes[voter].sm.state(); got.Results["s399"] != want.Results["s399"] || got.Count != want.Count+1 {
			t.Fatalf("state %+v, want %+v", got, want)
		}
	})
}

// A snapshot without a term is used only if the own log holds its entry.
func TestTermOfSnapshot(t *testing.T) {
	entry := func(index, term uint64, at int64) *raftpb.Entry {
		e := &raftpb.Entry{Index: new(index), Term: new(term)}
		if at > 0 {
			e.Data = (&core.Proposal{}).Envelope(at)
		}
		return e
	}
	conf := &raftpb.ConfState{Voters: []uint64{1}}
	r := &rebuilder{n: &Node{id: 1}, state: &raftlog.State{Base: raftlog.Base{Index: 10, Term: 2, Time: 100, Conf: conf},
		Entries: []*raftpb.Entry{entry(11, 3, 0), entry(12, 3, 110), entry(13, 4, 0)}}}
	for _, c := range []struct {
		index uint64
		time  int64
		want  uint64
	}{{9, 90, 0}, {10, 100, 2}, {11, 100, 3}, {12, 110, 3}, {12, 111, 0}, {13, 110, 4}, {13, 100, 0}, {14, 110, 0}} {
		if got := r.termOf(&snapHead{index: c.index, timeNanos: c.time}); got != c.want {
			t.Errorf("at %d, time %d: term %d, want %d", c.index, c.time, got, c.want)
		}
	}
	conf.Voters, r.state.Hard = []uint64{1, 2, 3}, &raftpb.HardState{Commit: new(uint64(12))}
	if got := r.termOf(&snapHead{index: 13, timeNanos: 110}); got != 0 {
		t.Errorf("an entry that may not be committed gives term %d", got)
	}
	r.state.Hard.Commit = new(uint64(13))
	if got := r.termOf(&snapHead{index: 13, timeNanos: 110}); got != 4 {
		t.Errorf("a committed entry gives term %d", got)
	}
	conf.Voters = []uint64{1}
	r.n.id = 2
	if got := r.termOf(&snapHead{index: 12, timeNanos: 110}); got != 0 {
		t.Errorf("an observer takes term %d", got)
	}
}
