package consensus

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
)

// TestResultAfterASnapshotSaysSo: a proposal was under way when the state was replaced by a snapshot, which may hold
// it. What a repetition of it is answered with is not the result of the first time.
func TestResultAfterASnapshotSaysSo(t *testing.T) {
	n := newNode(Config{Identity: Identity{ID: 1}})
	defer n.cancel(ErrClosed)
	n.state.leader = 1
	for _, restored := range []bool{false, true} {
		w, err := n.proposals.add([]byte("command"), ProposeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.proposals.dispatch(w)
		if restored {
			n.showRestored(10)
		}
		n.showApplied([]Entry{{Index: 11}}, []core.Proposal{w.p}, []any{nil})
		if out := <-w.done; out.err != nil || out.Skipped != restored {
			t.Errorf("restored %v: skipped %v, %v", restored, out.Skipped, out.err)
		}
	}
}

// TestPatientProposalWaitsForALeader: a program closes a file in the moment after the link of its node, which led, is
// back. The node knows by then that it has no quorum. A patient proposal waits until the node hears of a leader;
// without one it ends in its time.
func TestPatientProposalWaitsForALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(c *cluster) {
			c.tune.LeaderLost, c.tune.LeaderAwaited = 300*time.Millisecond, 20*time.Second
		})
		cut := c.waitVoters(3)
		n := c.runningNode(cut)
		c.isolate(cut, true)
		eventually(t, 20*time.Second, "the leader that is cut off knows it", func() bool { return n.Status().NoQuorum })
		if _, err := n.Propose(context.Background(), []byte("x"), ProposeOptions{}); !errors.Is(err, ErrNoQuorum) {
			t.Fatalf("a change without a leader: %v", err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := n.Propose(context.Background(), []byte("y"), ProposeOptions{Patient: true})
			done <- err
		}()
		eventually(t, 10*time.Second, "it waits", func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return len(n.proposals.waiting) > 0 || len(done) > 0
		})
		c.isolate(cut, false)
		if err := <-done; err != nil {
			t.Errorf("a patient change when the link is back: %v", err)
		}
		c.converge()
	})
}

// cutOff is a voter that was cut off for so long that it refuses changes.
type cutOff struct {
	*cluster
	n      *Node
	others []ID
}

func newCutOff(t *testing.T) *cutOff {
	t.Helper()
	c := newCluster(t, 3, func(c *cluster) { c.tune.LeaderLost = 2 * time.Second })
	cut := c.waitVoters(3)
	o := &cutOff{c, c.runningNode(cut), slices.DeleteFunc(c.ids(), func(id ID) bool { return id == cut })}
	c.isolate(cut, true)
	eventually(t, 20*time.Second, "the leader that is cut off knows it", func() bool { return o.n.Status().NoQuorum })
	if err := <-o.change(); !errors.Is(err, ErrNoQuorum) {
		t.Fatalf("a change without a leader: %v", err)
	}
	return o
}

// reach lets it reach the others, which do not reach it: it hears of no leader. It waits for the connections.
func (o *cutOff) reach() {
	o.t.Helper()
	for _, other := range o.others {
		o.setCut(o.n.id, other, false)
		signal(o.n.link(other).kick)
	}
	eventually(o.t, 5*time.Second, "the others are reached", func() bool {
		return o.n.link(o.others[0]).isUp() && o.n.link(o.others[1]).isUp()
	})
	synctest.Wait()
}

// change proposes; the channel gets the outcome.
func (o *cutOff) change() <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := o.n.Propose(context.Background(), []byte("x"), ProposeOptions{})
		done <- err
	}()
	return done
}

// TestChangeWaitsOnceAMajorityIsReached: the link of a node is back, and a program makes a directory before the node
// has heard of the leader. The program waits for the leader, and so does one that wants to read.
func TestChangeWaitsOnceAMajorityIsReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newCutOff(t)
		o.reach()
		done, read := o.change(), make(chan error, 1)
		go func() {
			_, err := o.n.ReadBarrier(context.Background())
			read <- err
		}()
		synctest.Wait()
		o.isolate(o.n.id, false)
		if err := errors.Join(<-done, <-read); err != nil {
			t.Errorf("before the leader is known: %v", err)
		}
		o.converge()
	})
}

