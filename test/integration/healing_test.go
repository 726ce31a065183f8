package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

const (
	healRate    = "50mbit"
	healPerSec  = 50e6 / 8
	healAtOnce  = 2 * time.Second  // the goal, plus 1.2 times what the link takes
	healAllowed = 20 * time.Second // allowed on a loaded machine, plus four times what the link takes
)

// G6: a node comes back: it was down, was killed in the midst of what it is owed, was stopped there, and its holder
// was stopped there. Each time it gets what it lacks at once, at the pace of its link, however often that failed
// before; and it is not called slow.
func TestReturningNodeIsHealedAtThePaceOfItsLink(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3, Rate: healRate})
	writer, back := c.Nodes[0], c.Nodes[2]
	small, large := filepath.Join(c.Dir, "small"), filepath.Join(c.Dir, "large")
	cluster.Random(t, small, 512<<10, 1)
	cluster.Random(t, large, 8<<20, 2)
	round := 0
	write := func() {
		round++
		for i := range 16 {
			run(t, "cp", small, writer.Path(fmt.Sprintf("small%d-%d", round, i)))
		}
		run(t, "cp", large, writer.Path(fmt.Sprintf("large%d", round)))
	}
	back.Kill()
	c.AwaitState(time.Minute, writer, back, "down")
	write()
	back.Launch()
	awaitIncarnation(t, c, writer, back, 2)
	midway(t, c, writer, back)
	back.Kill()
	c.AwaitState(time.Minute, writer, back, "down")
	write()
	back.Launch()
	awaitIncarnation(t, c, writer, back, 3)
	healed(t, c, writer, back, "killed in the midst of it")

	for _, stopped := range []*cluster.Node{back, c.Nodes[1]} {
		back.Kill()
		c.AwaitState(time.Minute, writer, back, "down")
		write()
		back.Launch()
		awaitIncarnation(t, c, writer, back, 4)
		midway(t, c, writer, back)
		goOn := stopped.StandStill(2 * time.Minute)
		c.AwaitState(time.Minute, writer, stopped, "down")
		goOn()
		c.AwaitState(time.Minute, writer, stopped, "up")
		healed(t, c, writer, back, stopped.Name()+" was stopped in the midst of it")
	}
	sameEverywhere(t, c, large, "large1")
}

// midway waits until a node has got a part of what it is owed.
func midway(t *testing.T, c *cluster.Cluster, at, n *cluster.Node) {
	t.Helper()
	first := nodeOf(t, at.Status(), n).OwedBytes
	c.Await(time.Minute, n.Name()+" gets what it is owed", func() (bool, string) {
		left := nodeOf(t, at.Status(), n).OwedBytes
		return left < first || left == 0, fmt.Sprint(left)
	})
}

// healed waits until a node that is back is owed nothing, prints how long that took, and bounds it by what the link
// takes.
func healed(t *testing.T, c *cluster.Cluster, at, n *cluster.Node, what string) {
	t.Helper()
	began := time.Now()
	owed := nodeOf(t, at.Status(), n)
	link := time.Duration(float64(owed.OwedBytes) / healPerSec * float64(time.Second))
	if strings.Contains(owed.OwedReason, "slow") {
		t.Errorf("%s: owed for the reason %q", what, owed.OwedReason)
	}
	c.AwaitNothingOwed(3 * time.Minute)
	took := time.Since(began)
	t.Logf("%s: %d MiB healed in %.1f s; the link takes %.1f s, the goal is %.1f s", what, owed.OwedBytes>>20,
		took.Seconds(), link.Seconds(), (healAtOnce + link*12/10).Seconds())
	if limit := healAllowed + 4*link; took > limit {
		t.Errorf("%s: healing took %v, want at most %v", what, took, limit)
	}
}
