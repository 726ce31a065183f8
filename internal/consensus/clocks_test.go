package consensus

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// stampError proposes through a node and returns how far the stamp in the log is from the truth.
func stampError(t *testing.T, c *cluster, via ID, what string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := c.nodes[via].node.Propose(ctx, []byte(what), ProposeOptions{})
	if err != nil {
		t.Fatalf("propose %s: %v", what, err)
	}
	return time.Since(time.Unix(0, res.Time))
}

// leadBy waits until a voter leads, which the others hand leadership to.
func (c *cluster) leadBy(id ID) {
	c.t.Helper()
	eventually(c.t, 30*time.Second, fmt.Sprintf("node %d leads", id), func() bool {
		now := c.leader()
		node := c.nodes[now].node
		if now != id {
			node.box.event(func() {
				if c := node.loop.core; c != nil {
					c.TransferLeader(id)
				}
			})
		}
		return now == id
	})
}

// onlyNamed waits until a node names one clock and no other, by about as much as it is wrong.
func onlyNamed(t *testing.T, c *cluster, at, wrong ID, by time.Duration) {
	t.Helper()
	var st ClockStatus
	defer func() {
		if t.Failed() {
			t.Logf("node %d: %+v", at, st)
		}
	}()
	eventually(t, 30*time.Second, fmt.Sprintf("node %d names the clock of %d alone", at, wrong), func() bool {
		st = c.nodes[at].node.Clocks()
		return len(st.Off) == 1 && (st.Off[wrong]-by).Abs() < ClockAgree
	})
}

// The clock of the leader jumps by years while it leads, or is wrong from its start on: the log's time does not
// follow it, all nodes name this clock and no other, and once it is right again nothing is left of it.
func TestWrongClockOfTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, nil)
		c.waitVoters(3)
		for round, by := range []time.Duration{10 * day, -20 * year, 30 * year} {
			leader := c.leader()
			if round == 1 {
				c.stop(leader)
				c.setWrong(leader, by)
				c.start(leader)
				c.leadBy(leader)
			} else {
				c.setWrong(leader, by)
			}
			if e := stampError(t, c, leader, fmt.Sprint("jumped", round)); e.Abs() > time.Minute {
				t.Fatalf("leader's clock %v ahead: the log's time is %v behind the truth", by, e)
			}
			for _, id := range c.ids() {
				onlyNamed(t, c, id, leader, by)
			}
			c.setWrong(leader, 0)
			if e := stampError(t, c, leader, fmt.Sprint("mended", round)); e.Abs() > time.Minute {
				t.Fatalf("leader's clock is right again: the log's time is %v behind the truth", e)
			}
			eventually(t, 30*time.Second, "no clock is named", func() bool {
				return len(c.nodes[leader].node.Clocks().Off) == 0
			})
		}
	})
}

// A single voter starts with a clock far ahead, or behind: the clock of the observer beside it keeps that out of the
// log.
func TestWrongClockOfTheOnlyVoter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		c.leader()
		stampError(t, c, 1, "before")
		for _, by := range []time.Duration{40 * day, -5 * year} {
			c.stop(1)
			c.setWrong(1, by)
			c.start(1)
			c.leader()
			if e := stampError(t, c, 1, fmt.Sprint("wrong by ", by)); e.Abs() > time.Minute {
				t.Fatalf("voter's clock %v ahead: the log's time is %v behind the truth", by, e)
			}
			eventually(t, 30*time.Second, "the two clocks are known to differ", func() bool {
				st := c.nodes[1].node.Clocks()
				return st.Apart > 30*day && len(st.Off) == 0
			})
			c.setWrong(1, 0)
		}
	})
}

// A lone node whose state lost its last entries starts with a clock years behind: its log knows the time, though the
// state does not yet.
func TestClockGoesByTheLogOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		c.leader()
		stampError(t, c, 1, "before")
		c.crash(1, func(int) int { return 1 })
		if at := c.nodes[1].sm.state().Time; at != 0 {
			t.Fatalf("the state was synced, and has time %d: nothing is shown", at)
		}
		c.setWrong(1, -5*year)
		c.start(1)
		c.leader()
		stampError(t, c, 1, "after")
		if e := time.Since(c.nodes[1].node.Now()); e > time.Minute {
			t.Fatalf("its idea of the time is %v behind", e)
		}
	})
}

