package replicate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// middling is a size at which a group of 4 nodes or more costs less than calls.
const middling = 400_000

// countPuts counts the calls with bytes that node 1 makes from now on.
func (c *cluster) countPuts() *atomic.Int64 {
	var puts atomic.Int64
	c.setCalls(func(from, _ meta.NodeID, kind Kind) error {
		if from == 1 && kind == KindPut {
			puts.Add(1)
		}
		return nil
	})
	return &puts
}

// groupsOf counts the groups of node 1 that have so many members and are connected.
func (c *cluster) groupsOf(members int) (n int) {
	l := c.node(1).replicator().rootGroups
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, set := range l.sets {
		for _, rg := range set {
			if len(rg.members) == members && rg.connected() && !rg.spoiled() {
				n++
			}
		}
	}
	return n
}

// withGroup is a cluster whose node 1 has a group of all nodes, made in the background by its first small file.
func withGroup(t *testing.T, nodes int) *cluster {
	t.Helper()
	c := newCluster(t, nodes, 3)
	c.setLeaderless()
	c.small("first")
	c.eventually("a group of all", func() bool { return c.groupsOf(nodes) == 1 })
	return c
}

// small publishes a file of middling size from node 1.
func (c *cluster) small(name string) (Outcome, []byte) {
	c.t.Helper()
	b := randomBytes(uint64(len(name)), middling)
	out, err := c.node(1).publish(c.create(1, name), meta.ContentID{}, b)
	if err != nil {
		c.t.Fatalf("%s: %v", name, err)
	}
	return out, b
}

// A small file of many members goes by the group that is kept for them, and not by calls. Status says why.
func TestSmallFileGoesByTheKeptGroup(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		c, _ := onFabric(t, fabric, 5)
		c.setLeaderless()
		c.small("first")
		c.eventually("a group of all", func() bool { return c.groupsOf(5) == 1 })
		puts := c.countPuts()
		feed := c.node(1).replicator().FollowTransfers()
		defer feed.Close()
		for _, name := range []string{"by group", "by group again"} {
			out, b := c.small(name)
			for _, n := range c.all() {
				n.wantBytes(out.Content, b)
			}
			<-feed.Ready()
			ended, _, _ := feed.Take()
			if len(ended) != 1 || ended[0].Choice.Calls || len(ended[0].Choice.Reasons) < 4 {
				t.Errorf("%s: %+v", name, ended)
			}
			if ended[0].Stream != middling || len(ended[0].Members) != 4 || ended[0].Epoch > 0 {
				t.Errorf("%s: %+v", name, ended[0])
			}
		}
		if n, groups := puts.Load(), c.groupsOf(5); n > 0 || groups != 1 {
			t.Errorf("%d puts, %d groups", n, groups)
		}
		if pace := c.node(1).rep.rootGroups.pace.Load(); pace != 0 {
			t.Errorf("a small file is taken for the pace of the links: %d bytes a second", pace)
		}
	})
}

// The bytes and roots of a small content are the same by either way, for any length.
func TestSmallFilesOfAnyLengthGoByTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withGroup(t, 8)
		puts := c.countPuts()
		for _, size := range []int{45_000, 64 << 10, 64<<10 + 1, 128<<10 - 1, 1<<20 - 1, 1 << 20} {
			b := randomBytes(uint64(size), size)
			copy(b[size-7:], "the end") // randomBytes fills words
			out, err := c.node(1).publish(c.create(1, string(rune('a'+size%26))+"x"), meta.ContentID{}, b)
			if err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			content, err := c.node(1).db.Content(out.Content)
			if err != nil || content.Root != contentRoot(b) {
				t.Errorf("%d bytes: root %x, %v", size, content.Root, err)
			}
			for _, n := range c.all() {
				n.wantBytes(out.Content, b)
			}
		}
		if n := puts.Load(); n > 0 {
			t.Errorf("%d puts", n)
		}
	})
}

// A small file of few bytes waits for no group to be made. What is under way ends with the node.
func TestNoSmallFileWaitsForAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		c.setLeaderless()
		feed := c.node(1).replicator().FollowTransfers()
		var puts, asked atomic.Int64
		release := make(chan struct{})
		c.setCalls(func(from, _ meta.NodeID, kind Kind) error {
			switch {
			case from == 1 && kind == KindPut:
				puts.Add(1)
			case kind == KindGroup:
				asked.Add(1)
				<-release
			}
			return nil
		})
		defer close(release)
		for _, name := range []string{"first", "second", "third"} {
			c.small(name)
			<-feed.Ready()
			ended, _, _ := feed.Take()
			if len(ended) != 1 || !ended[0].Choice.Calls || len(ended[0].Choice.Reasons) != 1 {
				t.Errorf("%s: %+v", name, ended)
			}
		}
		feed.Close()
		c.eventually("a group is being made", func() bool { return asked.Load() == 3 })
		if n := puts.Load(); n != 9 {
			t.Errorf("%d puts of 3 files to 3 nodes", n)
		}
		c.node(1).stop()
	})
}

