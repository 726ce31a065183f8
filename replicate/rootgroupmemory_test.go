package replicate

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// publishAll makes one node publish a file, which nobody may be owed.
func publishAll(t *testing.T, c *cluster, node meta.NodeID, name string) {
	t.Helper()
	b := randomBytes(uint64(node), 3<<20)
	out, err := c.node(node).publish(c.create(node, name), meta.ContentID{}, b)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	for _, owed := range out.Result.Owed {
		reason := owedReasons(t, c.node(1).db, owed)[out.Content]
		t.Errorf("%s: owed to node %d, reason %d: %s", name, owed, reason, c.node(node).rep.WhySlow(owed, meta.ContentID{}))
	}
	for _, n := range c.all() {
		n.wantBytes(out.Content, b)
	}
}

// scarce is four nodes with a budget of registered memory. They wait for it, and for each other, as long as a late
// machine may take.
func scarce(t *testing.T, fabric string, budget int64) (*cluster, []*allocating) {
	c, _, devices := onFabricWithin(t, fabric, 4, budget)
	c.setLeaderless()
	for _, n := range c.all() {
		n.stop()
		n.tuning.Silent, n.tuning.Stalled, n.tuning.Stuck = 20*time.Second, 20*time.Second, 0
		n.start()
		n.rep.rootGroups.patience = time.Minute
	}
	return c, devices
}

// TestIdleGroupsMakeRoom: each node in turn sends a file to all. There is memory for the groups of some of them only:
// the idle ones of others go, and nobody is owed anything.
func TestIdleGroupsMakeRoom(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		c, devices := scarce(t, fabric, 700<<10)
		for turn := range 2 {
			for _, n := range c.all() {
				publishAll(t, c, n.id, fmt.Sprintf("%d from %d", turn, n.id))
			}
		}
		for i, d := range devices {
			if peak := d.memory.Peak(); peak > 700<<10 {
				t.Errorf("node %d: %d bytes", i+1, peak)
			}
		}
	})
}

// TestGoesOnWithTheGroupItHas: there is memory for one group of a member set. A session that would take a further one
// while another session is on the first goes behind that, and does not wait for memory.
func TestGoesOnWithTheGroupItHas(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		c, _ := scarce(t, fabric, 300<<10)
		publishAll(t, c, 1, "before")
		b := randomBytes(1, 3<<20)
		begun, open := make(chan struct{}), make(chan struct{})
		src := &interrupted{ReaderAt: bytes.NewReader(b), at: 1, do: func() { close(begun); <-open }}
		var pushes sync.WaitGroup
		pushes.Go(func() {
			if _, err := c.node(1).rep.Publish(t.Context(), Push{Ino: c.create(1, "first"), Size: int64(len(b)), Source: src,
				Data: []Extent{{0, int64(len(b))}}}); err != nil {
				t.Error(err)
			}
		})
		<-begun
		for i := range 3 {
			pushes.Go(func() { publishAll(t, c, 1, fmt.Sprint(i)) })
		}
		l := c.node(1).rep.rootGroups
		c.eventually("a session is behind the one that is on the group", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.scarce) > 0
		})
		close(open)
		pushes.Wait()
		if got := c.node(1).rep.Counters(); got.Epochs > 0 {
			t.Errorf("%d epochs: a session did not take the group that was there", got.Epochs)
		}
	})
}

// refusing is a node without memory for a number of groups.
type refusing struct {
	Groups
	mu   sync.Mutex
	left int
}

func (r *refusing) NewGroup(cfg rdmc.GroupConfig) (Group, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left > 0 {
		r.left--
		return nil, fmt.Errorf("rdmc: new group %d: %w: 64 of 64 MiB in use", cfg.Number, rdmc.ErrMemory)
	}
	return r.Groups.NewGroup(cfg)
}

// refuse makes a cluster in which a node refuses so many groups.
func refuse(t *testing.T, node meta.NodeID, times int) *cluster {
	c := newCluster(t, 4, 3)
	c.setLeaderless()
	n := c.node(node)
	n.stop()
	n.groups = &refusing{Groups: n.groups, left: times}
	n.start()
	return c
}

// TestRefusedForMemoryIsAskedAgain: a root or a member without memory for a group is asked again, until it has it.
func TestRefusedForMemoryIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, node := range []meta.NodeID{1, 3} {
			c := refuse(t, node, 5)
			var pushes sync.WaitGroup
			for i := range 3 { // two groups may be refused at the same time: one of them goes on
				pushes.Go(func() { publishAll(t, c, 1, fmt.Sprint(i)) })
			}
			pushes.Wait()
			if got := c.node(1).rep.Counters(); got.Epochs > 0 {
				t.Errorf("node %d refused: %d epochs", node, got.Epochs)
			}
		}
	})
}

// TestRefusedForMemoryIsNotDead: a member that has no memory for long is owed the file with that as the evidence, not
// as one that can't be reached; the others have it.
func TestRefusedForMemoryIsNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := refuse(t, 3, 1<<30)
		c.node(1).rep.rootGroups.patience = 300 * time.Millisecond
		b := randomBytes(1, 3<<20)
		out, err := c.node(1).publish(c.create(1, "f"), meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Result.Owed) != 1 || out.Result.Owed[0] != 3 {
			t.Fatalf("owed %v, want node 3", out.Result.Owed)
		}
		if got := owedReasons(t, c.node(1).db, 3)[out.Content]; got != meta.OwedSlow {
			t.Errorf("owed for reason %d, want slow", got)
		}
		why := c.node(1).rep.WhySlow(3, out.Content)
		if !strings.Contains(why, "node 3") || !strings.Contains(why, "64 of 64 MiB in use") {
			t.Errorf("the evidence is %q", why)
		}
		for _, id := range []meta.NodeID{1, 2, 4} {
			c.node(id).wantBytes(out.Content, b)
		}
	})
}

// TestAllSendWithLittleMemory: all nodes send at the same time, with memory for the groups of some of them at a time.
func TestAllSendWithLittleMemory(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		c, _ := scarce(t, fabric, 700<<10)
		var pushes sync.WaitGroup
		for _, n := range c.all() {
			for i := range 3 {
				pushes.Go(func() { publishAll(t, c, n.id, fmt.Sprintf("%d from %d", i, n.id)) })
			}
		}
		pushes.Wait()
	})
}
