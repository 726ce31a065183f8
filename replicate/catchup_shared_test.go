package replicate

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// A node that comes back while another one is being served shares what that one has not been sent yet: it is sent once,
// to both.
func TestNodeThatComesLaterSharesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		c.setLeaderless()
		for _, n := range c.all()[:2] {
			n.stop()
			n.tuning.Silent, n.tuning.Stalled = time.Minute, time.Minute // what is held below is no failure
			n.start()
		}
		for _, id := range []meta.NodeID{3, 4} {
			c.node(id).stop()
			c.declareDown(id)
		}
		files := c.writeFiles(20, smallMax+1)
		c.node(3).start()
		var holds atomic.Int64
		release := make(chan struct{})
		c.hub.setBlock(func(to meta.NodeID, _ uint64) error {
			if (to == 3 || to == 4) && c.heldAt(to, files) >= 2 { // node 4 too: it is to get no more by itself
				if to == 3 {
					holds.Add(1)
				}
				<-release
			}
			return nil
		})
		c.setLeader()
		c.eventually("node 3 is being served", func() bool { return holds.Load() > 0 })
		c.node(4).start()
		c.eventually("node 4 is being served", func() bool { return c.heldAt(4, files) > 1 })
		close(release)
		c.settled()
		sent := uint64(0)
		for _, n := range c.all() {
			sent += n.replicator().Counters().CaughtUp
			if got := c.heldAt(n.id, files); got != len(files) {
				t.Errorf("node %d holds %d of %d", n.id, got, len(files))
			}
		}
		// Were nothing shared, each file would be sent twice. What node 4 gets by itself depends on how soon each holder
		// hears of it: the files of the orders under way then, which is a good third of all on a busy machine.
		if most := uint64(len(files)) * 16 / 10; sent > most {
			t.Errorf("%d files were sent %d times, want %d at most", len(files), sent, most)
		}
	})
}

// served has one large file on the holders, which are nodes 1 to holders, and the next node being served, by a source
// that stands still at the given block. Its second result lets the source go on.
func (c *cluster) served(holders int, at uint64) (files map[meta.ContentID][]byte, goOn func()) {
	c.t.Helper()
	c.setLeaderless()
	for _, n := range c.all()[:holders] {
		n.stop()
		n.tuning.Silent, n.tuning.Stalled = time.Minute, time.Minute // what is held below is no failure
		n.start()
	}
	for _, n := range c.all()[holders:] {
		n.stop()
		c.declareDown(n.id)
	}
	files = c.writeFiles(1, 12<<20)
	first := meta.NodeID(holders + 1)
	c.node(first).start()
	var holds atomic.Int64
	release := make(chan struct{})
	c.hub.setBlock(func(to meta.NodeID, i uint64) error {
		if to == first && i >= at {
			holds.Add(1)
			<-release
		}
		return nil
	})
	c.hub.resetGroups()
	c.setLeader()
	c.eventually("the first node is being served", func() bool { return holds.Load() > 0 })
	goOn = sync.OnceFunc(func() { close(release) })
	c.t.Cleanup(goOn) // also when the test fails before it calls it
	return files, goOn
}

// A node that comes back soon after another one joins the multicast to that one, if nobody else holds the content.
func TestNodeThatComesSoonJoinsTheMulticast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		files, goOn := c.served(1, 3)
		c.node(3).start()
		c.eventually("both are served", func() bool { return slices.Contains(c.hub.groupSizes(), 3) })
		goOn()
		c.settled()
		for _, id := range []meta.NodeID{2, 3} {
			if got := c.heldAt(id, files); got != 1 {
				t.Errorf("node %d holds %d of 1", id, got)
			}
		}
		if got := slices.Sorted(slices.Values(c.hub.groupSizes())); !slices.Equal(got, []int{2, 3}) {
			t.Errorf("groups of %v members, want one of 2 and one of 3", got)
		}
	})
}

// A node that comes back while another one is being served gets the content from another holder, if there is one.
func TestNodeThatComesSoonIsServedByAnotherHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		files, goOn := c.served(2, 3)
		c.node(4).start()
		c.eventually("node 4 is served meanwhile", func() bool { return c.heldAt(4, files) == 1 })
		goOn()
		c.settled()
		synctest.Wait() // they have counted as well
		for _, n := range c.all()[:2] {
			if got := n.replicator().Counters().CaughtUp; got != 1 {
				t.Errorf("node %d has served %d nodes, want 1", n.id, got)
			}
		}
	})
}

