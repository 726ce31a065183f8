package replicate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// owing is a cluster whose node 4 missed files while it was down, and an assigner that hands out nothing by itself.
func owing(t *testing.T) (*cluster, *assigner, []meta.ContentID) {
	c := newCluster(t, 4, 1)
	c.setLeaderless()
	c.node(4).stop()
	c.declareDown(4)
	ids := slices.Collect(maps.Keys(c.writeFiles(3, 9000)))
	c.node(4).start()
	cfg, err := c.node(1).config().withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	a := newAssigner(cfg)
	a.look() // which finds the nodes that are up
	return c, a, ids
}

func (c *cluster) restart(id meta.NodeID) {
	c.node(id).stop()
	c.declareDown(id)
	c.node(id).start()
}

// offers checks how many contents are offered to node 4 now.
func offers(t *testing.T, a *assigner, when string, want int) {
	t.Helper()
	nodes, err := a.cfg.Names.Nodes()
	if err != nil {
		t.Fatal(err)
	}
	a.returned(nodes)
	if got := a.owed(4); len(got) != want {
		t.Errorf("%s: %d contents are offered, want %d", when, len(got), want)
	}
}

// A try that began in an earlier life of the target or the source, or whose source went down meanwhile, says nothing
// of the next one: that comes at once. If another node came or went, only the second try comes at once.
func TestTryOfAnEarlierLifeCostsNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a, ids := owing(t)
		four := []meta.NodeID{4}
		for _, x := range []struct {
			when    string
			happens func()
			offered int
		}{
			{"nothing happened", func() {}, 0},
			{"the target started again", func() { c.restart(4) }, len(ids)},
			{"the source started again", func() { c.restart(2) }, len(ids)},
			{"another node started again", func() { c.restart(3) }, len(ids)},
			{"the source went down", func() { c.node(2).stop(); c.declareDown(2) }, len(ids)},
		} {
			a.resume()
			a.orderBegun(&order{source: 2, targets: four, contents: ids})
			offers(t, a, x.when+", under way", 0)
			x.happens()
			offers(t, a, x.when+", still under way", 0)
			a.failed(four, ids, 2)
			offers(t, a, x.when+", failed", x.offered)
			if x.when == "another node started again" {
				a.orderBegun(&order{source: 2, targets: four, contents: ids})
				c.restart(3)
				a.failed(four, ids, 2)
				offers(t, a, x.when+", failed again", 0)
			}
		}
		c.node(2).start()
		a.resume()
		offers(t, a, "all up", len(ids))
		for range 8 {
			a.failed(four, ids, 2)
		}
		offers(t, a, "failed often", 0)
		c.restart(2)
		offers(t, a, "the source that failed is back", len(ids))
	})
}

// A node that was cut off for so short a time that the log never had it down is served when it connects again.
func TestNodeThatConnectsAgainIsServedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, ids := owing(t)
		for range 8 {
			a.failed([]meta.NodeID{4}, ids, 2)
		}
		offers(t, a, "failed often", 0)
		a.seenAgain(3)
		offers(t, a, "another node has connected", 0)
		a.seenAgain(4)
		offers(t, a, "the target has connected", len(ids))
		for range 8 {
			a.failed([]meta.NodeID{4}, ids, 2)
		}
		a.seenAgain(2)
		offers(t, a, "the source has connected", len(ids))
		for range 8 {
			a.failed([]meta.NodeID{4}, ids, 2)
		}
		a.orderBegun(&order{source: 2, targets: []meta.NodeID{4}, contents: ids})
		a.seenAgain(4)
		a.failed([]meta.NodeID{4}, ids, 2)
		offers(t, a, "the target has connected while it was tried", len(ids))
	})
}

// A node whose disk was full tells all others that it has room again. For the leader that is as if it had connected.
func TestRoomIsToldToWhoeverLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.node(3).replicator().tellRoom(t.Context(), room{Bytes: 1})
		for _, id := range []meta.NodeID{1, 2, 3} {
			a := c.node(id).replicator().assigner
			a.mu.Lock()
			if _, came := a.came[3]; !came {
				t.Errorf("node %d was not told", id)
			}
			a.mu.Unlock()
		}
	})
}

