package consensus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
)

func TestOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		for i := range 5 {
			p := c.propose(1, fmt.Sprint("a", i))
			if p.Result != uint64(i+1) {
				t.Fatalf("result %v", p.Result)
			}
		}
		c.stop(1)
		c.start(1)
		if p := c.propose(1, "a5"); p.Result != uint64(6) {
			t.Fatalf("after restart: result %v", p.Result)
		}
	})
}

// The last turn of the loop goes on while the loop runs, and stays where it is while the loop waits.
func TestLastTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		n := c.nodes[1].node
		eventually(t, 20*time.Second, "the first turn", func() bool { return !LastTurn(n).IsZero() })
		first := LastTurn(n)
		eventually(t, 20*time.Second, "another turn", func() bool { return LastTurn(n).After(first) })
		held, release := make(chan struct{}), make(chan struct{})
		n.box.event(func() { close(held); <-release })
		<-held
		still := LastTurn(n)
		<-time.After(5 * c.tune.Tick)
		if LastTurn(n) != still {
			t.Error("a loop that waits turns")
		}
		close(release)
		eventually(t, 20*time.Second, "a turn after the wait", func() bool { return LastTurn(n).After(still) })
	})
}

func TestGrowsToThreeVotersAndServesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, nil)
		c.waitVoters(3)
		want := uint64(0)
		for round := range 4 {
			for id := ID(1); id <= 5; id++ {
				want++
				if p := c.propose(id, fmt.Sprint(round, "/", id)); p.Result != want {
					t.Fatalf("node %d: result %v, want %d", id, p.Result, want)
				}
			}
		}
		c.converge()
		observers := 0
		for _, tn := range c.running() {
			if tn.node.Status().Role == RoleObserver {
				observers++
			}
		}
		if observers != 2 {
			t.Fatalf("%d observers", observers)
		}
	})
}

func TestLeaderKilledStopsNobodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, func(c *cluster) { c.tune.Tick, c.tune.LeaderLost = 0, 0 })
		leader := c.waitVoters(3)
		c.propose(leader, "before")
		c.setDown(leader, true)
		c.stop(leader)
		for _, tn := range c.running() {
			began := time.Now()
			command := []byte(fmt.Sprint("after", tn.id))
			if _, err := tn.node.Propose(context.Background(), command, ProposeOptions{}); err != nil {
				t.Fatalf("node %d: %v", tn.id, err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Fatalf("node %d waited %v", tn.id, took)
			} else {
				t.Logf("node %d waited %v", tn.id, took)
			}
		}
		c.start(leader)
		c.setDown(leader, false)
		c.converge()
	})
}

// A voter whose process has ended refuses connections. When it led, the others do not wait for it.
func TestLeaderThatRefusesConnectionsIsReplacedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(c *cluster) { c.tune.ElectionTicks, c.tune.LeaderLost = 1_000_000, time.Hour })
		leader := c.waitVoters(3)
		c.propose(leader, "before")
		c.stop(leader)
		for _, tn := range c.running() {
			command := []byte(fmt.Sprint("after", tn.id))
			if _, err := tn.node.Propose(context.Background(), command, ProposeOptions{}); err != nil {
				t.Fatalf("node %d: %v", tn.id, err)
			}
		}
	})
}

// Voters that reach each other again are a quorum at once.
func TestQuorumThatIsBackElectsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(c *cluster) { c.tune.ElectionTicks, c.tune.LeaderLost = 1_000_000, time.Hour })
		c.propose(c.waitVoters(3), "before")
		all := c.running()
		for _, tn := range all {
			c.stop(tn.id)
		}
		for _, tn := range all {
			c.start(tn.id)
		}
		c.propose(all[0].id, "after")
		c.converge()
	})
}

// A leader that is about to end hands over, and again when it is elected again. It still takes proposals.
func TestResignedLeaderLeadsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		old := c.waitVoters(3)
		c.nodes[old].node.Resign()
		moved := func() bool { return c.leader() != old }
		eventually(t, 20*time.Second, "another one leads", moved)
		c.propose(old, "still here")
		c.leadBy(old)
		eventually(t, 20*time.Second, "another one leads again", moved)
		c.converge()
	})
}

// A leader that is about to end hands over to a voter that hears it, not to one that it has no connection to: a voter
// may refuse the connections of an evicted leader. A second attempt would come after 3 s.
func TestLeaderHandsOverToOneThatItReaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i := range 2 {
			c := newCluster(t, 3, nil)
			old := c.waitVoters(3)
			others := slices.DeleteFunc(c.ids(), func(id ID) bool { return id == old })
			slices.Sort(others)
			deaf := others[i]
			c.cutWay(old, deaf)
			eventually(t, 20*time.Second, "the way is cut", func() bool { return !c.nodes[old].node.link(deaf).isUp() })
			ctx, cancel := context.WithTimeout(t.Context(), 2900*time.Millisecond)
			c.nodes[old].node.Leave(ctx)
			if ctx.Err() != nil {
				t.Errorf("it does not reach %d of %d: nobody has taken over", deaf, others)
			}
			cancel()
		}
	})
}

// Where no other voter is there, one that has resigned goes on leading.
func TestOnlyVoterThatResignsLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		only := c.waitVoters(1)
		c.nodes[only].node.Resign()
		c.propose(only, "still here")
		if got := c.leader(); got != only {
			t.Errorf("%v leads", got)
		}
	})
}

