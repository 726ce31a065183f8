package consensus

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

// TestObserversPassOnNoHearsay: an observer that follows another observer names no leader, so that a ring of observers
// does not go on believing in one.
func TestObserversPassOnNoHearsay(t *testing.T) {
	n := newNode(Config{Identity: Identity{ID: 7}})
	defer n.cancel(ErrClosed)
	n.state.conf, n.state.leader, n.state.role = &raftpb.ConfState{Voters: []uint64{1, 2, 3}}, 1, RoleObserver
	for _, c := range []struct {
		follows *followTarget
		want    ID
	}{{nil, 0}, {&followTarget{peer: 2}, 1}, {&followTarget{peer: 8}, 0}} {
		news := n.state.changed
		if !n.observer.setFollower(c.follows) {
			t.Fatal("an observer could not follow")
		}
		n.state.leader = 1
		if got := n.clusterState().leader; got != c.want {
			t.Errorf("following %+v it speaks of leader %x, want %x", c.follows, got, c.want)
		}
		select {
		case <-news:
		default:
			t.Errorf("following %+v: those who follow it were not told", c.follows)
		}
	}
	n.state.role = RoleFollower
	if got := n.clusterState().leader; got != 1 {
		t.Errorf("a voter speaks of leader %x", got)
	}
}

// TestReportsFollowTheRequest: something is reported while a follow stream is being begun. The request still is the
// stream's first frame.
func TestReportsFollowTheRequest(t *testing.T) {
	n := newNode(Config{Identity: Identity{ID: 7}})
	defer n.cancel(ErrClosed)
	n.feed.reset(raftlog.Base{})
	conn, far := net.Pipe()
	target, peer := &followTarget{peer: 2, stream: newStream(conn, 2)}, newStream(far, 7)
	defer target.stream.close()
	defer peer.close()
	n.state.role, n.state.leader, n.reporter.nodes[7] = RoleObserver, 1, &nodeProgress{fresh: true}
	n.observer.setFollower(target)
	if n.reporter.passOn(); !n.reporter.nodes[7].fresh {
		t.Error("reported to a peer that has not been asked for entries")
	}
	n.observer.begin(target, 5)
	if n.reporter.passOn(); n.reporter.nodes[7].fresh {
		t.Error("not reported afterwards")
	}
	if kind, _, err := peer.read(); kind != frameFollow || err != nil {
		t.Errorf("the first frame is of type %d, %v", kind, err)
	}
}

// TestBarrierKnowsWhoIsUpAtItsIndex: a leader whose state machine is behind does not choose the nodes of a barrier
// before it has applied the index. Time is virtual: the barrier's 50 ms are over when nothing else is to be done.
func TestBarrierKnowsWhoIsUpAtItsIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n *Node
		n = newNode(Config{Identity: Identity{ID: 1}, Members: func() []Member {
			members := []Member{{ID: 1, Up: true}}
			if n.Status().Applied >= 9 {
				members = append(members, Member{ID: 2, Up: true}) // booted at 9
			}
			return members
		}})
		defer n.cancel(ErrClosed)
		n.feed.reset(raftlog.Base{})
		n.mu.Lock()
		n.state.ledSince = time.Now()
		n.state.leader, n.state.role, n.state.applied = 1, RoleLeader, 8
		n.reporter.nodes[1] = &nodeProgress{Progress: Progress{Visible: 10}}
		n.mu.Unlock()
		answer := make(chan []ID, 1)
		go func() {
			behind, err := n.reporter.awaitVisible(context.Background(), 10, 50*time.Millisecond, barrierAllUp, nil)
			if err != nil {
				t.Error(err)
			}
			answer <- behind
		}()
		synctest.Wait()
		if len(answer) > 0 {
			t.Fatal("answered before the index was applied")
		}
		n.mu.Lock()
		n.setAppliedLocked(10)
		n.mu.Unlock()
		if behind := <-answer; len(behind) != 1 || behind[0] != 2 {
			t.Fatalf("behind %v, want node 2", behind)
		}
	})
}