// TestChangeWaitsOnceALineIsUp: the machine says that its line is up, and no peer is reached yet. A line that comes and
// goes gives no new hope.
func TestChangeWaitsOnceALineIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newCutOff(t)
		began, most := time.Now(), o.n.tune.electionMax()
		LineUp(o.n)
		<-time.After(most / 2)
		LineUp(o.n)
		err := <-o.change()
		if took := time.Since(began); !errors.Is(err, ErrNoQuorum) || took < most*7/8 || took > most*9/8 {
			t.Errorf("no peer is reached: %v after %v, want %v", err, took, most)
		}
		<-time.After(2 * most)
		LineUp(o.n)
		done := o.change()
		synctest.Wait()
		o.isolate(o.n.id, false)
		if err := <-done; err != nil {
			t.Errorf("before a peer is reached: %v", err)
		}
		o.converge()
	})
}

// TestHopeForALeaderEnds: most voters are reached, and no leader is heard of. Changes wait as long as an election takes
// at most, and fail at once then. Connections that break meanwhile, and come up again, make that no longer.
func TestHopeForALeaderEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newCutOff(t)
		o.reach()
		began, most := time.Now(), o.n.tune.electionMax()
		first := o.change()
		<-time.After(most / 2)
		for _, other := range o.others {
			o.cutWay(o.n.id, other)
		}
		o.reach()
		second := o.change()
		for _, done := range []<-chan error{first, second} {
			err := <-done
			took := time.Since(began)
			if !errors.Is(err, ErrNoQuorum) || errors.Is(err, ErrUnknown) || took < most*7/8 || took > most*9/8 {
				t.Errorf("no leader is heard of: %v, %v after the first connection, want %v", err, took, most)
			}
		}
		began = time.Now()
		if err := <-o.change(); !errors.Is(err, ErrNoQuorum) || time.Since(began) > most/8 {
			t.Errorf("hope is over: %v after %v", err, time.Since(began))
		}
		o.isolate(o.n.id, false)
		o.converge()
	})
}

// TestChangeOfAnObserverWaitsForItsVoter: the link of an observer is back, and the voter that it follows knows no
// leader yet.
func TestChangeOfAnObserverWaitsForItsVoter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Votes are asked for by those that hear of each other, in a few ticks.
		c := newCluster(t, 4, func(c *cluster) { c.tune.LeaderLost, c.tune.ElectionTicks = 2*time.Second, 100 })
		leader := c.waitVoters(3)
		voters := c.nodes[leader].node.Status().Voters
		cut := slices.DeleteFunc(c.ids(), func(id ID) bool { return slices.Contains(voters, id) })[0]
		n := c.runningNode(cut)
		c.knowVoters([]ID{cut}, voters...)
		for _, id := range voters[1:] {
			c.stop(id)
		}
		c.isolate(cut, true)
		eventually(t, 20*time.Second, "it knows that there is no leader", func() bool { return n.Status().NoQuorum })
		<-time.After(n.tune.electionMax()) // one that comes and goes does not count
		c.setCut(cut, voters[0], false)
		eventually(t, 5*time.Second, "it follows the voter", func() bool { return n.inside().Following == voters[0] })
		synctest.Wait()
		done := make(chan error, 1)
		go func() {
			_, err := n.Propose(context.Background(), []byte("x"), ProposeOptions{})
			done <- err
		}()
		synctest.Wait()
		c.isolate(cut, false)
		c.start(voters[1])
		if err := <-done; err != nil {
			t.Errorf("before the voter knows the leader: %v", err)
		}
		c.converge()
	})
}

// TestPatienceEnds: no leader comes, and a patient proposal ends with ErrNoQuorum in its time, neither at once nor
// later.
func TestPatienceEnds(t *testing.T) {
	n := newNode(Config{Identity: Identity{ID: 1}})
	defer n.cancel(ErrClosed)
	n.state.noQuorum, n.state.lostSince = true, time.Now()
	w, err := n.proposals.add([]byte("y"), ProposeOptions{Patient: true})
	if err != nil {
		t.Fatal(err)
	}
	n.proposals.tend(w.born.Add(n.tune.LeaderAwaited - time.Second))
	if len(w.done) > 0 {
		t.Fatal("it did not wait")
	}
	n.proposals.tend(w.born.Add(n.tune.LeaderAwaited))
	if out := <-w.done; !errors.Is(out.err, ErrNoQuorum) || errors.Is(out.err, ErrUnknown) {
		t.Errorf("its end: %v", out.err)
	}
}
