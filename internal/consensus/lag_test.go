package consensus

import (
	"context"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
)

// TestObserverLeavesAVoterThatLags: the disk of a voter stands still, so that it learns of no commit. It still speaks
// with everybody. An observer that follows it goes to another voter when a barrier waits for it.
func TestObserverLeavesAVoterThatLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 6, nil)
		leader := c.waitVoters(3)
		var observer, voter ID
		looks := 0
		eventually(t, 30*time.Second, "an observer that follows another voter than the leader", func() bool {
			leader, looks = c.leader(), looks+1
			voters := c.nodes[leader].node.Status().Voters
			for _, tn := range c.running() {
				st := tn.node.inside()
				switch {
				case st.Role != RoleObserver || st.Following == 0:
				case st.Following != leader && slices.Contains(voters, st.Following):
					observer, voter = tn.id, st.Following
				case looks%100 == 0:
					tn.node.leaveFollowed() // it takes another
				}
			}
			return observer != 0
		})
		free := make(chan struct{})
		t.Cleanup(func() { close(free) })
		c.nodes[voter].disk.Fail(func(op simfs.Op, _ string) error {
			if op == simfs.OpSync {
				<-free
			}
			return nil
		})
		for _, command := range []string{"stands", "again"} {
			p, behind, err := proposeVisible(c.nodes[leader].node, command, 15*time.Second, observer)
			if err != nil || len(behind) > 0 {
				t.Fatalf("%+v, behind %v, %v: observer %d follows %d", p, behind, err, observer,
					c.nodes[observer].node.inside().Following)
			}
		}
		if at := c.nodes[observer].node.inside().Following; at == voter {
			t.Errorf("observer %d still follows %d", observer, voter)
		}
	})
}

// TestObserverLeavesASilentVoter: a voter that loses its power says nothing more. An observer that follows it looks for
// another voter before it has itself been silent for so long that a leader counts it as dead.
func TestObserverLeavesASilentVoter(t *testing.T) {
	t.Run("from the start", func(t *testing.T) { observerLeavesASilentVoter(t, 0, 0) })
	// Voters that bring nothing get more and more time, as the link may be slow. A voter that has sent entries does
	// not.
	t.Run("once it has sent entries", func(t *testing.T) { observerLeavesASilentVoter(t, 4, 3) })
}

// TestObserverLeavesACandidate: a voter that is cut off from the others campaigns again and again, and says each time
// that it knows no leader. An observer that follows it leaves after a second all the same.
func TestObserverLeavesACandidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(Config{Identity: Identity{ID: 7}, Dial: func(context.Context, ID) (net.Conn, error) {
			return nil, errNoLink
		}})
		defer n.wg.Wait()
		defer n.cancel(ErrClosed)
		left := make(chan time.Time, 1)
		f := &followSession{n: n, peer: 2, leaderless: time.AfterFunc(leaderlessMax, func() { left <- time.Now() })}
		news := func(leader ID) {
			state := clusterState{leader: leader, term: 1, conf: &raftpb.ConfState{Voters: []uint64{2, 3, 4}}}
			if err := f.learn(state.append(nil)); err != nil {
				t.Fatal(err)
			}
		}
		news(2)
		<-time.After(5 * time.Second)
		if len(left) > 0 {
			t.Fatal("left while there was a leader")
		}
		began := time.Now()
		for range 8 {
			news(0)
			<-time.After(leaderlessMax / 4)
		}
		if took := (<-left).Sub(began); took != leaderlessMax {
			t.Errorf("left after %v without a leader, want %v", took, leaderlessMax)
		}
	})
}