// A leader that the cluster has removed takes no more part in raft, and others lead, though its process goes on.
func TestLeaderThatLeavesLeadsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		old := c.waitVoters(3)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		c.nodes[old].node.Leave(ctx)
		if ctx.Err() != nil {
			t.Error("nobody has taken over")
		}
		_, err := c.nodes[old].node.Propose(t.Context(), []byte("too late"), ProposeOptions{})
		if !errors.Is(err, ErrClosed) {
			t.Errorf("a proposal: %v", err)
		}
		for _, tn := range c.running() {
			if tn.id != old {
				c.propose(tn.id, fmt.Sprint("after", tn.id))
			}
		}
		c.stop(old)
		c.start(old)
		c.converge()
	})
}

// TestNoQuorumFailsFastAndRecovers has half of the usual time, so that a late machine does not reach the bound; the
// other half is in the default.
func TestNoQuorumFailsFastAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 5 * time.Second
		if lost := (Tuning{}).filled().LeaderLost; lost+lost/16 > bound-bound/10 {
			t.Fatalf("by default a first change waits for %v", lost+lost/16)
		}
		c := newCluster(t, 4, func(c *cluster) { c.tune.Tick, c.tune.LeaderLost = 0, 2*time.Second })
		leader := c.waitVoters(3)
		var dead []ID
		for _, v := range c.nodes[leader].node.Status().Voters {
			if len(dead) < 2 {
				dead = append(dead, v)
			}
		}
		for _, id := range dead {
			c.stop(id)
		}
		for _, tn := range c.running() {
			began := time.Now()
			_, err := tn.node.Propose(context.Background(), []byte("x"), ProposeOptions{})
			took := time.Since(began)
			if !errors.Is(err, ErrNoQuorum) || took > bound {
				t.Fatalf("node %d: first change: %v after %v", tn.id, err, took)
			}
			t.Logf("node %d: %v after %v", tn.id, err, took)
			began = time.Now()
			// At once, not when as much time has passed again.
			if _, err = tn.node.Propose(context.Background(), []byte("y"), ProposeOptions{}); !errors.Is(err, ErrNoQuorum) ||
				time.Since(began) > time.Second {
				t.Fatalf("node %d: second change: %v after %v", tn.id, err, time.Since(began))
			}
			if !tn.node.Status().NoQuorum {
				t.Fatalf("node %d: status does not say so", tn.id)
			}
		}
		for _, id := range dead {
			c.start(id)
		}
		eventually(t, 15*time.Second, "changes work again", func() bool {
			for _, tn := range c.running() {
				if _, err := tn.node.Propose(context.Background(), []byte(fmt.Sprint("z", tn.id)), ProposeOptions{}); err != nil {
					return false
				}
			}
			return true
		})
		c.converge()
	})
}

// TestBarrierNamesThoseBehind has nodes that live miss from a leader's sight for some seconds: so long they may
// connect on a late machine.
func TestBarrierNamesThoseBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, func(c *cluster) { c.auto, c.tune.StaleAfter = false, 9*time.Second })
		c.waitVoters(3)
		stop := make(chan struct{})
		done := make(chan struct{})
		lagging := ID(5)
		go func() { // the upper layer of all nodes except one drops its caches at once
			defer close(done)
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				for _, tn := range c.running() {
					if tn.id != lagging {
						tn.node.SetVisible(tn.sm.Applied())
					}
				}
			}
		}()
		defer func() { close(stop); <-done }()
		for _, tn := range c.running() {
			p, behind, err := proposeVisible(tn.node, fmt.Sprint("w", tn.id), 5*time.Second, 1, 2, 3, 4)
			if err != nil || len(behind) > 0 {
				t.Fatalf("node %d: %+v, behind %v, %v", tn.id, p, behind, err)
			}
			for id := ID(1); id <= 4; id++ {
				if c.nodes[id].node.inside().Visible < p.Index {
					t.Fatalf("node %d is not at %d", id, p.Index)
				}
			}
		}
		node := c.nodes[4].node
		p, behind, err := proposeVisible(node, "late", 300*time.Millisecond)
		if err != nil || !slices.Contains(behind, lagging) { // on a late machine others may be behind too
			t.Fatalf("%+v, behind %v, %v", p, behind, err)
		}
		behind, err = barrierOf(node, p.Index, time.Minute, 1, 2, 3, 4)
		if err != nil || len(behind) > 0 {
			t.Fatalf("barrier: %v, %v", behind, err)
		}
		behind, err = node.Barrier(context.Background(), p.Index, ProposeOptions{})
		if err != nil || !slices.Equal(behind, []ID{lagging}) {
			t.Fatalf("barrier of all: %v, %v", behind, err)
		}
		began := time.Now()
		c.stop(lagging)
		p, behind, err = proposeVisible(node, "gone", time.Minute)
		if err != nil || len(behind) != 1 || time.Since(began) > time.Minute/2 {
			t.Fatalf("%+v, behind %v, %v after %v", p, behind, err, time.Since(began))
		}
		behind, err = barrierOf(node, p.Index, 5*time.Second, 1, 2, 3)
		if err != nil || len(behind) > 0 {
			t.Fatalf("barrier: %v, %v", behind, err)
		}
	})
}