// The others hear at once that something was refused, hear it again now and then, and once that it fits. What nobody
// has asked for again for long is forgotten.
func TestRoomIsToldWhenWhatWasRefusedFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &handClock{now: time.Unix(1, 0)}
		w := newRoomWatch(Config{Clock: clock})
		refuse := func(needs ...int64) {
			for _, need := range needs {
				w.refused(fmt.Errorf("begin: %w", &content.NoSpaceError{NeedBytes: need}))
			}
		}
		news := func(what string, available int64, level content.Level, want ...room) {
			t.Helper()
			got, ok := w.news(content.Space{AvailableBytes: available, Level: level})
			if ok != (len(want) > 0) || ok && got != want[0] {
				t.Errorf("%s: %+v, %v, want %+v", what, got, ok, want)
			}
		}
		news("nothing was refused", 100, content.LevelOK)
		refuse(50, 20, 30)
		w.refused(content.ErrBusy)
		news("refused", 19, content.LevelOK, room{19, 20})
		news("a moment later", 19, content.LevelOK)
		clock.now = clock.now.Add(roomRepeat)
		news("later", 100, content.LevelFull, room{0, 20})
		refuse(10)
		news("less was refused", 9, content.LevelOK, room{9, 10})
		news("it fits", 20, content.LevelLow, room{Bytes: 20})
		news("it was told", 100, content.LevelOK)
		refuse(200)
		news("refused again", 100, content.LevelOK, room{100, 200})
		clock.now = clock.now.Add(roomForget)
		news("forgotten", 100, content.LevelOK, room{Bytes: 100})
		news("forgotten before", 100, content.LevelOK)
	})
}

// A node that connects again and again does not make the leader try more than once a second.
func TestNodeThatConnectsOftenIsServedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, ids := owing(t)
		began := time.Now()
		for range 20 {
			for range 8 {
				a.failed([]meta.NodeID{4}, ids, 2)
			}
			a.seenAgain(4)
		}
		next := a.tries[owedItem{4, ids[0]}].next
		if wait := next.Sub(began); wait < workRetryMin || wait > workRetryMin+time.Since(began) {
			t.Errorf("after 20 connections the next try comes in %v, want %v", wait, workRetryMin)
		}
	})
}

// What fails while a node's line is cut waits no longer than a second each time, for as long as the log may take to
// have the node down.
func TestFirstTriesComeAtOnePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, ids := owing(t)
		for try := range 6 {
			began := time.Now()
			a.failed([]meta.NodeID{4}, ids[:1], 2)
			wait := a.tries[owedItem{4, ids[0]}].next.Sub(began).Round(workRetryMin)
			if want := []time.Duration{1, 1, 1, 1, 2, 4}[try] * workRetryMin; wait != want {
				t.Errorf("after failure %d the next try comes in %v, want %v", try+1, wait, want)
			}
		}
	})
}

// leapClock is the machine's clock, put forward.
type leapClock struct {
	systemClock
	ahead atomic.Int64
}

func (c *leapClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// A leader that stood still, and its calls with it, tries again at once.
func TestLeaderThatStoodStillTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, ids := owing(t)
		clock := &leapClock{}
		var asked atomic.Int64
		a.cfg.Clock, a.cfg.IsLeader, a.cfg.Tuning.CatchUpEvery = clock, func() bool { return true }, 20*time.Millisecond
		a.own = func(context.Context, work) workReply { asked.Add(1); return workReply{} }
		a.cfg.Peers = callFunc(func(context.Context) error { asked.Add(1); return errors.New("no answer") })
		for range 8 { // each waits a minute from now on
			a.failed([]meta.NodeID{4}, ids, 2)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.run(ctx) }()
		<-time.After(100 * time.Millisecond)
		if n := asked.Load(); n != 0 {
			t.Errorf("asked %d times before it stood still", n)
		}
		for deadline := time.Now().Add(neverComes); asked.Load() == 0 && time.Now().Before(deadline); {
			clock.ahead.Add(int64(10 * time.Second)) // six such leaps are the minute, and one must do
			<-time.After(50 * time.Millisecond)
			if clock.ahead.Load() > int64(40*time.Second) {
				break
			}
		}
		if asked.Load() == 0 {
			t.Error("it did not try again")
		}
		stop()
		<-done
	})
}

