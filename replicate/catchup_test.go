package replicate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// writeFiles writes count files of size bytes on node 1, and returns what they hold, by content.
func (c *cluster) writeFiles(count, size int) map[meta.ContentID][]byte {
	c.t.Helper()
	out := make(map[meta.ContentID][]byte)
	for i := range count {
		ino := c.create(1, "f"+string(rune('a'+i%26))+time.Duration(i).String()+"-"+time.Duration(size).String())
		b := randomBytes(uint64(i*7919+size), size)
		res, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			c.t.Fatal(err)
		}
		out[res.Content] = b
	}
	return out
}

func TestNodesThatWereDownCatchUpWithoutACommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		for _, id := range []meta.NodeID{3, 4} {
			c.node(id).stop()
			c.declareDown(id)
		}
		files := c.writeFiles(30, 9000)
		for id, b := range c.writeFiles(2, 3<<20) {
			files[id] = b
		}
		c.node(3).start()
		c.node(4).start()
		c.settled()
		for _, n := range []meta.NodeID{3, 4} {
			for id, b := range files {
				c.node(n).wantBytes(id, b)
				if !c.node(n).heldHere(id) {
					t.Errorf("node %d reads %v from elsewhere", n, id)
				}
			}
			rec, err := c.node(n).db.Node(n)
			if err != nil || len(rec.Backlog) != 0 {
				t.Errorf("node %d: backlog %v, %v", n, rec.Backlog, err)
			}
		}
	})
}

// The leader is often the only holder: of what a cluster of one wrote before it grew, or of two while one was away.
func TestLeaderWhoIsTheOnlyHolderServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		for _, id := range []meta.NodeID{2, 3} {
			c.node(id).stop()
			c.declareDown(id)
		}
		files := c.writeFiles(5, 9000)
		maps.Copy(files, c.writeFiles(1, 3<<20))
		c.node(2).start()
		c.node(3).start()
		c.settled()
		for _, n := range []meta.NodeID{2, 3} {
			for id, b := range files {
				c.node(n).wantBytes(id, b)
				if !c.node(n).heldHere(id) {
					t.Errorf("node %d reads %v from elsewhere", n, id)
				}
			}
		}
	})
}

// A node that failed often before it ended is served at its next start at once, and so is what no node that was up held
// when a node comes that may hold it. Nobody else's return shortens what has to wait.
func TestReturnedNodeIsServedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		c.setLeaderless()
		restart := func(id meta.NodeID) {
			c.node(id).stop()
			c.declareDown(id)
			c.node(id).start()
		}
		c.node(4).stop()
		c.declareDown(4)
		files := c.writeFiles(3, 9000)
		c.node(4).start()
		ids := slices.Collect(maps.Keys(files))
		cfg, err := c.node(1).config().withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		a := newAssigner(cfg) // which hands out nothing by itself
		want := func(when string, offered int) {
			t.Helper()
			nodes, err := cfg.Names.Nodes()
			if err != nil {
				t.Fatal(err)
			}
			a.returned(nodes)
			if got := a.owed(4); len(got) != offered {
				t.Errorf("%s: %d contents are offered to node 4, want %d", when, len(got), offered)
			}
		}
		fail := func() {
			for range 8 {
				a.failed([]meta.NodeID{4}, ids, 2)
			}
		}
		want("at first", len(ids))
		fail()
		want("after failures", 0)
		restart(3)
		want("another node is back", 0)
		restart(4)
		want("it is back", len(ids))

		fail()
		wanted := make(map[meta.ContentID][]meta.NodeID)
		for _, id := range ids {
			wanted[id] = []meta.NodeID{4}
		}
		if orders := a.plan(ids, wanted, map[meta.NodeID]bool{4: true}); len(orders) != 0 {
			t.Fatalf("%d orders without a holder that is up", len(orders))
		}
		want("no holder is up", 0)
		restart(3)
		want("a holder is back", len(ids))

		a.orderBegun(&order{source: 2, targets: []meta.NodeID{4}, contents: ids})
		restart(4)
		want("under way", 0)
	})
}