// A source passes on what it is sending to other nodes already, if another holder has no more to push.
func TestSourcePassesOnWhatItIsSending(t *testing.T) {
	id := meta.ContentID{Seq: 1}
	cfg := Config{Names: owedState(t, 1), Logger: slog.New(slog.DiscardHandler), Clock: SystemClock()}
	s := newSupplier(cfg, nil, nil, nil, nil)
	defer s.close()
	s.flows[id] = &shipment{id: id}
	m := work{WaitMs: 60_000, Elsewhere: true, Targets: []meta.NodeID{3}, Contents: []meta.ContentID{id}}
	r := s.work(t.Context(), m)
	if !slices.Equal(r.Begun, []meta.ContentID{id}) || len(r.Running)+len(r.Done)+len(r.Absent) > 0 || len(s.jobs) > 0 {
		t.Errorf("answer %+v, %d jobs are left", r, len(s.jobs))
	}
}

// heldAt counts the files of which a node has its own copy.
func (c *cluster) heldAt(id meta.NodeID, files map[meta.ContentID][]byte) (n int) {
	for f := range files {
		if c.node(id).heldHere(f) {
			n++
		}
	}
	return n
}

// An order is joined to another one only if the nodes of both have taken what was sent to them last.
func TestWhoDoesNotAnswerSharesWithNobody(t *testing.T) {
	id := meta.ContentID{Seq: 1}
	for _, tc := range []struct {
		name              string
		own, other, begun bool
		view              uint64
		shared            bool
	}{
		{name: "both take", own: true, other: true, shared: true},
		{name: "own does not", other: true},
		{name: "other does not", own: true},
		{name: "other is under way", own: true, other: true, begun: true},
		{name: "other's view has not come", own: true, other: true, view: 8},
	} {
		t.Run(tc.name, func(t *testing.T) {
			own := &supply{id: id, set: "own", targets: []meta.NodeID{3, 4}}
			other := &supply{id: id, set: "other", targets: []meta.NodeID{2, 4}, begun: tc.begun, view: tc.view}
			s := &supplier{
				jobs: map[meta.ContentID][]*supply{id: {other, own}},
				sets: map[string]*supplySet{"own": {takes: tc.own}, "other": {takes: tc.other}},
			}
			s.view.Store(7)
			sh := s.begin(own)
			s.share(sh)
			want := []meta.NodeID{3, 4}
			if tc.shared {
				want = []meta.NodeID{2, 3, 4}
			}
			if !slices.Equal(sh.targets, want) || (len(sh.jobs) == 2) != tc.shared {
				t.Errorf("sent to %v for %d orders, want %v", sh.targets, len(sh.jobs), want)
			}
			if again := s.begin(own); again != nil {
				t.Error("it is begun twice")
			}
			if again := s.begin(other); (again != nil) == (tc.shared || tc.begun) {
				t.Errorf("the other order is begun by itself: %t", again != nil)
			}
		})
	}
}

// What a shipment came to is said to each order for its own nodes.
func TestOrderThatSharedHearsOfItsOwnNodes(t *testing.T) {
	first := &supply{targets: []meta.NodeID{2}, set: "2", done: make(chan struct{})}
	second := &supply{targets: []meta.NodeID{3, 4}, set: "3 4", done: make(chan struct{})}
	s := &supplier{
		cfg:  Config{Logger: slog.New(slog.DiscardHandler)},
		sets: map[string]*supplySet{"2": {}, "3 4": {takes: true}},
	}
	s.finish(&shipment{
		jobs: []*supply{first, second}, targets: []meta.NodeID{2, 3, 4}, sent: true, failed: []meta.NodeID{4},
	})
	<-first.done
	<-second.done
	if len(first.failed) != 0 || !slices.Equal(second.failed, []meta.NodeID{4}) {
		t.Errorf("failed at %v and %v", first.failed, second.failed)
	}
	if !s.sets["2"].takes || s.sets["3 4"].takes {
		t.Error("what was taken last is not known")
	}
}