// TestBarrierOfALeaderThatIsCutOff: it knows nothing of the others. It must not name them as those who are behind; a
// patient caller learns who shows the index when the node is back.
func TestBarrierOfALeaderThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(c *cluster) {
			c.auto, c.tune.LeaderAwaited, c.tune.ElectionTicks = false, 3*time.Second, 100
			c.tune.StaleAfter = 9 * time.Second // longer than a node waits before it connects again
		})
		leader := c.waitVoters(3)
		node := c.nodes[leader].node
		p, err := node.Propose(context.Background(), []byte("x"), ProposeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.isolate(leader, true)
		if behind, err := node.Barrier(context.Background(), p.Index, ProposeOptions{Patient: true}); err == nil {
			t.Fatalf("a leader that hears nobody says that %v are behind", behind)
		}
		answer := make(chan error, 1)
		node.tune.BarrierTimeout = time.Minute
		go func() {
			behind, err := node.Barrier(context.Background(), p.Index, ProposeOptions{Patient: true})
			if err == nil && len(behind) > 0 {
				err = fmt.Errorf("%v are behind", behind)
			}
			answer <- err
		}()
		c.isolate(leader, false)
		for ended := false; !ended; {
			for _, tn := range c.running() {
				tn.node.SetVisible(tn.sm.Applied())
			}
			select {
			case err = <-answer:
				ended = true
			case <-time.After(10 * time.Millisecond):
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

// A node whose read barrier has returned is not silent, as its leader sees it.
func TestReadBarrierIsASignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		leader := c.waitVoters(3)
		c.propose(leader, "before")
		for i := range 20 {
			id := ID(i%3 + 1)
			if id == leader {
				continue
			}
			began := time.Now()
			if _, err := c.nodes[id].node.ReadBarrier(t.Context()); err != nil {
				t.Fatal(err)
			}
			if seen := c.nodes[leader].node.Status().Progress[id].LastSeen; seen.Before(began) {
				t.Fatalf("node %d was last seen %v before its call", id, began.Sub(seen))
			}
		}
	})
}

func TestReadBarrierSeesEarlierWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, nil)
		c.waitVoters(3)
		for i := range 30 {
			writer, reader := ID(1+i%5), ID(1+(i*3+1)%5)
			p := c.propose(writer, fmt.Sprint("r", i))
			index, err := c.nodes[reader].node.ReadBarrier(context.Background())
			if err != nil || index < p.Index || c.nodes[reader].sm.Applied() < p.Index {
				t.Fatalf("read barrier on %d: %d, %v; write was at %d", reader, index, err, p.Index)
			}
		}
	})
}

func TestSnapshotCatchUp(t *testing.T) {
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
		c.stop(voter)
		c.stop(observer)
		for i := range 400 {
			c.propose(leader, fmt.Sprint("s", i))
		}
		eventually(t, 10*time.Second, "the log is cut", func() bool { return c.nodes[leader].node.inside().LogFirst > 300 })
		c.start(observer)
		c.start(voter)
		c.propose(observer, "o")
		c.propose(voter, "v")
		c.converge()
		c.crash(voter, rand.New(rand.NewPCG(1, 1)).IntN)
		c.start(voter)
		c.propose(voter, "v2")
		c.converge()
	})
}

func TestCrashesAndPartitionsKeepEveryAcknowledgedCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(7, 7))
		c := newCluster(t, 5, func(c *cluster) { c.tune.TailEntries, c.tune.LeaderLost = 100, 5*time.Second })
		c.waitVoters(3)
		acked := map[string]any{}
		for i := range 25 {
			victim := ID(1 + rng.IntN(5))
			kind := rng.IntN(3)
			switch kind {
			case 0:
				c.crash(victim, rng.IntN)
			case 1:
				c.isolate(victim, true)
			}
			for j := range 6 {
				id := ID(1 + rng.IntN(5))
				if kind < 2 && id == victim {
					continue
				}
				command := fmt.Sprint("c", i, ".", j)
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				p, err := c.nodes[id].node.Propose(ctx, []byte(command), ProposeOptions{})
				cancel()
				if err != nil {
					t.Fatalf("round %d, victim %d (%d), propose on %d: %v", i, victim, kind, id, err)
				}
				acked[command] = p.Result
			}
			switch kind {
			case 0:
				c.start(victim)
			case 1:
				c.isolate(victim, false)
			}
		}
		c.converge()
		final := c.nodes[1].sm.state()
		for command, place := range acked {
			if final.Results[command] != place {
				t.Fatalf("command %s: place %d, acknowledged %v", command, final.Results[command], place)
			}
		}
		if int(final.Count) != len(acked) {
			t.Fatalf("%d commands applied, %d acknowledged", final.Count, len(acked))
		}
		t.Logf("%d commands, %d repeated proposals", final.Count, final.Repeated)
	})
}

func TestDeadVoterIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, func(c *cluster) { c.tune.DeadVoterAfter = 200 * time.Millisecond })
		leader := c.waitVoters(3)
		var victim ID
		for _, v := range c.nodes[leader].node.Status().Voters {
			if v != leader {
				victim = v
			}
		}
		c.stop(victim)
		c.setDown(victim, true)
		eventually(t, 20*time.Second, "the dead voter is replaced", func() bool {
			st := c.nodes[leader].node.inside()
			return len(st.Voters) == 3 && !st.Joint && !slices.Contains(st.Voters, victim) && len(st.Learners) == 0
		})
		c.propose(leader, "x")
		c.start(victim) // it still believes that it votes
		eventually(t, 20*time.Second, "the replaced voter follows", func() bool {
			return c.nodes[victim].node.Status().Role == RoleObserver
		})
		c.setDown(victim, false)
		c.propose(victim, "y")
		c.converge()
	})
}

