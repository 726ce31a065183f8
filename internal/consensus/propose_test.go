package consensus

import (
	"context"
	"errors"
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