// changes are the views of an assigner.
type changes struct {
	mu sync.Mutex
	c  chan struct{}
}

func (v *changes) next() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.c
}

func (v *changes) tell() {
	v.mu.Lock()
	defer v.mu.Unlock()
	close(v.c)
	v.c = make(chan struct{})
}

// A source that does not answer any more is waited for until the log declares it down, and not longer.
func TestSourceThatIsDownIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a, ids := owing(t)
		views := &changes{c: make(chan struct{})}
		a.views, a.cfg.IsLeader = views.next, func() bool { return true }
		asked := make(chan struct{})
		a.cfg.Peers = callFunc(func(ctx context.Context) error { close(asked); <-ctx.Done(); return ctx.Err() })
		o := &order{source: 2, targets: []meta.NodeID{4}, contents: ids}
		a.orderBegun(o)
		done := make(chan struct{})
		began := time.Now()
		a.wg.Go(func() { defer close(done); a.carry(t.Context(), o) })
		<-asked
		c.node(2).cut()
		c.declareDown(2)
		views.tell()
		<-done
		if took := time.Since(began); took > workWait/2 {
			t.Errorf("took %v", took)
		}
		offers(t, a, "the source is down", len(ids))
		a.wg.Wait()
	})
}

// A target that does not answer holds up neither what others are owed, nor longer than until it is declared down what
// is tried with it.
func TestTargetThatDoesNotAnswerHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		c.setLeaderless()
		for _, id := range []meta.NodeID{3, 4} {
			c.node(id).stop()
			c.declareDown(id)
		}
		files := c.writeFiles(2*suppliesAtOnce, 9000)
		ids := slices.SortedFunc(maps.Keys(files), compareIDs)
		release := make(chan struct{})
		var once sync.Once
		defer once.Do(func() { close(release) })
		var hung atomic.Int64
		c.setCalls(func(_, to meta.NodeID, kind Kind) error {
			if to == 3 && kind == KindPut {
				hung.Add(1)
				<-release
			}
			return nil
		})
		c.node(3).start()
		c.node(4).start()
		s := c.node(1).replicator().supplier
		var wg sync.WaitGroup
		began := time.Now()
		for _, id := range ids {
			wg.Go(func() {
				s.work(t.Context(), work{WaitMs: uint32(workWait / time.Millisecond), Targets: []meta.NodeID{3},
					Contents: []meta.ContentID{id}})
			})
		}
		c.eventually("calls hang", func() bool { return hung.Load() >= suppliesAtOnce })
		reply := s.work(t.Context(), work{WaitMs: uint32(workWait / time.Millisecond), Targets: []meta.NodeID{4},
			Contents: ids})
		if len(reply.Done) != len(ids) || len(reply.Failed) > 0 {
			t.Errorf("node 4, beside a node that does not answer: %d of %d, failed at %v", len(reply.Done), len(ids),
				reply.Failed)
		}
		c.node(3).cut()
		c.declareDown(3)
		wg.Wait()
		if took := time.Since(began); took >= workWait {
			t.Errorf("what was tried with the node that is down took %v", took)
		}
	})
}

// laterNames shows a content only after some questions.
type laterNames struct {
	meta.Reader
	left atomic.Int64
}

func (n *laterNames) Content(id meta.ContentID) (meta.Content, error) {
	if n.left.Add(-1) >= 0 {
		return meta.Content{}, meta.ErrNotFound
	}
	return n.Reader.Content(id)
}