func TestChangeVoters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, nil)
		leader := c.waitVoters(3)
		st := c.nodes[leader].node.Status()
		var observer, other ID
		for id := range c.nodes {
			if !slices.Contains(st.Voters, id) {
				observer = id
			} else if id != leader {
				other = id
			}
		}
		if err := c.nodes[observer].node.ChangeVoters(context.Background(), []ID{observer}, []ID{other}); err != nil {
			t.Fatal(err)
		}
		st = c.nodes[leader].node.Status()
		if len(st.Voters) != 3 || !slices.Contains(st.Voters, observer) || slices.Contains(st.Voters, other) {
			t.Fatalf("voters %v", st.Voters)
		}
		for id := range c.nodes {
			c.propose(id, fmt.Sprint("cv", id))
		}
		if err := c.nodes[other].node.ChangeVoters(context.Background(), nil, st.Voters); !errors.Is(err, ErrConfChange) {
			t.Fatalf("removing all: %v", err)
		}
		c.converge()
	})
}

// TestVoterWhoseFellowsAreAllGone: while a voter was away, all others that it knows were replaced and taken away. It
// finds the present voters, and follows them.
func TestVoterWhoseFellowsAreAllGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 6, nil)
		leader := c.waitVoters(3)
		voters := c.nodes[leader].node.Status().Voters
		away := voters[slices.IndexFunc(voters, func(id ID) bool { return id != leader })]
		others := slices.DeleteFunc(c.ids(), func(id ID) bool { return slices.Contains(voters, id) })
		c.stop(away)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		c.changeVoters(ctx, leader, others[:2], []ID{away})
		old := slices.DeleteFunc(voters, func(id ID) bool { return id == away })
		for _, id := range old { // the policy is to leave the new ones alone
			c.setDown(id, true)
		}
		c.changeVoters(ctx, others[2], others[2:], old)
		c.knowVoters(others, others...)
		for _, id := range old {
			c.stop(id)
		}
		c.waitVoters(3)
		want := c.propose(others[0], "without them").Index
		c.start(away)
		ctx, cancel = context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.nodes[away].node.WaitApplied(ctx, want); err != nil {
			t.Fatalf("%v; it is %v", err, c.nodes[away].node.Status().Role)
		}
	})
}

// TestVoterWhoseLeaderIsNew: while a voter was away another one was replaced, by one that leads now. The upper layer
// of the first knows nothing of it yet, and would not let it in.
func TestVoterWhoseLeaderIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, away, leader, fresh := replacedWhileAway(t)
		c.leadBy(fresh)
		want := c.propose(leader, "led by another").Index
		c.nodes[away].unknown = map[ID]bool{fresh: true, leader: true} // leader too: it may lead again
		c.start(away)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.nodes[away].node.WaitApplied(ctx, want); err != nil {
			t.Fatalf("%v; it is %v", err, c.nodes[away].node.Status().Role)
		}
	})
}

// TestVoterAndAnotherThatIsNew: the third voter ends before the first is back. The two are a quorum: they find each
// other, though the first knows only whom the other one has replaced.
func TestVoterAndAnotherThatIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, away, leader, fresh := replacedWhileAway(t)
		c.stop(leader)
		c.nodes[away].unknown = map[ID]bool{fresh: true}
		c.start(away)
		eventually(t, 20*time.Second, "both know a leader of the two", func() bool {
			return c.nodes[fresh].node.Status().Leader != 0 && c.nodes[away].node.Status().Leader != 0
		})
		c.propose(away, "by the two")
	})
}

// replacedWhileAway is a cluster of three voters of which one is away, and another one was replaced meanwhile.
func replacedWhileAway(t *testing.T) (c *cluster, away, leader, fresh ID) {
	t.Helper()
	c = newCluster(t, 4, nil)
	leader = c.waitVoters(3)
	voters := c.nodes[leader].node.Status().Voters
	others := slices.DeleteFunc(slices.Clone(voters), func(id ID) bool { return id == leader })
	fresh = slices.DeleteFunc(c.ids(), func(id ID) bool { return slices.Contains(voters, id) })[0]
	away, replaced := others[0], others[1]
	c.stop(away)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c.changeVoters(ctx, leader, []ID{fresh}, []ID{replaced})
	c.knowVoters([]ID{fresh}, leader, away, fresh)
	c.setDown(replaced, true)
	c.stop(replaced)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replaced = map[ID]ID{replaced: fresh}
	return c, away, leader, fresh
}

// knowVoters waits until nodes know that a change of voters is over. Before that, their elections need a majority of
// the former voters too.
func (c *cluster) knowVoters(nodes []ID, voters ...ID) {
	c.t.Helper()
	want := slices.Sorted(slices.Values(voters))
	for _, id := range nodes {
		eventually(c.t, 20*time.Second, fmt.Sprintf("node %d knows who votes", id), func() bool {
			st := c.nodes[id].node.Status()
			return !st.Joint && slices.Equal(slices.Sorted(slices.Values(st.Voters)), want)
		})
	}
}

// changeVoters waits for a change of the policy that is under way.
func (c *cluster) changeVoters(ctx context.Context, at ID, add, remove []ID) {
	c.t.Helper()
	for {
		err := c.nodes[at].node.ChangeVoters(ctx, add, remove)
		switch {
		case err == nil:
			return
		case !errors.Is(err, ErrConfChange):
			c.t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			c.t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestChangeOfVotersJudgedByOthers: a leader has judged a change by voters that are not the present ones.
func TestChangeOfVotersJudgedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, nil)
		leader := c.waitVoters(3)
		node := c.nodes[leader].node
		before := node.Status().Voters
		judged := &raftpb.ConfState{Voters: append([]ID{}, before[1:]...)}
		err := node.voters.proposeConf(context.Background(), judged,
			[]*raftpb.ConfChangeSingle{core.Change(raftpb.ConfChangeRemoveNode, before[0])})
		if after := node.Status().Voters; !errors.Is(err, ErrConfChange) || len(after) != len(before) {
			t.Fatalf("%v; voters %v", err, after)
		}
	})
}

