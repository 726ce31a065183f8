package integration

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G10: what status and watch say is so.
func TestG10Told(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3})
	t.Run("stopped", func(t *testing.T) { stopIsTold(t, c) })
}

// stopIsTold stops one node as planned and kills it another time: the others say which it was.
func stopIsTold(t *testing.T, c *cluster.Cluster) {
	seer, gone := c.Nodes[0], c.Nodes[2]
	for _, how := range []struct {
		end  func()
		says string
	}{
		{gone.Stop, "stopped"},
		{gone.Kill, "silent"},
	} {
		how.end()
		c.Await(30*time.Second, "the end of "+gone.Name()+" is told", func() (bool, string) {
			n := nodeOf(t, seer.Status(), gone)
			return n.State == "down", fmt.Sprintf("%s: %s", n.State, n.Reason)
		})
		if got := nodeOf(t, seer.Status(), gone).Reason; len(got) < len(how.says) || got[:len(how.says)] != how.says {
			t.Errorf("%s is down (%s), want %q", gone.Name(), got, how.says)
		}
		for syscall.Unmount(gone.Mount, syscall.MNT_DETACH) == nil {
		}
		gone.Start()
		c.AwaitUp(c.Nodes...)
	}
}