func (n *laterNames) Decided(id meta.ContentID) (bool, error) {
	if n.left.Load() >= 0 {
		return false, nil
	}
	return n.Reader.Decided(id)
}

// A node that is just back, and a moment behind the log, takes what is brought when it knows it, instead of refusing.
func TestNodeAMomentBehindTheLogTakesWhatIsBrought(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.setLeaderless()
		c.node(3).stop()
		c.declareDown(3)
		files := c.writeFiles(1, 9000)
		c.node(3).start()
		m := c.node(3).replicator().member
		behind := &laterNames{Reader: m.cfg.Names}
		behind.left.Store(8)
		cfg := *m.cfg
		cfg.Names = behind
		late := newMember(cfg, m.remote)
		defer late.close()
		for id, b := range files {
			rec, err := c.node(1).db.Content(id)
			if err != nil {
				t.Fatal(err)
			}
			got := late.put(t.Context(), 1, []putItem{{Content: id, Published: true, Root: rec.Root, Bytes: b}})
			if len(got) != 1 || got[0].Status != session.StatusVoted {
				t.Errorf("answered %+v", got)
			}
		}
	})
}

// lateView shows nodes as of the moment when it was made, until now is set.
type lateView struct {
	meta.Reader
	view  uint64
	nodes map[meta.NodeID]meta.Node
	now   atomic.Bool
}

func newLateView(t *testing.T, r meta.Reader) *lateView {
	nodes, err := r.Nodes()
	if err != nil {
		t.Fatal(err)
	}
	v := &lateView{Reader: r, view: r.View(), nodes: map[meta.NodeID]meta.Node{}}
	for _, n := range nodes {
		v.nodes[n.ID] = n
	}
	return v
}

func (v *lateView) View() uint64 {
	if v.now.Load() {
		return v.Reader.View()
	}
	return v.view
}

func (v *lateView) Node(id meta.NodeID) (meta.Node, error) {
	if v.now.Load() {
		return v.Reader.Node(id)
	}
	return v.nodes[id], nil
}

// A holder that is a moment behind the leader's log serves a node that has just come back, instead of taking it for
// one that is down: the leader would try again a second later.
func TestHolderAMomentBehindTheLogServesWhoIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.setLeaderless()
		c.node(3).stop()
		c.declareDown(3)
		ids := slices.Collect(maps.Keys(c.writeFiles(1, 3*smallMax))) // more than a call carries
		s := c.node(1).replicator().supplier
		behind := newLateView(t, s.cfg.Names)
		c.node(3).start()
		cfg := s.cfg
		cfg.Names = behind
		late := newSupplier(cfg, s.rootGroups, s.transfers, s.counters, s.missing)
		defer late.close()
		time.AfterFunc(100*time.Millisecond, func() { behind.now.Store(true); late.sawView() })
		reply := late.work(t.Context(), work{
			WaitMs: uint32(workWait / time.Millisecond), View: s.cfg.Names.View(), Targets: []meta.NodeID{3}, Contents: ids,
		})
		if len(reply.Done) != len(ids) || len(reply.Failed) > 0 {
			t.Errorf("done %d of %d, failed at %v", len(reply.Done), len(ids), reply.Failed)
		}
		began := time.Now()
		late.awaitView(1<<62, 0)
		if took := time.Since(began); took < upWait || took > upWait+neverComes/2 {
			t.Errorf("a view that does not come was awaited for %v", took)
		}
	})
}

// latePublish is a state that has not applied a publish yet.
type latePublish struct {
	meta.Reader
	id  meta.ContentID
	now atomic.Bool
}

func (l *latePublish) Index() uint64 {
	if l.now.Load() {
		return l.Reader.Index()
	}
	return 0
}

func (l *latePublish) Content(id meta.ContentID) (meta.Content, error) {
	if id == l.id && !l.now.Load() {
		return meta.Content{}, meta.ErrNotFound
	}
	return l.Reader.Content(id)
}

