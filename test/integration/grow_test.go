package integration

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G6: what a node wrote while it was the only one is brought to those who join later, and what one of two wrote while the other was
// away: by the leader, which nobody else can do.
func TestAClusterGrowsFromOne(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3, Manual: true})
	one, two, three := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	one.Init()
	one.Start()
	src := c.Dir + "/src"
	cluster.Random(t, src, 3<<20, 1)
	run(t, "cp", src, one.Path("large"))
	run(t, "cp", "/etc/passwd", one.Path("small"))

	two.Join()
	two.Start()
	c.AwaitUp(one, two)
	c.AwaitNothingOwed(30 * time.Second)
	two.Stop()
	c.AwaitState(30*time.Second, one, two, "down")
	run(t, "cp", src, one.Path("while away"))
	two.Start()
	c.AwaitUp(one, two)
	c.AwaitNothingOwed(30 * time.Second)

	three.Join()
	three.Start()
	c.AwaitUp(c.Nodes...)
	c.AwaitNothingOwed(30 * time.Second)
	one.Kill() // the others have it all
	for name, from := range map[string]string{"large": src, "small": "/etc/passwd", "while away": src} {
		sameEverywhere(t, c, from, name)
	}
}