// TestFollowsLearnersOfOldVoters: a node whose state is old may know no voter that still lives, but learners that
// became voters.
func TestFollowsLearnersOfOldVoters(t *testing.T) {
	n := newNode(Config{Identity: Identity{ID: 7}, Peers: func() []ID { return []ID{1, 9} }})
	defer n.cancel(ErrClosed)
	n.state.conf = &raftpb.ConfState{Voters: []uint64{1}, Learners: []uint64{2, 3}}
	if ids := n.observer.followables(0); len(ids) != 1 || ids[0] != 1 {
		t.Fatalf("follows %d, want the voter", ids)
	}
	seen := map[ID]bool{}
	for failures := 3; failures < 11; failures++ {
		seen[n.observer.followables(failures)[0]] = true
	}
	for _, id := range []ID{1, 2, 3, 9} {
		if !seen[id] {
			t.Errorf("never tried %d", id)
		}
	}
}

// TestFeedRefusesAGap: a follower takes entries that follow its last, skips entries that it has, and takes nothing that
// comes after a gap.
func TestFeedRefusesAGap(t *testing.T) {
	f := newFeed(raftlog.Base{Index: 10, Term: 1})
	entries := func(from, to uint64) (list []core.Committed) {
		for i := from; i <= to; i++ {
			list = append(list, core.Committed{Index: i, Term: 1})
		}
		return list
	}
	for _, step := range []struct {
		from, to uint64
		taken    bool
		next     uint64
	}{{11, 12, true, 13}, {14, 15, false, 13}, {12, 13, true, 14}, {9, 10, true, 14}, {20, 20, false, 14},
		{14, 14, true, 15}} {
		if taken := f.push(entries(step.from, step.to), true); taken != step.taken || f.next() != step.next {
			t.Fatalf("entries %d to %d: taken %v, next is %d; wanted %v and %d", step.from, step.to, taken, f.next(), step.taken,
				step.next)
		}
	}
	if list, _, ok := f.after(11, 1<<20); !ok || len(list) != 4 || list[3].Index != 14 {
		t.Fatalf("the feed has %v", list)
	}
}

// TestNewLeaderAwaitsObservers: an observer may still follow the leader before, from which it has heard nothing for a
// moment. The new leader does not take it for dead because it has no connection of it yet, and does so with a voter.
func TestNewLeaderAwaitsObservers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(Config{Identity: Identity{ID: 1}})
		defer n.cancel(ErrClosed)
		n.state.conf = &raftpb.ConfState{Voters: []uint64{1, 2, 3}}
		n.state.ledSince = time.Now()
		stale := func(id ID) time.Duration {
			began := time.Now()
			for b := (&barrier{index: 9, pending: map[ID]struct{}{id: {}}}); !n.reporter.allStale(b); {
				<-time.After(10 * time.Millisecond)
			}
			return time.Since(began)
		}
		if took := stale(2); took > n.tune.StaleAfter/2 {
			t.Errorf("a voter without a connection is waited for for %v", took)
		}
		n.state.ledSince = time.Now()
		if took := stale(7); took < n.tune.StaleAfter {
			t.Errorf("an observer is waited for for %v", took)
		}
		n.reporter.nodes[7] = &nodeProgress{Progress: Progress{LastSeen: time.Now()}}
		if took := stale(7); took > n.tune.StaleAfter/2 {
			t.Errorf("an observer that was here and is gone is waited for for %v", took)
		}
	})
}

// TestObserverAnswersTheLeaderItself: the voter that is followed sends entries, and what it sends to the leader is
// lost. The leader asks for progress, and gets it from the observer itself: or it would take that for dead.
func TestObserverAnswersTheLeaderItself(t *testing.T) {
	n := newNode(Config{Identity: Identity{ID: 7}})
	defer n.cancel(ErrClosed)
	ours, far := net.Pipe()
	l := &link{n: n, peer: 1, stream: newStream(ours, 1)}
	defer l.stream.close()
	leader := newStream(far, 7)
	defer leader.close()
	voter, _ := net.Pipe() // passes nothing on
	followed := newStream(voter, 2)
	defer followed.close()
	n.state.role, n.state.leader, n.state.visible, n.state.links[1] = RoleObserver, 1, 41, l
	n.observer.setFollower(&followTarget{peer: 2, stream: followed, begun: true, wanted: make(chan struct{}, 1)})
	n.mu.Lock()
	n.state.leader = 1
	n.mu.Unlock()
	if err := l.handle(frameWant, appendNumber(nil, 41)); err != nil {
		t.Fatal(err)
	}
	kind, body, err := leader.read()
	if err != nil || kind != frameReports {
		t.Fatalf("a frame of type %d, %v", kind, err)
	}
	list, err := decode[reportList](body)
	if err != nil || len(list) != 1 || list[0].id != 7 || list[0].visible != 41 {
		t.Errorf("reported %+v, %v", list, err)
	}
}