// TestALearnerThatDiesDoesNotHoldUpTheVoters adds a voter that is gone: the change ends, and the next one is done.
func TestALearnerThatDiesDoesNotHoldUpTheVoters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, func(c *cluster) { c.tune.LearnerStill = 300 * time.Millisecond })
		leader := c.waitVoters(3)
		st := c.nodes[leader].node.Status()
		var observers []ID
		for id := range c.nodes {
			if !slices.Contains(st.Voters, id) {
				observers = append(observers, id)
			}
		}
		c.stop(observers[0])
		node := c.nodes[leader].node
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := node.ChangeVoters(ctx, observers[:1], nil); !errors.Is(err, ErrConfChange) || ctx.Err() != nil {
			t.Fatalf("adding one that is gone: %v", err)
		}
		if st := node.inside(); len(st.Voters) != 3 || len(st.Learners) != 0 {
			t.Fatalf("voters %v, learners %v", st.Voters, st.Learners)
		}
		if err := node.ChangeVoters(ctx, observers[1:], nil); err != nil {
			t.Fatal(err)
		}
	})
}

// changing is a cluster of three voters, its leader, the node that does not vote, and a voter that it is to replace.
func changing(t *testing.T, adjust func(*cluster)) (c *cluster, leader, fresh, voter ID) {
	t.Helper()
	c = newCluster(t, 4, adjust)
	leader = c.waitVoters(3)
	node := c.nodes[leader].node
	eventually(t, 10*time.Second, "the end of the change before", func() bool {
		node.mu.Lock()
		defer node.mu.Unlock()
		return !node.voters.changing
	})
	voters := node.Status().Voters
	fresh = slices.DeleteFunc(c.ids(), func(id ID) bool { return slices.Contains(voters, id) })[0]
	voter = slices.DeleteFunc(slices.Clone(voters), func(id ID) bool { return id == leader })[0]
	return c, leader, fresh, voter
}

// TestEvictionThatAChangeOfVotersOvertakes: the log has an eviction that the leader has not applied yet. A change of
// voters waits for that, and is refused: it would count on who ends.
func TestEvictionThatAChangeOfVotersOvertakes(t *testing.T) {
	t.Run("of a new voter", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, leader, fresh, voter := changing(t, nil)
			evictedBeforeAChange(t, c, leader, fresh, []ID{fresh}, []ID{voter})
		})
	})
	t.Run("of the other one of two that are to remain", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, leader, _, voter := changing(t, nil)
			voters := c.nodes[leader].node.Status().Voters
			other := slices.DeleteFunc(voters, func(id ID) bool { return id == leader || id == voter })[0]
			evictedBeforeAChange(t, c, leader, other, nil, []ID{voter})
		})
	})
}

func evictedBeforeAChange(t *testing.T, c *cluster, leader, evicted ID, add, remove []ID) {
	t.Helper()
	node, sm := c.nodes[leader].node, c.nodes[leader].sm
	before := node.Status().Voters
	taken, apply := make(chan struct{}), make(chan struct{})
	sm.mu.Lock()
	sm.applying = func(entries []Entry) {
		if !slices.ContainsFunc(entries, func(e Entry) bool { return string(e.Data) == "evict" }) {
			return
		}
		close(taken)
		<-apply
		c.mu.Lock()
		defer c.mu.Unlock()
		c.out[evicted] = true
	}
	sm.mu.Unlock()
	go node.Propose(t.Context(), []byte("evict"), ProposeOptions{}) //nolint:errcheck // it is applied, or the test fails
	<-taken
	changed := make(chan error, 1)
	go func() { changed <- node.ChangeVoters(t.Context(), add, remove) }()
	eventually(t, 10*time.Second, "learners", func() bool { return len(node.inside().Learners) == len(add) })
	select {
	case err := <-changed:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(10 * confPoll):
	}
	close(apply)
	if err := <-changed; !errors.Is(err, ErrConfChange) || !slices.Equal(node.Status().Voters, before) {
		t.Fatalf("%v; voters %v, before %v", err, node.Status().Voters, before)
	}
	c.propose(leader, "goes on")
}

// blockApply makes a node take a command and not finish with it before release is called.
func blockApply(t *testing.T, c *cluster, id ID) (release func()) {
	t.Helper()
	node, sm := c.nodes[id].node, c.nodes[id].sm
	taken, apply := make(chan struct{}), make(chan struct{})
	take := sync.OnceFunc(func() { close(taken) })
	sm.mu.Lock()
	sm.applying = func(entries []Entry) {
		if slices.ContainsFunc(entries, func(e Entry) bool { return string(e.Data) == "slow" }) {
			take()
			<-apply
		}
	}
	sm.mu.Unlock()
	go node.Propose(t.Context(), []byte("slow"), ProposeOptions{}) //nolint:errcheck // it is taken, or the test fails
	<-taken
	return sync.OnceFunc(func() { close(apply) })
}

// proposalsWait reports whether a leader holds proposals back for a change of voters.
func proposalsWait(n *Node) bool {
	answer := make(chan bool)
	n.box.event(func() { answer <- n.loop.holding })
	return <-answer
}