func TestReturningNodesAreServedInOneMulticast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		for _, id := range []meta.NodeID{3, 4} {
			c.node(id).stop()
			c.declareDown(id)
		}
		files := c.writeFiles(1, 5<<20)
		c.setLeaderless()
		c.node(3).start()
		c.node(4).start()
		var source atomic.Int64
		reads := make(map[meta.NodeID]int)
		var mu sync.Mutex
		c.hub.setBlock(func(to meta.NodeID, i uint64) error {
			mu.Lock()
			defer mu.Unlock()
			reads[to]++
			source.Add(1)
			return nil
		})
		c.hub.resetGroups()
		c.setLeader()
		c.settled()
		for id, b := range files {
			c.node(3).wantBytes(id, b)
			c.node(4).wantBytes(id, b)
		}
		if got := c.hub.groupSizes(); len(got) != 1 || got[0] != 3 {
			t.Errorf("groups of %v members, want one of the source and both nodes", got)
		}
	})
}

func TestJoinedNodeGetsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 1)
		files := c.writeFiles(20, 6000)
		for id, b := range c.writeFiles(1, 2<<20+5) {
			files[id] = b
		}
		n := c.join(3)
		c.settled()
		for id, b := range files {
			n.wantBytes(id, b)
			if !n.heldHere(id) {
				t.Errorf("%v is not held", id)
			}
		}
	})
}

func TestSourceDiesDuringCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		c.node(4).stop()
		c.declareDown(4)
		files := c.writeFiles(3, 4<<20)
		var once sync.Once
		c.hub.setBlock(func(to meta.NodeID, i uint64) error {
			if to == 4 && i > 20 {
				once.Do(func() {
					// cut the node that sends: the hub calls this from the root
					for _, n := range []meta.NodeID{2, 3} {
						if len(c.node(n).replicator().Transfers()) > 0 {
							c.node(n).cut()
							return
						}
					}
				})
			}
			return nil
		})
		c.node(4).start()
		c.settled()
		for id, b := range files {
			c.node(4).wantBytes(id, b)
		}
	})
}

func TestLeaderChangeDuringCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		c.node(4).stop()
		c.declareDown(4)
		files := c.writeFiles(40, 20_000)
		var puts atomic.Int64
		var once sync.Once
		c.setCalls(func(from, to meta.NodeID, kind Kind) error {
			if kind == KindPut && to == 4 && puts.Add(1) > 0 {
				once.Do(c.node(1).cut)
			}
			return nil
		})
		c.node(4).start()
		c.settled()
		for id, b := range files {
			c.node(4).wantBytes(id, b)
		}
	})
}

func TestEverybodyRestartsWithWorkOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.setLeaderless()
		c.node(3).stop()
		c.declareDown(3)
		files := c.writeFiles(10, 7000)
		for id, b := range c.writeFiles(1, 3<<20) {
			files[id] = b
		}
		for _, n := range c.all() {
			n.stop()
		}
		c.setLeader()
		for _, n := range c.all() {
			n.start()
		}
		c.settled()
		for _, n := range c.all() {
			for id, b := range files {
				n.wantBytes(id, b)
			}
		}
	})
}

func TestVoteSurvivesRestartAndIsJudgedByTheLog(t *testing.T) {
	for _, tc := range []struct {
		name  string
		op    func(p *meta.Publish) meta.Op
		state content.State
		kept  bool
	}{
		{"publish", func(p *meta.Publish) meta.Op { return p }, content.Committed, true},
		{"abort", func(p *meta.Publish) meta.Op { return &meta.Abort{Session: p.Session} }, 0, false},
	} {
		for _, size := range []int{70_000, 2 << 20} {
			t.Run(tc.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, 3, 1)
					c.setLeaderless()
					ino := c.create(1, "f")
					var op *meta.Publish
					n := c.node(1)
					n.mu.Lock()
					n.propose = func(o meta.Op) error {
						if p, ok := o.(*meta.Publish); ok {
							op = p
							return ErrUnknown
						}
						return nil
					}
					n.mu.Unlock()
					if _, err := n.publish(ino, meta.ContentID{}, randomBytes(1, size)); err == nil {
						t.Fatal("published")
					}
					m := c.node(2)
					m.stop() // down when the log decides
					c.must(1, tc.op(op))
					m.start()
					c.eventually("judged", func() bool {
						state, ok := m.store.State(storeID(op.Session))
						return ok == tc.kept && (!ok || state == tc.state)
					})
				})
			})
		}
	}
}