// A small file for many nodes waits for the group that is being made: calls would fill the link. It does not wait long.
func TestSmallFileForManyNodesAwaitsItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 8, 3)
		c.node(1).stop()
		c.node(1).tuning.GroupAwaited = time.Hour // however busy the machine is
		c.node(1).start()
		c.setLeaderless()
		puts := c.countPuts()
		var writers sync.WaitGroup
		for i := range 3 {
			f := c.create(1, fmt.Sprintf("file%d", i))
			writers.Go(func() {
				if _, err := c.node(1).publish(f, meta.ContentID{}, randomBytes(uint64(i), 1<<20)); err != nil {
					t.Errorf("file %d: %v", i, err)
				}
			})
		}
		writers.Wait()
		if n := puts.Load(); n > 0 {
			t.Errorf("%d puts before the group was made", n)
		}
	})
}

func TestSmallFileDoesNotAwaitAGroupForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 8, 3)
		c.setLeaderless()
		var puts atomic.Int64
		release := make(chan struct{})
		c.setCalls(func(from, _ meta.NodeID, kind Kind) error {
			switch {
			case from == 1 && kind == KindPut:
				puts.Add(1)
			case kind == KindGroup:
				<-release
			}
			return nil
		})
		defer close(release)
		if _, err := c.node(1).publish(c.create(1, "file"), meta.ContentID{}, randomBytes(1, 1<<20)); err != nil {
			t.Fatal(err)
		}
		if n := puts.Load(); n != 7 {
			t.Errorf("%d puts to 7 nodes", n)
		}
	})
}

// A group that can't be made is not tried with each file.
func TestGroupThatFailsIsNotTriedWithEachFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		c.setLeaderless()
		var asked atomic.Int64
		c.setCalls(func(_, to meta.NodeID, kind Kind) error {
			if kind == KindGroup && to == 2 {
				asked.Add(1)
				return errors.New("no route")
			}
			return nil
		})
		c.small("first")
		l := c.node(1).rep.rootGroups
		c.eventually("it has failed", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.scarce) == 1 && l.total == 0
		})
		c.small("second")
		c.small("third")
		if n := asked.Load(); n != 1 {
			t.Errorf("the group was tried %d times", n)
		}
	})
}

// A group that is made for small files is tried once where there is no memory: it does not drive the groups of other
// nodes away again and again.
func TestGroupOfSmallFilesDoesNotInsist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := refuse(t, 1, 1)
		c.small("first")
		l := c.node(1).rep.rootGroups
		c.eventually("it was tried", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.total == 0 && len(l.scarce) == 1
		})
		c.small("second")
		if sizes := c.hub.groupSizes(); len(sizes) > 0 {
			t.Errorf("groups of %v", sizes)
		}
		publishAll(t, c, 1, "a large file") // that one insists
	})
}

// A writer that holds no copy sends a small file by calls: a session of a group would store one here.
func TestSmallFileOfNoHolderGoesByCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClusterWith(t, 4, 3, func(id meta.NodeID) map[string]string {
			return map[string]string{"disk": fmt.Sprint(id > 1)}
		})
		c.setLeaderless()
		c.must(1, &meta.SetPolicy{Dir: meta.RootIno, Policy: &meta.Policy{
			Placement: meta.PlaceLabels, Labels: map[string]string{"disk": "true"},
		}})
		feed := c.node(1).replicator().FollowTransfers()
		defer feed.Close()
		out, _ := c.small("a")
		<-feed.Ready()
		if ended, _, _ := feed.Take(); len(ended) != 1 || !strings.Contains(fmt.Sprint(ended[0].Choice.Reasons), "no copy") {
			t.Errorf("%+v", ended)
		}
		c.small("b")
		c.holdersAre(out.Content, 2, 3, 4)
		if sizes := c.hub.groupSizes(); len(sizes) > 0 {
			t.Errorf("groups of %v", sizes)
		}
		if state, ok := c.node(1).store.State(storeID(out.Content)); ok {
			t.Errorf("the writer stores it: %v", state)
		}
	})
}