// TestLeaderThatIsNoneAnyMoreDoesNotWaitToChangeVoters: a leader waits for its state to change the voters, and is cut
// off. It does not go on waiting, nor hold proposals, in case it leads again.
func TestLeaderThatIsNoneAnyMoreDoesNotWaitToChangeVoters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leader, _, voter := changing(t, nil)
		node := c.nodes[leader].node
		release := blockApply(t, c, leader)
		defer release()
		changed := make(chan error, 1)
		go func() { changed <- node.voters.changeVoters(t.Context(), nil, []ID{voter}) }()
		eventually(t, 10*time.Second, "proposals wait", func() bool { return proposalsWait(node) })
		c.isolate(leader, true)
		eventually(t, 10*time.Second, "it leads no more", func() bool { return !node.leads() })
		select {
		case err := <-changed:
			if !errors.Is(err, ErrNotLeader) {
				t.Errorf("%v", err)
			}
		case <-time.After(5 * time.Second):
			t.Error("it goes on waiting")
		}
		if proposalsWait(node) {
			t.Error("proposals would wait")
		}
	})
}

// TestStateThatStandsStillDoesNotHoldUpProposals: a leader makes no progress in applying its log, and has to change the
// voters. The other nodes can do without it, and go on.
func TestStateThatStandsStillDoesNotHoldUpProposals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leader, _, voter := changing(t, nil)
		release := blockApply(t, c, leader)
		defer release()
		changed := make(chan error, 1)
		go func() { changed <- c.nodes[leader].node.voters.changeVoters(t.Context(), nil, []ID{voter}) }()
		eventually(t, 10*time.Second, "proposals wait", func() bool { return proposalsWait(c.nodes[leader].node) })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := c.nodes[voter].node.Propose(ctx, []byte("on another node"), ProposeOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-changed; !errors.Is(err, ErrConfChange) {
			t.Errorf("%v", err)
		}
	})
}

// TestRemovedVoterRepeatsItsTime: a node was a voter for a moment and is none any more when its machine fails, with a
// state from before. It follows through all of that, and takes no part by a configuration that is over.
func TestRemovedVoterRepeatsItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leader, fresh, _ := changing(t, func(c *cluster) { c.tune.SyncInterval = time.Hour })
		tn := c.nodes[fresh]
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		c.changeVoters(ctx, leader, []ID{fresh}, nil)
		c.propose(fresh, "as a voter")
		c.changeVoters(ctx, leader, nil, []ID{fresh})
		eventually(t, 10*time.Second, "it follows again", func() bool { return tn.node.Status().Role == RoleObserver })
		if err := tn.node.persistNow(ctx, &raftlog.Batch{}); err != nil { // and its log says so
			t.Fatal(err)
		}
		sm := tn.sm.crash() // as it was synced when the node became a learner
		c.stop(fresh)
		tn.sm = sm
		c.isolate(fresh, true)
		c.start(fresh)
		over, then := &raftpb.ConfState{Voters: c.ids()}, tn.node.loop.hard.GetCommit()
		if tn.node.joinsWith(then-1, then-1, over) || !tn.node.joinsWith(then, then, over) {
			t.Errorf("it had been a voter until %d, and would join before that, or not there", then)
		}
		c.isolate(fresh, false)
		c.propose(fresh, "through it")
		if st := tn.node.Status(); st.Role != RoleObserver || slices.Contains(st.Voters, fresh) {
			t.Fatalf("%+v", st)
		}
	})
}

// TestRemovedVoterDidNotSeeItsRemoval: a voter heard from the others that it votes no more, and has no entry that says
// so. Its machine fails with a state from before. As a voter it would answer for a log that it does not have.
func TestRemovedVoterDidNotSeeItsRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, fresh := repeatingItsTime(t)
		if st := c.nodes[fresh].node.Status(); st.Role != RoleObserver {
			t.Errorf("it is a %s again", st.Role)
		}
		c.isolate(fresh, false)
		c.propose(fresh, "through it")
	})
}

// TestRemovedVoterFailsAgainInItsTime: its machine fails a second time where it has come to that it was a voter. Its
// log on the disk must not say that it is one.
func TestRemovedVoterFailsAgainInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, fresh := repeatingItsTime(t)
		failAgain(t, c, fresh)
		c.isolate(fresh, false)
		c.propose(fresh, "through it")
	})
}

// TestRemovedVoterFailsInASnapshotOfItsTime: a removed voter has taken the state of another node that has not come
// beyond that time either, and its log on the disk shows that snapshot as under way.
func TestRemovedVoterFailsInASnapshotOfItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, removed := repeatingItsTime(t)
		tn := c.nodes[removed]
		c.stop(removed)
		disk, _, err := raftlog.Open(raftlog.Options{Dir: "/raft", Identity: c.identity(removed), FS: tn.disk,
			SegmentBytes: c.tune.SegmentBytes})
		if err != nil {
			t.Fatal(err)
		}
		intent := raftlog.Base{Index: tn.sm.Applied(), Term: 1, Conf: &raftpb.ConfState{Voters: c.ids()}}
		if err := errors.Join(disk.Append(&raftlog.Batch{Intent: &intent}), disk.Close()); err != nil {
			t.Fatal(err)
		}
		c.start(removed)
		c.isolate(removed, false)
		c.propose(removed, "through it")
	})
}