// An observer's wrong clock is named by all, and changes nothing.
func TestWrongClockOfAnObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, nil)
		c.waitVoters(3)
		voters := c.nodes[c.leader()].node.Status().Voters
		observer := ID(0)
		for _, id := range c.ids() {
			if !slices.Contains(voters, id) {
				observer = id
			}
		}
		c.setWrong(observer, -3*year)
		if e := stampError(t, c, observer, "proposed there"); e.Abs() > time.Minute {
			t.Fatalf("the log's time is %v behind the truth", e)
		}
		for _, id := range c.ids() {
			onlyNamed(t, c, id, observer, -3*year)
		}
		if e := time.Since(c.nodes[observer].node.Now()); e.Abs() > ClockAgree {
			t.Fatalf("its own idea of the time is %v behind", e)
		}
	})
}

func TestClockWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		call := clockCall{wall: rapid.Int64().Draw(t, "wall"), run: rapid.Uint64().Draw(t, "run"),
			mono: rapid.Int64().Draw(t, "mono")}
		if got, err := decode[clockCall](appendBody(nil, &call)); err != nil || got != call {
			t.Fatalf("%+v, %v", got, err)
		}
		a := clockAnswer{run: call.run, mono: call.mono, wall: call.wall, time: rapid.Int64().Draw(t, "time"),
			flags: rapid.Uint8().Draw(t, "flags"), off: map[ID]time.Duration{}}
		for _, id := range rapid.SliceOfN(rapid.Uint64(), 0, 300).Draw(t, "off") {
			a.off[id] = time.Duration(id)
		}
		b := appendBody(nil, &a)
		got, err := decode[clockAnswer](b)
		if err != nil || got.run != a.run || got.time != a.time || len(got.off) != min(len(a.off), maxClocksOff) {
			t.Fatalf("%+v, %v", got, err)
		}
		if _, err := decode[clockAnswer](b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")]); err == nil {
			t.Fatal("a cut answer was taken")
		}
	})
}

// A peer's question shows what its clock was only if it names a recent time of this run of this node. A question that
// was on its way for long, or was meant for an earlier run, would make a right clock look wrong.
func TestOldReadingsOfClocksDoNotCount(t *testing.T) {
	for _, c := range []struct {
		run    uint64 // more than this node's
		mono   time.Duration
		counts bool
	}{{0, 0, true}, {0, -core.ClockFresh / 2, true}, {0, -2 * core.ClockFresh, false}, {0, 2 * clockTrip, false},
		{1, 0, false}} {
		n := newNode(Config{Identity: Identity{ID: 1}})
		n.clocks.born = n.clocks.born.Add(-time.Hour)
		ask := clockCall{wall: n.clocks.wall(), run: n.run + c.run, mono: n.clocks.mono() + int64(c.mono)}
		if _, err := n.clocks.answer(2, appendBody(nil, &ask)); err != nil {
			t.Fatal(err)
		}
		if got := n.clocks.clock.Has(2); got != c.counts {
			t.Errorf("%+v: counts %v", c, got)
		}
		n.cancel(ErrClosed)
	}
}

// A node that begins from a log knows the last time in it before anything is applied, whether that time is in an entry
// or in the log's base. With a wall clock years behind, its time is not before that.
func TestStartKnowsTheTimesOfItsLog(t *testing.T) {
	last := time.Now().UnixNano()
	entry := &raftpb.Entry{Index: new(uint64(11)), Term: new(uint64(2)), Type: raftpb.EntryNormal.Enum(),
		Data: (&core.Proposal{Origin: 1, Seq: 1}).Envelope(last)}
	conf := &raftpb.ConfState{Voters: []uint64{1, 2, 3}}
	for name, state := range map[string]*raftlog.State{
		"entry": {Base: raftlog.Base{Index: 10, Term: 2, Time: last - 5, Conf: conf}, Entries: []*raftpb.Entry{entry}},
		"base":  {Base: raftlog.Base{Index: 11, Term: 2, Time: last, Conf: conf}},
	} {
		n := newNode(Config{Identity: Identity{ID: 1}, Wall: func() time.Time { return time.Unix(0, last).Add(-5 * year) }})
		state.Hard = &raftpb.HardState{Term: new(uint64(2)), Commit: new(uint64(11))}
		if err := n.loop.newCore(state); err != nil {
			t.Fatal(err)
		}
		if at := n.loop.core.LastTime(); at != last {
			t.Errorf("%s: the log ends at %d, its core says %d", name, last, at)
		}
		if at := n.Now().UnixNano(); at < last {
			t.Errorf("%s: the node's time is %v before its log's", name, time.Duration(last-at))
		}
		n.cancel(ErrClosed)
	}
}