// A small file does not wait behind a large one: it goes by calls, and a further group is begun for the next.
func TestSmallFileDoesNotWaitBehindALargeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withGroup(t, 4)
		c.node(1).stop()
		tuning := &c.node(1).tuning // what is held below is no failure
		tuning.Silent, tuning.Stalled, tuning.Stuck = neverComes, neverComes, neverComes
		c.node(1).start()
		c.small("again")
		c.eventually("a group of all", func() bool { return c.groupsOf(4) == 1 })
		held, release := make(chan struct{}), make(chan struct{})
		var first atomic.Bool
		c.hub.setBlock(func(meta.NodeID, uint64) error {
			if !first.Swap(true) {
				close(held)
				<-release
			}
			return nil
		})
		var large sync.WaitGroup
		ino := c.create(1, "large")
		large.Go(func() {
			if _, err := c.node(1).publish(ino, meta.ContentID{}, randomBytes(1, 9<<20)); err != nil {
				t.Error(err)
			}
		})
		<-held
		puts := c.countPuts()
		c.small("beside")
		if n := puts.Load(); n != 3 {
			t.Errorf("%d puts to 3 nodes", n)
		}
		c.eventually("a second group", func() bool { return c.groupsOf(4) == 2 })
		c.small("beside, too")
		if n := puts.Load(); n != 3 {
			t.Errorf("%d puts: the second group was not used", n-3)
		}
		close(release)
		large.Wait()
	})
}

// A member that dies in the midst is left out, and owed the small file; the next one goes to the others.
func TestMemberDiesInTheMidstOfASmallFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withGroup(t, 5)
		var once sync.Once
		c.hub.setBlock(func(to meta.NodeID, i uint64) error {
			if to == 4 && i >= 2 {
				once.Do(c.node(4).cut)
				return errNoSuchNode
			}
			return nil
		})
		out, b := c.small("file")
		c.holdersAre(out.Content, 1, 2, 3, 5)
		c.declareDown(4)
		next, _ := c.small("next")
		c.holdersAre(next.Content, 1, 2, 3, 5)
		for _, id := range []meta.NodeID{1, 2, 3, 5} {
			c.node(id).wantBytes(out.Content, b)
		}
		c.eventually("failed groups have ended", func() bool { return c.hub.unended(1) == 0 })
	})
}

// cutSource is staged bytes that are cut off while they are read.
type cutSource struct{}

func (cutSource) ReadAt([]byte, int64) (int, error) { return 0, ErrCut }

// A small file that is cut off while it is pushed fails alone: others may have messages on the group.
func TestSmallFileThatIsCutOffFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withGroup(t, 4)
		_, err := c.node(1).rep.Publish(t.Context(), Push{
			Ino: c.create(1, "cut"), Size: middling, Source: cutSource{}, Data: []Extent{{0, middling}},
		})
		if !errors.Is(err, ErrCut) {
			t.Errorf("published: %v", err)
		}
		if n := c.groupsOf(4); n != 1 {
			t.Errorf("%d groups are left", n)
		}
		puts := c.countPuts()
		out, b := c.small("next")
		for _, n := range c.all() {
			n.wantBytes(out.Content, b)
		}
		if n := puts.Load(); n > 0 || len(c.hub.groupSizes()) != 1 {
			t.Errorf("%d puts, groups of %v", n, c.hub.groupSizes())
		}
	})
}

// Too few copies are an error, as with all ways.
func TestSmallFileByTheGroupNeedsItsCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withGroup(t, 4)
		c.hub.setSink(func(meta.NodeID, uint64) error { return errors.New("disk") })
		puts := c.countPuts()
		_, err := c.node(1).publish(c.create(1, "f"), meta.ContentID{}, randomBytes(1, middling))
		if !errors.Is(err, ErrCopies) || puts.Load() > 0 {
			t.Errorf("%v, %d puts; want too few copies", err, puts.Load())
		}
		c.hub.setSink(nil)
		out, _ := c.small("g")
		c.holdersAre(out.Content, 1, 2, 3, 4)
	})
}

// Under a policy with a rate or a class small files go by calls: large ones may fill such a group for long.
func TestSmallFileUnderACapGoesByCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, policy := range []meta.Policy{{SendRate: meta.SendRateMin}, {Priority: meta.PriorityLow}} {
			c := newCluster(t, 4, 3)
			c.setLeaderless()
			c.must(1, &meta.SetPolicy{Dir: meta.RootIno, Policy: &policy})
			puts := c.countPuts()
			c.small("a")
			c.small("b")
			if n := puts.Load(); n != 6 || len(c.hub.groupSizes()) > 0 {
				t.Errorf("%+v: %d puts, groups of %v", policy, n, c.hub.groupSizes())
			}
		}
	})
}