func (l *latePublish) Decided(id meta.ContentID) (bool, error) {
	if id == l.id && !l.now.Load() {
		return false, nil
	}
	return l.Reader.Decided(id)
}

// A holder, which may be the writer, has not applied the publish yet that the leader has: it waits for it. If that does
// not come, the content is absent there: it is not taken for one that is retired, with which nothing is to be done.
func TestHolderThatHasNotAppliedThePublishWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, comes := range []bool{true, false} {
			c := newCluster(t, 3, 1)
			c.setLeaderless()
			c.node(3).stop()
			c.declareDown(3)
			ids := slices.Collect(maps.Keys(c.writeFiles(1, 5000)))
			s := c.node(1).replicator().supplier
			c.node(3).start()
			cfg := s.cfg
			behind := &latePublish{Reader: s.cfg.Names, id: ids[0]}
			cfg.Names = behind
			late := newSupplier(cfg, s.rootGroups, s.transfers, s.counters, s.missing)
			defer late.close()
			if comes {
				time.AfterFunc(100*time.Millisecond, func() { behind.now.Store(true) })
			}
			content, err := s.cfg.Names.Content(ids[0])
			if err != nil {
				t.Fatal(err)
			}
			reply := late.work(t.Context(), work{
				WaitMs: uint32(workWait / time.Millisecond), View: s.cfg.Names.View(), Index: content.Published,
				Targets: []meta.NodeID{3}, Contents: ids,
			})
			if comes && (len(reply.Done) != 1 || len(reply.Failed) > 0 || !c.node(3).heldHere(ids[0])) {
				t.Errorf("done %d of 1, failed at %v", len(reply.Done), reply.Failed)
			}
			if !comes && len(reply.Absent) != 1 {
				t.Errorf("the answer of a holder that does not know the content is %+v", reply)
			}
		}
	})
}

// What the log lists one by one is owed as long as a backlog holds it, also when its own report is in the log. That
// is looked at as soon as the report was taken, not with the next pass a second later.
func TestBacklogIsLookedAtWhenReportsAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.setLeaderless()
		c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 3}})
		c.node(3).stop()
		c.declareDown(3)
		ids := slices.Collect(maps.Keys(c.writeFiles(1, 9000)))
		c.node(3).start()
		m := c.node(3).replicator().member
		late := newMember(*m.cfg, m.remote)
		defer late.close()
		late.runs.wg.Go(func() { late.held.run(late.ctx) })
		late.reconciler.report(ids[0])
		select {
		case <-late.reconciler.stock:
		case <-time.After(10 * time.Second):
			t.Error("the backlog is not looked at")
		}
		if !late.held.empty() {
			t.Error("it was looked at before the report was taken")
		}
	})
}

// What failed is tried again when its time has come, not up to a second later.
func TestNextTryComesInTime(t *testing.T) {
	a := newAssigner(Config{Tuning: Tuning{CatchUpEvery: time.Second}})
	now := time.Now()
	item := func(n int) owedItem { return owedItem{node: meta.NodeID(n)} }
	expect := func(when string, want time.Duration) {
		t.Helper()
		if got := a.untilNextTry(now); got != want {
			t.Errorf("%s: the next look comes after %v, want %v", when, got, want)
		}
	}
	expect("nothing failed", time.Second)
	a.tries[item(1)] = &try{next: now.Add(time.Minute)}
	a.tries[item(2)] = &try{next: now.Add(-time.Second)} // looked at before: it waits for a slot
	a.tries[item(3)] = &try{next: now.Add(50 * time.Millisecond), running: true}
	expect("all of it waits long, or runs", time.Second)
	a.tries[item(4)] = &try{next: now.Add(300 * time.Millisecond)}
	a.tries[item(5)] = &try{next: now.Add(700 * time.Millisecond)}
	expect("one is due soon", 300*time.Millisecond)
}
