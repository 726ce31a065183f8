package replicate

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// A writer announces a content that has come here meanwhile: it is a vote.
func TestAnnouncementOfWhatIsStoredMeanwhileIsAVote(t *testing.T) {
	c := metatest.New(t, 3)
	s, _ := storingNode(t, c, 2)
	b := randomBytes(1, 1000)
	id, shape := c.Session(1), content.Shape{Size: int64(len(b))}
	encoded, err := shape.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	vote(t, s, id, b)
	h, err := s.member.enter(id, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	a := announce{Content: id, Shape: encoded}
	st, err := ask(t.Context(), h, func() standing { return h.join(1, a, shape) })
	if err != nil || st.Status != session.StatusVoted {
		t.Errorf("answers %d, %v", st.Status, err)
	}
}

// callPeers answers calls by a function.
type callPeers func(to meta.NodeID) error

func (f callPeers) Call(_ context.Context, to meta.NodeID, _ Kind, _ []byte) ([]byte, error) {
	return nil, f(to)
}

// joinable is a supplier that sends a content to node 2, in a session that takes all who want to join.
func joinable(t *testing.T, peers callPeers) (s *supplier, sh *shipment) {
	t.Helper()
	id := meta.ContentID{Seq: 1}
	first := &supply{id: id, targets: []meta.NodeID{2}, set: "2", begun: true, done: make(chan struct{})}
	run := &rootRun{joins: make(chan joining), over: make(chan struct{})}
	sh = &shipment{id: id, jobs: []*supply{first}, targets: first.targets, run: run}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	s = &supplier{
		cfg: Config{Clock: SystemClock(), Peers: peers, Logger: slog.New(slog.DiscardHandler)}, ctx: ctx, stop: stop,
		flows: map[meta.ContentID]*shipment{id: sh}, jobs: map[meta.ContentID][]*supply{id: {first}},
		sets: map[string]*supplySet{"2": {takes: true}},
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case j := <-run.joins:
				j.taken <- true
			case <-run.over:
				return
			}
		}
	}()
	t.Cleanup(func() { close(run.over); <-ended })
	return s, sh
}

// add gives a supplier a job of nodes that have taken all until now.
func (s *supplier) add(set string, targets ...meta.NodeID) *supply {
	j := &supply{id: meta.ContentID{Seq: 1}, targets: targets, set: set, done: make(chan struct{})}
	s.jobs[j.id], s.sets[set] = append(s.jobs[j.id], j), &supplySet{takes: true}
	return j
}

// While an order is about to join a multicast, another multicast of the content begins. The order is of one of them.
func TestOrderThatJoinsIsNotSharedMeanwhile(t *testing.T) {
	var s *supplier
	var second *shipment
	s, first := joinable(t, func(meta.NodeID) error {
		second = s.begin(s.add("4", 4))
		s.share(second)
		return nil
	})
	j := s.add("3", 3)
	if !s.join(j) && s.begin(j) != nil {
		t.Error("it is of neither")
	}
	s.finish(first)
	s.finish(second)
	<-j.done
}

// An order that could not join is still to be begun.
func TestOrderThatCannotJoinIsBegun(t *testing.T) {
	s, _ := joinable(t, func(meta.NodeID) error { return errors.New("mute") })
	j := s.add("3", 3)
	if s.join(j) || s.begin(j) == nil {
		t.Error("it is not begun")
	}
}

// A multicast ends while an order joins it.
func TestMulticastEndsWhileAnOrderJoins(t *testing.T) {
	for range 50 {
		asked := make(chan struct{})
		s, first := joinable(t, func(meta.NodeID) error { close(asked); return nil })
		j := s.add("3", 3)
		ended := make(chan struct{})
		go func() { <-asked; s.finish(first); close(ended) }()
		joined := s.join(j)
		<-ended
		if again := s.begin(j); (again == nil) != joined {
			t.Fatalf("joined %t, begun %t", joined, again != nil)
		}
		if joined {
			<-j.done
		}
	}
}

// Nodes to which a content is on its way get it from nobody else: two sources would end each other's groups.
func TestContentOnItsWayToANodeIsNotPassedOn(t *testing.T) {
	s, _ := joinable(t, func(meta.NodeID) error { return nil })
	both, other := s.add("2 3", 2, 3), s.add("3", 3)
	both.passes, other.passes = true, true
	if s.pass(both) || !s.pass(other) {
		t.Errorf("passed on: %t and %t", both.passed, other.passed)
	}
}