func TestFencedWriterLeavesNothing(t *testing.T) {
	t.Parallel() // waits for seconds
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		ino := c.create(1, "f")
		b := randomBytes(1, 4<<20)
		wait := make(chan struct{})
		src := &vanishing{ReaderAt: bytes.NewReader(b), at: 2, wait: wait}
		done := make(chan error, 1)
		n := c.node(1)
		go func() {
			_, err := n.rep.Publish(context.Background(), Push{Ino: ino, Size: int64(len(b)), Source: src,
				Data: []Extent{{0, int64(len(b))}}})
			done <- err
		}()
		c.eventually("a member has begun", func() bool { return len(c.node(2).store.List(content.Partial)) > 0 })
		n.cut()
		c.declareDown(1)
		c.eventually("members dropped what they had", func() bool {
			return len(c.node(2).store.List(content.Partial))+len(c.node(3).store.List(content.Partial)) == 0
		})
		close(wait)
		if err := <-done; err == nil {
			t.Error("a fenced writer published")
		}
	})
}

func TestNonHolderReadsFromHoldersAndChecksTheBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 2}})
		ino := c.create(1, "f")
		b := randomBytes(4, 3<<20+17)
		out, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		holders, err := c.node(1).db.Holders(out.Content)
		if err != nil || len(holders) != 2 {
			t.Fatalf("holders %v, %v", holders, err)
		}
		for _, n := range c.all() {
			n.wantBytes(out.Content, b)
		}
		// One holder gone, the next one serves.
		c.node(holders[0]).cut()
		for _, n := range c.all() {
			if n.isUp() {
				n.rep.remote.cache = newBlockCache(1 << 20)
				n.wantBytes(out.Content, b)
			}
		}
	})
}

// A program that has opened a version held by other nodes goes on reading it after it is replaced.
func TestNonHolderReadsWhatWasReplacedSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 1)
		c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 2}})
		ino := c.create(1, "f")
		b := randomBytes(5, 3<<20+17)
		out, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		holders, err := c.node(1).db.Holders(out.Content)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range c.all() {
			if slices.Contains(holders, n.id) {
				continue
			}
			r, err := n.rep.OpenContent(t.Context(), out.Content)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer func() {
				got := make([]byte, len(b))
				if _, err := r.ReadAt(got, 0); err != nil || !bytes.Equal(got, b) {
					t.Errorf("node %d: right bytes %v, %v", n.id, bytes.Equal(got, b), err)
				}
			}()
		}
		if _, err := c.node(1).publish(ino, out.Content, randomBytes(6, 2<<20)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.node(1).db.Content(out.Content); !isNotFound(err) {
			t.Fatalf("the first version is still there: %v", err)
		}
	})
}

func TestDamagedBlockIsMendedFromAnotherHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		ino := c.create(1, "f")
		b := randomBytes(4, 3<<20)
		out, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		n := c.node(2)
		c.eventually("committed", func() bool { return n.heldHere(out.Content) })
		n.mendWhenFound()
		for round := range uint64(2) {
			damage(t, n.dir, out.Content)
			n.wantBytes(out.Content, b) // from another holder
			c.eventually("mended", func() bool { return n.rep.Counters().Mended == round+1 })
			if n.rep.member.mender.damaged(out.Content) {
				t.Error("it is still damaged")
			}
			n.wantBytes(out.Content, b)
		}
	})
}

// mendWhenFound starts the node again as one that mends damage only when it is found.
func (n *testNode) mendWhenFound() {
	n.c.t.Helper()
	n.stop()
	n.tuning.MendEvery = time.Hour
	n.start()
	n.rep.Settle(n.c.t.Context()) // damage that the first look at all files finds is reported as lost
}