// repeatingItsTime is a cluster where a removed voter that was cut off meanwhile has failed, and applies all entries a
// second time after which it was in raft. It is cut off again.
func repeatingItsTime(t *testing.T) (c *cluster, removed ID) {
	t.Helper()
	c, leader, removed, voter := changing(t, func(c *cluster) { c.tune.SyncInterval = time.Hour })
	tn := c.nodes[removed]
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c.changeVoters(ctx, leader, []ID{removed}, []ID{voter})
	eventually(t, 10*time.Second, "it votes", func() bool { return slices.Contains(tn.node.Status().Voters, removed) })
	c.isolate(removed, true)
	c.changeVoters(ctx, leader, []ID{voter}, []ID{removed})
	c.isolate(removed, false)
	eventually(t, 10*time.Second, "it follows again", func() bool { return tn.node.Status().Role == RoleObserver })
	c.isolate(removed, true)
	failAgain(t, c, removed)
	list, _, _ := c.nodes[leader].node.feed.after(tn.node.feed.next(), maxBatchBytes)
	for last := list[len(list)-1]; last.Conf == nil || !slices.Contains(core.MembersOf(last.Conf), removed); {
		list = list[:len(list)-1]
		last = list[len(list)-1]
	}
	tn.node.feed.push(list, true)
	tn.node.applyQ.add(applyJob{entries: list, session: 1 << 32})
	where := make(chan uint64, 1)
	tn.node.applyQ.add(applyJob{where: where})
	if at := <-where; at != list[len(list)-1].Index {
		t.Fatalf("it has applied %d, not %d", at, list[len(list)-1].Index)
	}
	drawn := make(chan struct{})
	tn.node.box.event(func() { close(drawn) })
	<-drawn
	return c, removed
}

// failAgain has a node's machine fail when it has written what it was to write, with the state that was synced.
func failAgain(t *testing.T, c *cluster, id ID) {
	t.Helper()
	tn := c.nodes[id]
	if err := tn.node.persistNow(t.Context(), &raftlog.Batch{}); err != nil {
		t.Fatal(err)
	}
	sm := tn.sm.crash()
	c.stop(id)
	tn.sm = sm
	c.start(id)
}

// TestVotersChangeUnderLoad: proposals that never cease are held for a change of voters, and none is lost.
func TestVotersChangeUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leader, fresh, voter := changing(t, nil)
		node, sm := c.nodes[leader].node, c.nodes[leader].sm
		sm.mu.Lock()
		sm.applying = func(entries []Entry) { // as long as proposals come there is always one that is not applied yet
			last := entries[len(entries)-1].Index
			for i := 0; i < 20 && node.Status().Commit <= last; i++ {
				<-time.After(5 * time.Millisecond)
			}
		}
		sm.mu.Unlock()
		ctx, stop := context.WithCancel(t.Context())
		var load sync.WaitGroup
		load.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				load.Go(func() {
					if _, err := node.Propose(t.Context(), fmt.Append(nil, k), ProposeOptions{}); err != nil {
						t.Error(err)
					}
				})
				<-time.After(time.Millisecond)
			}
		})
		within, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c.changeVoters(within, leader, []ID{fresh}, []ID{voter})
		stop()
		load.Wait()
	})
}

// TestNobodyHandsOverToTheEvicted: the only voter is to hand over its vote to a node that was evicted meanwhile. That
// one ends, and there would be no voter any more.
func TestNobodyHandsOverToTheEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		leader := c.waitVoters(1)
		other := 3 - leader
		c.mu.Lock()
		c.out[other] = true
		c.mu.Unlock()
		node := c.nodes[leader].node
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		err := node.ChangeVoters(ctx, []ID{other}, []ID{leader})
		if st := node.inside(); !errors.Is(err, ErrConfChange) || !slices.Equal(st.Voters, []ID{leader}) ||
			len(st.Learners) > 0 {
			t.Fatalf("%v; voters %v, learners %v", err, st.Voters, st.Learners)
		}
		c.propose(leader, "goes on")
	})
}

// TestLearnerThatALeaderHasLeft: the leader that made a learner loses its leadership before the learner votes. The next
// leader takes the learner out again, also if it was evicted: otherwise each such learner would stay in the
// configuration for ever, which holds only a limited number.
func TestLearnerThatALeaderHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, nil)
		leader := c.waitVoters(3)
		node := c.nodes[leader].node
		keepOut := func(on bool) { // the policy, meanwhile
			node.mu.Lock()
			defer node.mu.Unlock()
			node.voters.changing = on
		}
		observers := slices.DeleteFunc(c.ids(), func(id ID) bool { return slices.Contains(node.Status().Voters, id) })
		for i, id := range observers {
			keepOut(true)
			learner := []*raftpb.ConfChangeSingle{core.Change(raftpb.ConfChangeAddLearnerNode, id)}
			if err := node.voters.proposeConf(t.Context(), node.conf(), learner); err != nil {
				t.Fatal(err)
			}
			if evicted := i == 0; evicted {
				c.mu.Lock()
				c.out[id] = true
				c.mu.Unlock()
				c.stop(id)
			}
			keepOut(false)
			eventually(t, 5*time.Second, fmt.Sprintf("learner %d of %v is out", id, observers), func() bool {
				return len(node.inside().Learners) == 0
			})
		}
		if st := node.Status(); len(st.Voters) != 3 {
			t.Fatalf("voters %v", st.Voters)
		}
	})
}