// A new leader orders what is under way, and puts the nodes together in another way. The multicast goes on.
func TestMulticastGoesOnWhenItsNodesAreOrderedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		files, goOn := c.served(1, 3)
		c.node(3).start()
		c.eventually("both are served", func() bool { return slices.Contains(c.hub.groupSizes(), 3) })
		c.hub.resetGroups()
		m := work{WaitMs: 300, Targets: []meta.NodeID{2, 3}}
		for id := range files {
			m.Contents = append(m.Contents, id)
		}
		reply := c.node(1).replicator().supplier.work(t.Context(), m)
		goOn()
		if !slices.Equal(reply.Running, m.Contents) {
			t.Errorf("answered %+v", reply)
		}
		c.settled()
		if got := c.hub.groupSizes(); len(got) > 0 {
			t.Errorf("new groups of %v members", got)
		}
	})
}

// Nodes come back one after another while the first is served: each joins, or is served by itself, and gets all.
func TestNodesThatComeOneAfterAnotherAreAllServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 7, 1)
		files, goOn := c.served(1, 3)
		for i := 3; i <= 7; i++ {
			c.node(meta.NodeID(i)).start()
			c.eventually("one more is served", func() bool {
				return slices.Contains(c.hub.groupSizes(), i) || c.heldAt(meta.NodeID(i), files) == 1
			})
		}
		goOn()
		c.settled()
		for i := 2; i <= 7; i++ {
			if got := c.heldAt(meta.NodeID(i), files); got != 1 {
				t.Errorf("node %d holds %d of 1", i, got)
			}
		}
	})
}

// Nodes come back one after another while several files are on their way to the first: none of the transfers, which
// share a group, is given up.
func TestTransfersThatShareAGroupOutliveManyJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const last, count = 5, 3
		c := newCluster(t, last, 1)
		c.setLeaderless()
		c.node(1).stop()
		c.node(1).tuning.Silent, c.node(1).tuning.Stalled = time.Minute, time.Minute // what is held below is no failure
		c.node(1).start()
		for i := 2; i <= last; i++ {
			c.node(meta.NodeID(i)).stop()
			c.declareDown(meta.NodeID(i))
		}
		files := c.writeFiles(count, 12<<20)
		for i := 2; i <= last; i++ {
			c.node(meta.NodeID(i)).start()
		}
		release := make(chan struct{})
		goOn := sync.OnceFunc(func() { close(release) })
		t.Cleanup(goOn) // also when the test fails before it calls it
		c.hub.setBlock(func(_ meta.NodeID, i uint64) error {
			if i >= 3 {
				<-release
			}
			return nil
		})
		s := c.node(1).replicator().supplier
		var wg sync.WaitGroup
		for i := 2; i <= last; i++ {
			for id := range files {
				wg.Go(func() {
					m := work{WaitMs: 15000, Targets: []meta.NodeID{meta.NodeID(i)}, Contents: []meta.ContentID{id}}
					r := s.work(t.Context(), m)
					for len(r.Running) > 0 {
						r = s.work(t.Context(), m)
					}
					if len(r.Done) != 1 || len(r.Failed) > 0 {
						t.Errorf("node %d: %+v", i, r)
					}
				})
			}
			c.eventually("all are under way", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				n := 0
				for _, sh := range s.flows {
					n += len(sh.targets)
				}
				return n == count*(i-1)
			})
		}
		goOn()
		wg.Wait()
	})
}

// A node joins a multicast, and restarts. It does not wait until the others have all.
func TestNodeThatJoinedAndRestartsIsServedByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		files, goOn := c.served(1, 3)
		c.node(3).start()
		c.eventually("both are served", func() bool { return slices.Contains(c.hub.groupSizes(), 3) })
		c.node(3).stop()
		c.declareDown(3)
		c.node(3).start()
		done := func() bool { return c.heldAt(3, files) == 1 }
		for deadline := time.Now().Add(15 * time.Second); !done() && time.Now().Before(deadline); {
			pause(t.Context(), SystemClock(), 10*time.Millisecond)
		}
		if !done() {
			t.Error("it waits for the node that is served with it")
		}
		goOn()
		c.settled()
	})
}