// TestDamageOfABusyContentIsMendedLater: deltas are being merged, or it is mended already, when it is to be mended. It
// is not given up for that.
func TestDamageOfABusyContentIsMendedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.setLeaderless()
		b := randomBytes(4, 3<<20)
		out, err := c.node(1).publish(c.create(1, "f"), meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		n := c.node(2)
		c.eventually("committed", func() bool { return n.heldHere(out.Content) })
		n.mendWhenFound()
		setFault := func(fault func(call string) error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.fault = fault
		}
		var tried atomic.Bool
		setFault(func(call string) error {
			if call != "mend" {
				return nil
			}
			tried.Store(true)
			return fmt.Errorf("content: mend: %w", content.ErrBusy)
		})
		damage(t, n.dir, out.Content)
		n.wantBytes(out.Content, b) // the damage is noticed
		c.eventually("tried", tried.Load)
		n.rep.member.mender.mend(t.Context(), out.Content)
		if !n.rep.member.lost.empty() {
			t.Error("it was given up")
		}
		shape := content.Shape{Size: int64(len(b))}
		if _, err := n.rep.member.beginStore(out.Content, meta.ContentID{}, shape); !errors.Is(err, content.ErrBusy) ||
			!n.heldHere(out.Content) {
			t.Errorf("brought again: %v; here: %v", err, n.heldHere(out.Content))
		}
		setFault(nil)
		n.rep.member.mender.mend(t.Context(), out.Content)
		n.wantBytes(out.Content, b)
		if got := n.rep.Counters(); got.Mended != 1 {
			t.Errorf("counters %+v", got)
		}
	})
}

// TestCommitThatFailedIsRepeated: the disk does not take a commit for a moment.
func TestCommitThatFailedIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		n := c.node(2)
		n.stop()
		n.tuning.MendEvery = 50 * time.Millisecond
		n.start()
		var tried atomic.Int32
		n.mu.Lock()
		n.fault = func(call string) error {
			if call != "commit" || tried.Add(1) > 2 {
				return nil
			}
			return syscall.EIO
		}
		n.mu.Unlock()
		out, err := c.node(1).publish(c.create(1, "f"), meta.ContentID{}, randomBytes(4, 40_000))
		if err != nil {
			t.Fatal(err)
		}
		c.eventually("committed", func() bool { return n.heldHere(out.Content) })
	})
}

// What is damaged here is mended where it lies when it is brought again. With no other holder, its right blocks stay.
func TestDamagedContentStaysUntilItIsMended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		b := randomBytes(4, 3<<20)
		out, err := c.node(1).publish(c.create(1, "f"), meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		n := c.node(2)
		c.eventually("committed", func() bool { return n.heldHere(out.Content) })
		n.tuning.Stuck = 300 * time.Millisecond // for reads that no holder answers
		n.stop()
		n.start()
		c.node(1).stop()
		c.node(3).stop()
		damage(t, n.dir, out.Content)
		if d, err := n.store.Check(t.Context(), storeID(out.Content)); err != nil || d == nil {
			t.Fatalf("the damage is not found: %v %v", d, err)
		}
		m, shape := n.rep.member, content.Shape{Size: int64(len(b))}
		if _, err := m.beginStore(out.Content, meta.ContentID{}, shape); !errors.Is(err, errNoHolder) {
			t.Errorf("without other holders: %v", err)
		}
		r, err := n.store.Open(storeID(out.Content))
		if err != nil {
			t.Fatalf("what was right is gone: %v", err)
		}
		right := 0
		for i := range 3 {
			if _, err := r.ReadAt(make([]byte, content.BlockBytes), int64(i)*content.BlockBytes); err == nil {
				right++
			}
		}
		if err := r.Close(); err != nil || right != 2 {
			t.Errorf("%d of 2 right blocks are left: %v", right, err)
		}
		c.node(1).start()
		c.eventually("mended", func() bool {
			_, err := m.beginStore(out.Content, meta.ContentID{}, shape)
			return errors.Is(err, content.ErrExists) && !m.mender.damaged(out.Content)
		})
		n.wantBytes(out.Content, b)
	})
}

func TestLostContentIsToldAndBroughtAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		ino := c.create(1, "f")
		b := randomBytes(4, 40_000)
		out, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		n := c.node(2)
		c.eventually("committed", func() bool { return n.heldHere(out.Content) })
		damageSidecar(t, n.dir, out.Content)
		n.stop()
		n.start()
		if err := n.checkBytes(out.Content, b); err != nil {
			t.Logf("read of the damaged content: %v", err)
		}
		c.settled()
		c.eventually("whole again", func() bool { return n.checkBytes(out.Content, b) == nil && n.heldHere(out.Content) })
	})
}

func TestRetiredContentIsDeletedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 1)
		for _, n := range c.all() {
			n.stop()
			n.tuning.DeleteAfter = 300 * time.Millisecond
			n.start()
		}
		ino := c.create(1, "f")
		first, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, 2<<20))
		if err != nil {
			t.Fatal(err)
		}
		pinned, err := c.node(2).rep.OpenContent(t.Context(), first.Content)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.node(1).publish(ino, first.Content, randomBytes(2, 2<<20)); err != nil {
			t.Fatal(err)
		}
		for _, n := range c.all() {
			c.eventually("deleted", func() bool { _, ok := n.store.State(storeID(first.Content)); return !ok })
		}
		got := make([]byte, 2<<20)
		if _, err := pinned.ReadAt(got, 0); err != nil || !bytes.Equal(got, randomBytes(1, 2<<20)) {
			t.Errorf("an open reader lost its bytes: %v", err)
		}
		if err := pinned.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestHalfOfARetiredContentIsLetGo: catch-up ended half way, and the file was rewritten before it was tried again. The
// bytes that came must not stay open, or their room is not freed before the next start.
func TestHalfOfARetiredContentIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 1)
		ino := c.create(1, "f")
		c.node(2).stop()
		c.declareDown(2)
		out, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, 4<<20))
		if err != nil {
			t.Fatal(err)
		}
		c.hub.setBlock(func(_ meta.NodeID, i uint64) error {
			if i > 40 {
				return errNoSuchNode
			}
			return nil
		})
		c.node(2).tuning.DeleteAfter = 10 * time.Millisecond
		c.node(2).start()
		m := c.node(2).rep.member
		c.eventually("half of it came", func() bool { return m.runs.find(out.Content) != nil })
		c.setLeaderless()
		c.eventually("nobody sends", func() bool { return len(c.node(1).rep.Transfers()) == 0 })
		if m.runs.find(out.Content) == nil {
			t.Fatal("the session is over before the content was retired")
		}
		if _, err := c.node(1).publish(ino, out.Content, []byte("next")); err != nil {
			t.Fatal(err)
		}
		c.eventually("let go", func() bool { return m.runs.find(out.Content) == nil })
		if _, ok := c.node(2).store.State(storeID(out.Content)); ok {
			t.Error("it is in the store still")
		}
	})
}

func TestManySmallFilesCatchUpInSeconds(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.node(3).stop()
		c.declareDown(3)
		files := c.writeFiles(manyFiles(), 4500)
		began := time.Now()
		c.node(3).start()
		c.settled()
		t.Logf("%d files of 4500 bytes caught up in %v", len(files), time.Since(began))
		for id := range files {
			if !c.node(3).heldHere(id) {
				t.Fatalf("%v is not held", id)
			}
		}
	})
}

// manyFiles is 2,000, or what RDMCFS_TEST_FILES says.
func manyFiles() int {
	if n, err := strconv.Atoi(os.Getenv("RDMCFS_TEST_FILES")); err == nil {
		return n
	}
	return 2000
}

func TestDeltaOverDeltasReachesANodeThatHasOnlyTheFirstBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deltaOverDeltas(t, newCluster(t, 3, 1))
	})
}