func observerLeavesASilentVoter(t *testing.T, changes int, entries uint64) {
	synctest.Test(t, func(t *testing.T) {
		ours, far := net.Pipe()
		dialled := false
		n := newNode(Config{Identity: Identity{ID: 7}, Dial: func(context.Context, ID) (net.Conn, error) {
			if dialled {
				return nil, errNoLink
			}
			dialled = true
			return ours, nil
		}})
		defer n.wg.Wait()
		defer n.cancel(ErrClosed)
		n.feed.reset(raftlog.Base{})
		n.state.conf = &raftpb.ConfState{Voters: []uint64{2}}
		voter := newNode(Config{Identity: Identity{ID: 2}})
		defer voter.cancel(ErrClosed)
		go func() {
			if _, err := voter.greeter.accept(far, func(ID) bool { return true }); err != nil {
				t.Error(err)
			}
			state := clusterState{leader: 2, term: 1, conf: n.state.conf}
			_, _ = far.Write(appendFrame(nil, frameState, state.append))
			var list []core.Committed
			for i := range entries {
				list = append(list, core.Committed{Index: i + 1, Term: 1})
			}
			if len(list) > 0 {
				_, _ = far.Write(appendFrame(nil, frameEntries, func(b []byte) []byte { return appendEntries(b, list) }))
			}
			for { // what it is sent goes nowhere
				if _, _, err := readFrame(far, maxFrame); err != nil {
					return
				}
			}
		}()
		go func() {
			<-n.applyQ.wake
			j, _ := n.applyQ.take()
			j.where <- 0
		}()
		began := time.Now()
		peer, err := n.observer.follow([]ID{2}, changes)
		if got := n.feed.next() - 1; got != entries {
			t.Errorf("took %d entries, want %d", got, entries)
		}
		if took := time.Since(began); peer != 2 || err == nil || took >= n.tune.StaleAfter-time.Second {
			t.Errorf("left %d after %v: %v", peer, took, err)
		}
	})
}

// TestLagIsJudgedByProgress: a voter that sends is not left, however far behind it is.
func TestLagIsJudgedByProgress(t *testing.T) {
	now := time.Unix(0, 0)
	j := lagJudge{patience: 200 * time.Millisecond}
	for i, c := range []struct {
		after             time.Duration
		wanted, next, got uint64
		late              bool
	}{
		{0, 10, 11, 0, false},                         // nothing is due
		{time.Hour, 20, 11, 0, false},                 // due from now on
		{150 * time.Millisecond, 20, 11, 0, false},    // not for long
		{50 * time.Millisecond, 20, 12, 100, false},   // an entry came
		{199 * time.Millisecond, 20, 12, 100, false},  //
		{time.Millisecond, 20, 12, 4196, false},       // part of a large one came
		{150 * time.Millisecond, 30, 12, 4196, false}, // more is wanted
		{50 * time.Millisecond, 30, 12, 4196, true},   // nothing came
	} {
		now = now.Add(c.after)
		if got := j.late(now, c.wanted, c.next, c.got); got != c.late {
			t.Errorf("look %d: late %v, want %v", i, got, c.late)
		}
	}
	if p := lagPatience(time.Millisecond, 1); p != lagMin {
		t.Errorf("patience %v at first, want %v", p, lagMin)
	}
	if p := lagPatience(3*time.Second, 9); p != lagMax {
		t.Errorf("patience %v after many changes, want %v", p, lagMax)
	}
}

// TestNextVoterIsDialledBeside: a voter that does not answer is not waited for alone.
func TestNextVoterIsDialledBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead net.Conn // takes the hello and answers nothing
		n := newNode(Config{Identity: Identity{ID: 7}, Dial: func(ctx context.Context, peer ID) (net.Conn, error) {
			ours, far := net.Pipe()
			if peer == 2 {
				dead = far
				go func() { _, _, _ = readFrame(far, maxHello) }()
				return ours, nil
			}
			go func() {
				_, _ = newNode(Config{Identity: Identity{ID: peer}}).greeter.accept(far, func(ID) bool { return true })
			}()
			return ours, nil
		}})
		defer n.wg.Wait()
		defer n.cancel(ErrClosed)
		began := time.Now()
		a := n.observer.openFirst(context.Background(), []ID{2, 3}, purposeFollow)
		if took := time.Since(began); a.err != nil || a.peer != 3 || took >= 2*followNext {
			t.Errorf("opened %d after %v: %v", a.peer, took, a.err)
		}
		_ = a.conn.Close()
		_ = dead.Close()
	})
}

