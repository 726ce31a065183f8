package consensus

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// Two nodes, one voter, and the voter's directory is put back to an older copy: the observer, which has more, does
// not follow it, whether it comes before or after the voter has made other entries at its index. Both say so.
func TestVoterPutBackIsNotFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, more := range []int{0, 40} {
			c := newCluster(t, 2, nil)
			voter := c.waitVoters(1)
			observer := ID(3) - voter
			c.propose(voter, "a")
			c.converge()
			c.stop(voter)
			disk, sm := c.nodes[voter].disk.PowerLoss(func(int) int { return 0 }), c.nodes[voter].sm.crash()
			c.start(voter)
			for i := range 20 {
				c.propose(voter, fmt.Sprint("lost", i))
			}
			c.converge()
			c.stop(observer)
			c.stop(voter)
			c.nodes[voter].disk, c.nodes[voter].sm = disk, sm
			c.start(voter)
			for i := range more {
				c.propose(voter, fmt.Sprint("other", i))
			}
			had := c.nodes[observer].sm.Applied()
			c.start(observer)
			for _, id := range []ID{voter, observer} {
				eventually(t, 20*time.Second, "the divergence is told", func() bool {
					return strings.Contains(c.nodes[id].node.Status().Diverged, "older copy")
				})
			}
			if got := c.nodes[observer].sm.state(); got.Index != had || got.Results["other0"] != 0 {
				t.Fatalf("the observer took entries of another history: at %d, was at %d", got.Index, had)
			}
			c.propose(voter, "goes on")
		}
	})
}

// The same after both have been started again: neither knows an old digest any more, and the voter has gone beyond
// the observer's index.
func TestVoterPutBackIsNotFollowedAfterRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		voter := c.waitVoters(1)
		observer := ID(3) - voter
		c.propose(voter, "a")
		c.converge()
		c.stop(voter)
		disk, sm := c.nodes[voter].disk.PowerLoss(func(int) int { return 0 }), c.nodes[voter].sm.crash()
		c.start(voter)
		for i := range 5 {
			c.propose(voter, fmt.Sprint("lost", i))
		}
		c.converge()
		c.stop(observer)
		c.stop(voter)
		c.nodes[voter].disk, c.nodes[voter].sm = disk, sm
		c.start(voter)
		for i := range 40 {
			c.propose(voter, fmt.Sprint("other", i))
		}
		had := c.nodes[observer].sm.Applied()
		for range 2 {
			c.stop(voter)
			for _, id := range []ID{voter, observer} {
				c.nodes[id].sm = c.nodes[id].sm.crash() // it knows only the digest of its last index
				c.start(id)
			}
			for _, id := range []ID{voter, observer} {
				eventually(t, 20*time.Second, "the divergence is told", func() bool {
					return strings.Contains(c.nodes[id].node.Status().Diverged, "older copy")
				})
			}
			if got := c.nodes[observer].sm.state(); got.Index != had || got.Results["other0"] != 0 {
				t.Fatalf("the observer took entries of another history: at %d, was at %d", got.Index, had)
			}
			c.stop(observer)
		}
	})
}

// What was found about a state that has been replaced, or a peer that was evicted, is forgotten. A state that is
// known to be wrong says nothing about histories.
func TestDivergenceIsForgotten(t *testing.T) {
	peers, wrong := []ID{2, 3}, error(nil)
	n := newNode(Config{
		Identity: Identity{ID: 1},
		Peers:    func() []ID { return peers },
		Wrong:    func() error { return wrong },
		Digest:   func(uint64) ([16]byte, bool) { return [16]byte{1}, true },
	})
	defer n.cancel(ErrClosed)
	n.feed.reset(raftlog.Base{})
	n.state.conf = &raftpb.ConfState{Voters: []uint64{2, 3}}
	other := proof{applied: 7, known: true, digest: [16]byte{2}}
	if _, known := n.histories.digestAt(7); !known || n.histories.divergenceOfDigest(4, other) == "" {
		t.Fatal("another state is the same")
	}
	n.histories.note(2, "replaced")
	if n.Status().Diverged == "" {
		t.Fatal("not said")
	}
	if n.replacer.done(); n.Status().Diverged != "" {
		t.Fatal("said of the state before")
	}
	n.histories.note(4, "not known here")
	n.Status()
	if n.Status().Diverged == "" {
		t.Fatal("a peer that was never known is forgotten")
	}
	peers = append(peers, 4)
	n.Status()
	if peers = peers[:2]; n.Status().Diverged != "" {
		t.Fatal("said of an evicted peer")
	}
	for _, set := range []func(){
		func() { n.replacer.wrong = ErrStateWrong },
		func() { n.replacer.wrong, wrong = nil, ErrStateWrong },
	} {
		set()
		if _, known := n.histories.digestAt(7); known || n.histories.divergenceOfDigest(4, other) != "" {
			t.Fatal("a wrong state is compared")
		}
	}
}

// A follower's last entry is compared with this node's of the same index by term and by time, each if both know it,
// and by nothing at an index that this node's log does not reach.
func TestProofIsComparedWithTheLog(t *testing.T) {
	n := newNode(Config{Identity: Identity{ID: 1}})
	defer n.cancel(ErrClosed)
	n.feed.reset(raftlog.Base{Index: 7, Term: 3, Time: 500})
	for _, c := range []struct {
		proof   proof
		differs bool
	}{
		{proof{applied: 7, term: 3, timeNanos: 500}, false},
		{proof{applied: 7, term: 2, timeNanos: 500}, true},
		{proof{applied: 7, term: 3, timeNanos: 501}, true},
		{proof{applied: 7, timeNanos: 501}, true},
		{proof{applied: 7, term: 2}, true},
		{proof{applied: 7}, false},
		{proof{applied: 6, term: 2, timeNanos: 400}, false},
		{proof{applied: 8, term: 2, timeNanos: 400}, false},
	} {
		if why := n.histories.divergenceOfLog(2, c.proof); (why != "") != c.differs {
			t.Errorf("%+v: %q", c.proof, why)
		}
	}
}