// TestProposalsSurviveLeaderChangesExactlyOnce kills leaders under load: each command is answered with its one place.
func TestProposalsSurviveLeaderChangesExactlyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, func(c *cluster) { c.tune.LeaderLost = 10 * time.Second })
		c.waitVoters(3)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		var mu sync.Mutex
		acked := map[string]any{}
		for w := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond): // time passes only while everybody waits
					}
					command := fmt.Sprint("w", w, ".", i)
					for { // until a running node has answered
						n := c.runningNode(ID(1 + (w+i)%5))
						if n == nil {
							i++
							break
						}
						p, err := n.Propose(context.Background(), []byte(command), ProposeOptions{})
						if errors.Is(err, ErrClosed) {
							continue // its node was killed: the same bytes again, elsewhere
						}
						if err != nil {
							t.Errorf("%s: %v", command, err)
							return
						}
						mu.Lock()
						acked[command] = p.Result
						mu.Unlock()
						break
					}
				}
			})
		}
		for range 4 {
			leader := c.leader()
			index := c.nodes[leader].sm.Applied()
			c.stop(leader)
			eventually(t, 10*time.Second, "others go on", func() bool {
				for _, tn := range c.running() {
					if tn.sm.Applied() < index+50 {
						return false
					}
				}
				return true
			})
			c.start(leader)
		}
		close(stop)
		wg.Wait()
		c.converge()
		final := c.nodes[1].sm.state()
		for command, place := range acked {
			if final.Results[command] != place {
				t.Fatalf("command %s: place %d, acknowledged %v", command, final.Results[command], place)
			}
		}
		t.Logf("%d commands acknowledged, %d proposed again", len(acked), final.Repeated)
	})
}

// TestObserverThatMissedItsPromotionJoins restarts a node between having applied its own promotion and having begun a
// raft log: what it applied says that it is a voter, its log does not.
func TestObserverThatMissedItsPromotionJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		leader := c.waitVoters(3)
		c.propose(leader, "a")
		c.converge()
		var victim ID
		for id := range c.nodes {
			if id != leader {
				victim = id
			}
		}
		c.stop(victim)
		tn := c.nodes[victim]
		tn.disk = simfs.New()
		if err := Create(c.config(tn), CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.start(victim)
		eventually(t, 10*time.Second, "the node is a raft member again", func() bool {
			return tn.node.Status().Role == RoleFollower
		})
		c.propose(victim, "b")
		c.converge()
	})
}

// TestRestartOfAllKeepsEverything stops all nodes at once, by power loss, several times.
func TestRestartOfAllKeepsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(5, 5))
		c := newCluster(t, 5, func(c *cluster) { c.tune.TailEntries = 40 })
		c.waitVoters(3)
		acked := 0
		for round := range 4 {
			for i := range 60 {
				c.propose(ID(1+i%5), fmt.Sprint("r", round, ".", i))
				acked++
			}
			for id := range c.nodes {
				c.crash(id, rng.IntN)
			}
			for id := range c.nodes {
				c.start(id)
			}
			c.propose(ID(1+round), fmt.Sprint("back", round))
			acked++
			c.converge()
		}
		if got := c.nodes[2].sm.state().Count; int(got) != acked {
			t.Fatalf("%d commands, %d acknowledged", got, acked)
		}
	})
}

// TestObserverSwitchesVoters stops the voter an observer follows.
func TestObserverSwitchesVoters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, func(c *cluster) { c.tune.DeadVoterAfter = time.Hour })
		c.waitVoters(3)
		var observer *testNode
		for _, tn := range c.running() {
			if tn.node.Status().Role == RoleObserver {
				observer = tn
			}
		}
		var first ID
		eventually(t, 20*time.Second, "the observer follows", func() bool {
			first = observer.node.inside().Following
			return first != 0
		})
		c.stop(first)
		for i := range 5 {
			c.propose(observer.id, fmt.Sprint("o", i))
		}
		var second ID // none for a moment, if a late machine lets the observer give up that one too
		eventually(t, 20*time.Second, "the observer follows another one", func() bool {
			second = observer.node.inside().Following
			return second != first && second != 0
		})
		c.isolate(second, true) // alive, but cut off from all
		c.start(first)
		for i := range 5 {
			c.propose(observer.id, fmt.Sprint("p", i))
		}
	})
}

// TestIdleNodeUsesLittleCPU measures a cluster of 3 voters and 2 observers that does nothing, at the timers of real
// use.
func TestIdleNodeUsesLittleCPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if testing.Short() {
			t.Skip("takes 5 s")
		}
		c := newCluster(t, 5, func(c *cluster) { c.tune = Tuning{PolicyInterval: 50 * time.Millisecond} })
		c.waitVoters(3)
		c.propose(1, "x")
		before := cpuTime(t)
		<-time.After(5 * time.Second)
		share := (cpuTime(t) - before).Seconds() / 5 / 5 * 100
		t.Logf("idle: %.2f %% of a core per node", share)
		if share > 1 {
			t.Errorf("%.2f %% of a core per idle node", share)
		}
	})
}

func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A node whose store was replaced learns that from the peers that refuse it. It does not say so of peers that refuse it
// for other reasons, or that take it again.
func TestRefusalOfAnotherStoreIsRemembered(t *testing.T) {
	const self, peer = ID(1<<32 | 7), ID(2<<32 | 9)
	far := newNode(Config{Identity: Identity{ID: peer, Cluster: [16]byte{1}}})
	var known atomic.Bool
	dialFar := func(context.Context, ID) (net.Conn, error) {
		a, b := net.Pipe()
		go func() {
			defer b.Close()
			_, _ = far.greeter.accept(b, func(ID) bool { return known.Load() })
		}()
		return a, nil
	}
	near := newNode(Config{Identity: Identity{ID: self, Cluster: [16]byte{1}}, Dial: dialFar})
	dial := func(want ...ID) {
		t.Helper()
		if conn, err := near.greeter.dial(t.Context(), peer, purposePeer); err == nil {
			conn.Close()
		}
		if got := near.Status().RefusedBy; !slices.Equal(got, want) {
			t.Errorf("refused by %x, want %x", got, want)
		}
	}
	dial(peer)
	known.Store(true)
	dial()
	known.Store(false)
	dial(peer)
	far.greeter.cfg.Identity.Generation++
	dial()
}