// TestDeltasThatCannotBeMergedYet: the holder is already merging the deltas, or has not yet learned that they are
// published. The merge is tried again: sending the whole would take 12 MiB instead of 16 KiB.
func TestDeltasThatCannotBeMergedYet(t *testing.T) {
	t.Parallel() // waits for seconds
	synctest.Test(t, func(t *testing.T) {
		for _, fault := range []error{content.ErrBusy, content.ErrNotFound} {
			c := newCluster(t, 3, 1)
			for _, n := range c.all() {
				var times atomic.Int32
				n.mu.Lock()
				n.fault = func(call string) error {
					if call != "merge" || times.Add(1) > 1 {
						return nil
					}
					return fmt.Errorf("content: merge: %w", fault)
				}
				n.mu.Unlock()
			}
			deltaOverDeltas(t, c)
		}
	})
}

// deltaOverDeltas changes a file while a node is down, which then gets no more than what changed.
func deltaOverDeltas(t *testing.T, c *cluster) {
	t.Helper()
	ino := c.create(1, "f")
	b := randomBytes(5, 12<<20)
	cur, err := c.node(1).publish(ino, meta.ContentID{}, b)
	if err != nil {
		t.Fatal(err)
	}
	c.eventually("committed", func() bool { return c.node(3).heldHere(cur.Content) })
	c.node(3).stop()
	c.declareDown(3)
	for i := range 4 {
		off := int64(i) << 20
		copy(b[off:], randomBytes(uint64(i), 4096))
		cur, err = c.node(1).rep.Publish(t.Context(), Push{
			Ino: ino, Base: cur.Content, Size: int64(len(b)), Source: bytes.NewReader(b), Data: []Extent{{0, int64(len(b))}},
			Dirty: []Extent{{off, 4096}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var blocks atomic.Int64
	c.hub.setBlock(func(to meta.NodeID, i uint64) error { blocks.Add(1); return nil })
	c.node(3).start()
	c.settled()
	c.node(3).wantBytes(cur.Content, b)
	if n := blocks.Load(); n > 2 {
		t.Errorf("%d blocks were sent for 16 KiB of changes", n)
	}
}

func TestMemberWithoutTheBaseIsOwedAndThenGetsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.setLeaderless()
		ino := c.create(1, "f")
		b := randomBytes(5, 6<<20)
		c.node(3).cut()
		cur, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		c.node(3).stop()
		c.node(3).start()
		copy(b, "new bytes")
		cur, err = c.node(1).rep.Publish(t.Context(), Push{
			Ino: ino, Base: cur.Content, Size: int64(len(b)), Source: bytes.NewReader(b), Data: []Extent{{0, int64(len(b))}},
			Dirty: []Extent{{0, 9}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(cur.Result.Owed) != 1 || cur.Result.Owed[0] != 3 {
			t.Fatalf("owed %v, want node 3", cur.Result.Owed)
		}
		c.setLeader()
		c.settled()
		for _, n := range c.all() {
			n.wantBytes(cur.Content, b)
		}
	})
}

func TestContentThatVanishedFromTheDiskIsBroughtAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		ino := c.create(1, "f")
		b := randomBytes(4, 40_000)
		out, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		n := c.node(2)
		c.eventually("committed", func() bool { return n.heldHere(out.Content) })
		n.stop()
		found, err := filepath.Glob(filepath.Join(n.dir, "held", "*", out.Content.String()+"*"))
		if err != nil || len(found) == 0 {
			t.Fatal(found, err)
		}
		for _, f := range found {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
		n.start()
		n.wantBytes(out.Content, b) // from another node, and the loss is noticed
		c.eventually("here again", func() bool { return n.heldHere(out.Content) })
		c.settled()
	})
}

func TestCatchUpTakesNothingThatTheLogDidNotPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 1)
		ino := c.create(1, "f")
		b := randomBytes(4, 40_000)
		out, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		evil := []byte("not what was published")
		for _, id := range []meta.ContentID{out.Content, {Node: 1, Incarnation: 1, Seq: 99}} {
			if err := c.node(2).store.Delete(storeID(id)); err != nil {
				t.Fatal(err)
			}
			st := c.node(2).rep.member.putOne(1, &putItem{Content: id, Published: true, Root: contentRoot(evil), Bytes: evil})
			if st.Status != session.StatusRefused {
				t.Errorf("content %v: status %d", id, st.Status)
			}
		}
	})
}
