package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
)

// Await polls cond until it is true; the test fails with what it returned last when the time is over.
func (c *Cluster) Await(limit time.Duration, what string, cond func() (bool, string)) {
	c.TB.Helper()
	deadline := time.After(limit)
	for {
		ok, why := cond()
		if ok {
			return
		}
		select {
		case <-deadline:
			c.TB.Fatalf("%s: not within %v: %s", what, limit, why)
		case <-time.After(pollInterval):
		}
	}
}

// AwaitUp waits until all running nodes see each of the given ones up, and as many voters as there should be.
func (c *Cluster) AwaitUp(nodes ...*Node) {
	c.TB.Helper()
	c.Await(c.patient(startTimeout), "nodes up", func() (bool, string) {
		for _, seer := range c.running() {
			st, err := seer.tryStatus()
			if err != nil {
				return false, fmt.Sprintf("%s: %v", seer.Name(), err)
			}
			for _, n := range nodes {
				if got := stateOf(st, n); got != "up" {
					return false, fmt.Sprintf("%s sees %s %s", seer.Name(), n.Name(), got)
				}
			}
			if want := wantVoters(len(st.Nodes)); len(st.Voters) < want {
				return false, fmt.Sprintf("%s sees %d voters, want %d", seer.Name(), len(st.Voters), want)
			}
		}
		return true, ""
	})
}

// wantVoters is how many of n nodes vote.
func wantVoters(n int) int {
	switch {
	case n < 3:
		return 1
	case n < 7:
		return 3
	}
	return 5
}

func (n *Node) tryStatus() (admin.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), n.cluster.patient(5*time.Second))
	defer cancel()
	return n.Admin().Status(ctx)
}

func stateOf(st admin.Status, n *Node) string {
	for _, have := range st.Nodes {
		if have.Name == n.Name() {
			return have.State
		}
	}
	return "unknown"
}

func (c *Cluster) running() (out []*Node) {
	for _, n := range c.Nodes {
		if n.Running() {
			out = append(out, n)
		}
	}
	return out
}

// AwaitState waits until seer's status shows n in a state.
func (c *Cluster) AwaitState(limit time.Duration, seer, n *Node, state string) {
	c.TB.Helper()
	c.Await(limit, fmt.Sprintf("%s sees %s %s", seer.Name(), n.Name(), state), func() (bool, string) {
		st, err := seer.tryStatus()
		if err != nil {
			return false, err.Error()
		}
		got := stateOf(st, n)
		return got == state, got
	})
}

// AwaitNothingOwed waits until no node is owed anything, as every running node sees it.
func (c *Cluster) AwaitNothingOwed(limit time.Duration) {
	c.TB.Helper()
	c.Await(limit, "nothing owed", func() (bool, string) {
		for _, seer := range c.running() {
			st, err := seer.tryStatus()
			if err != nil {
				return false, err.Error()
			}
			for _, n := range st.Nodes {
				if n.OwedCount > 0 {
					return false, fmt.Sprintf("%s: %s is owed %d contents (%s)", seer.Name(), n.Name, n.OwedCount, n.OwedReason)
				}
			}
		}
		return true, ""
	})
}

// AwaitAgreement waits until all running nodes show the same namespace digest at the same index.
func (c *Cluster) AwaitAgreement(limit time.Duration) {
	c.TB.Helper()
	c.Await(limit, "same digest at the same index", func() (bool, string) {
		var first admin.Status
		for i, n := range c.running() {
			st, err := n.tryStatus()
			if err != nil {
				return false, err.Error()
			}
			if i == 0 {
				first = st
			}
			if st.DigestIndex != first.DigestIndex || st.Digest != first.Digest {
				return false, fmt.Sprintf("%s at %d, %s at %d", first.Name, first.DigestIndex, st.Name, st.DigestIndex)
			}
		}
		return true, ""
	})
}
