package integration

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// A leader that is evicted leads no more, even while a program keeps its mount from ending: nobody takes its word.
func TestEvictedLeaderLeadsNoMore(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3, Rate: "100mbit"})
	leader, other := c.Nodes[0], c.Nodes[1]
	number := nodeOf(t, other.Status(), leader).ID
	if got := other.Status().Leader; got != number {
		t.Fatalf("node %d leads", got)
	}
	src := filepath.Join(c.Dir, "image")
	cluster.Random(t, src, 64<<20, 1)
	startCopy(t, src, leader.Path("image"))
	awaitMoving(t, c, leader, 0.1)
	other.MustCLI("evict", "--lose", leader.Name())
	c.Await(10*time.Second, "another leader", func() (bool, string) {
		got := other.Status().Leader
		return got != 0 && got != number, fmt.Sprintf("node %d leads", got)
	})
	t.Logf("the evicted node runs: %t", leader.Running())
	diesSaying(t, leader, time.Minute, exitcode.Denied, "evicted")
}