// A delta of little stream goes by the group as well.
func TestSmallDeltaGoesByTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withGroup(t, 4)
		puts := c.countPuts()
		ino := c.create(1, "f")
		b := randomBytes(5, 8<<20)
		base, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		copy(b[1<<20:], randomBytes(6, 512<<10))
		out, err := c.node(1).rep.Publish(t.Context(), Push{
			Ino: ino, Base: base.Content, Size: int64(len(b)), Source: bytes.NewReader(b), Data: []Extent{{0, int64(len(b))}},
			Dirty: []Extent{{1 << 20, 512 << 10}},
		})
		if err != nil || puts.Load() > 0 {
			t.Fatalf("%v, %d puts", err, puts.Load())
		}
		for _, n := range c.all() {
			n.wantBytes(out.Content, b)
			r, err := n.store.OpenUndecided(storeID(out.Content))
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Layout().StreamBytes(); got != 512<<10 {
				t.Errorf("node %d stores a stream of %d bytes", n.id, got)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// A group is given as long as the bytes queued on it are accepted; each one is given back once.
func TestReadyGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		l, self, members := c.node(1).rep.rootGroups, c.node(1).self(), []meta.NodeID{1, 2, 3}
		form := groupForm{BlockBytes: 64 << 10, Algorithm: schedule.BinomialPipeline}
		any := func(int64) bool { return true }
		rg, made := l.ready(self, members, 5, form, any)
		if rg != nil || made == nil {
			t.Fatal("a group, before one was made, or none is being made")
		}
		<-made
		synctest.Wait() // its maker has given it back
		if n := c.groupsOf(3); n != 1 {
			t.Fatalf("%d groups", n)
		}
		var queued []int64
		first, made := l.ready(self, members, 5, form, func(q int64) bool { queued = append(queued, q); return true })
		second, _ := l.ready(self, members, 6, form, func(q int64) bool { queued = append(queued, q); return true })
		if made != nil {
			t.Error("a further group is made beside one that is given")
		}
		if first == nil || first != second || !slices.Equal(queued, []int64{0, 5}) || first.busy != 2 {
			t.Fatalf("%v, %v, queued %v", first, second, queued)
		}
		k := &keptGroup{group: first, bytes: 5}
		if k.take("another set") != nil {
			t.Error("taken for other members")
		}
		if k.take(first.key) != first || k.take(first.key) != nil {
			t.Error("not taken, or taken twice")
		}
		l.letGo(k) // it was taken
		l.letGo(nil)
		if first.busy != 2 || first.bytes != 11 {
			t.Errorf("%d sessions of %d bytes", first.busy, first.bytes)
		}
		l.release(first, 5)
		l.letGo(&keptGroup{group: second, bytes: 6})
		if first.busy != 0 || first.bytes != 0 {
			t.Errorf("%d sessions of %d bytes", first.busy, first.bytes)
		}
		third, _ := l.ready(self, members, 7, form, any)
		failed := &keptGroup{group: third, bytes: 7}
		first.group.Fail(nil, errors.New("test"))
		if failed.take(first.key) != nil {
			t.Error("a group that has failed was taken")
		}
		l.letGo(failed)
		if rg, _ := l.ready(self, members, 7, form, any); rg != nil {
			t.Error("a group that has failed is given")
		}
		c.eventually("another group", func() bool { return c.groupsOf(3) == 1 })
	})
}

// Who leaves the others to catch-up, or has none, sends nothing, and makes no group.
func TestNoGroupWithoutMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		c.setLeaderless()
		c.must(1, &meta.SetPolicy{Dir: meta.RootIno, Policy: &meta.Policy{AckLocal: true}})
		ctx, cancel := context.WithTimeout(t.Context(), neverComes)
		defer cancel()
		ino := c.create(1, "f")
		if _, err := c.node(1).rep.Publish(ctx, Push{
			Ino: ino, Size: middling, Source: bytes.NewReader(randomBytes(1, middling)), Data: []Extent{{0, middling}},
		}); err != nil {
			t.Fatal(err)
		}
		if sizes := c.hub.groupSizes(); len(sizes) > 0 {
			t.Errorf("groups of %v", sizes)
		}
	})
}