// TestLongFramesOverSlowLinks: a frame that takes longer than any silence is read whole, and sent whole.
func TestLongFramesOverSlowLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, link := net.Pipe()
		end, far := net.Pipe()
		go func() { // 64 KiB in a second
			piece := make([]byte, 8<<10)
			for {
				n, err := link.Read(piece)
				if err != nil {
					_ = end.Close()
					return
				}
				time.Sleep(time.Second / 8) // tidy: virtual time
				_, _ = end.Write(piece[:n])
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, end) }() // pings
		s, r := newStream(near, 2), newStream(far, 1)
		body := make([]byte, 1<<20)
		s.send(frameEntries, func(b []byte) []byte { return append(b, body...) })
		kind, got, err := r.read()
		if kind != frameEntries || len(got) != len(body) || err != nil {
			t.Errorf("read a frame of type %d, %d bytes: %v", kind, len(got), err)
		}
		s.close()
		r.close()
		synctest.Wait()
		time.Sleep(time.Second) // tidy: virtual time, in which the link ends
	})
}

// leaveFollowed ends the follow stream.
func (n *Node) leaveFollowed() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if f := n.state.follower; f != nil {
		f.cancel()
	}
}

// A voter is left if it sends an entry now and then, so that something always comes in time, but never what is wanted.
// A voter that has much to send over a thin link is kept.
func TestTricklingVoterIsLeft(t *testing.T) {
	now := time.Unix(0, 0)
	start := func() *lagJudge { return &lagJudge{patience: lagMin, slow: slowPatience(time.Millisecond, 0)} }
	step := 50 * time.Millisecond
	run := func(entriesEvery, bytes, rounds int) (after time.Duration) {
		j, next, got, wanted := start(), uint64(1), uint64(0), uint64(100)
		for i := range rounds {
			now = now.Add(step)
			wanted++
			if i%entriesEvery == 0 {
				next++
			}
			got += uint64(bytes)
			if j.late(now, wanted, next, got) {
				return time.Duration(i) * step
			}
		}
		return 0
	}
	if after := run(3, 20, 1000); after == 0 || after > 2*time.Second {
		t.Errorf("a voter that trickles is left after %v", after)
	}
	if after := run(3, 8<<10, 1000); after != 0 {
		t.Errorf("a voter that sends 160 KiB a second is left after %v", after)
	}
	if after := run(1, 20, 1000); after > 0 && after < time.Second {
		t.Errorf("left after %v", after)
	}
	j, next := start(), uint64(10) // busy, but never behind for long
	for i := range uint64(1000) {
		now = now.Add(step)
		if next += 2; j.late(now, 20+2*i, next, i*40) {
			t.Fatal("a voter that brings what is wanted within a second is left")
		}
	}
	if p := slowPatience(time.Second, 9); p != lagSlowMax {
		t.Errorf("patience %v", p)
	}
}

// A follower whose own state machine is slow has no reason to leave its voter: what is due waits here. Once that is
// over, a voter that sends nothing is left.
func TestSlowFollowerBlamesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(Config{Identity: Identity{ID: 1}})
		defer n.cancel(ErrClosed)
		n.feed.reset(raftlog.Base{Index: 10})
		n.reporter.wanted = 20
		n.applyQ.queued = applyHighBytes + 1
		ctx, cancel := context.WithCancel(t.Context())
		target := &followTarget{peer: 2, stream: &stream{}, cancel: cancel, wanted: make(chan struct{}, 1)}
		done := make(chan struct{})
		go func() { defer close(done); n.observer.watchLag(ctx, target) }()
		signal(target.wanted)
		time.Sleep(time.Minute) // tidy: virtual time
		if ctx.Err() != nil {
			t.Error("the voter is left while this node is behind with what it has got")
		}
		n.applyQ.unhold(&applyJob{entries: []core.Committed{{Raw: make([]byte, 1000)}}})
		<-done
		if ctx.Err() == nil {
			t.Error("a voter that sends nothing is not left")
		}
		cancel()
	})
}
