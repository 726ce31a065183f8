package integration

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// A node that stands still is asked for unpublished files only until the log says that it is down: then the eviction
// goes on. When the node goes on it hears that it is out.
func TestEvictANodeThatStandsStill(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	stays, still := c.Nodes[0], c.Nodes[2]
	c.Await(time.Minute, "a connection for calls", func() (bool, string) {
		n := nodeOf(t, stays.Status(), still)
		return n.Connected, n.State
	})
	goOn := still.StandStill(time.Minute)
	began := time.Now()
	stays.MustCLI("evict", still.Name())
	took := time.Since(began)
	goOn()
	t.Logf("evicted in %v", took)
	if took > 8*time.Second { // it is down after 3 s
		t.Errorf("the eviction took %v", took)
	}
	diesSaying(t, still, time.Minute, exitcode.Denied, "evicted")
}
