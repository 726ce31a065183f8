package integration

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// The line of a follower, an observer or the leader was cut for so long that the node refuses changes. When the line is
// back, changes wait until the leader is known. On a late machine they wait in vain, after 2 s.
func TestChangesWaitOnceTheLineIsBack(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 4})
	for _, role := range []string{"follower", "observer", "leader"} {
		n := nodeWithRole(t, c, role)
		c.Net().Cut(n.Index, true)
		c.Await(30*time.Second, "the node knows that it is cut off", func() (bool, string) { return !n.Status().Quorum, "" })
		c.Net().Cut(n.Index, false)
		up := time.Now()
		for try := 0; ; try++ {
			began := time.Since(up)
			err := os.Mkdir(n.Path(fmt.Sprint(role, try)), 0o755)
			if err == nil {
				t.Logf("%s: a directory after %v, begun after %v", role, time.Since(up), began)
				break
			}
			if !errors.Is(err, syscall.EROFS) || began > 300*time.Millisecond && began < 1500*time.Millisecond {
				t.Errorf("%s: a directory that is made %v after the line is back: %v", role, began, err)
			}
			if began > 30*time.Second {
				t.Fatal("changes are refused for ever")
			}
			<-time.After(10 * time.Millisecond)
		}
		c.AwaitUp(c.Nodes...)
	}
}

// nodeWithRole is a node that leads, votes only, or does not vote.
func nodeWithRole(t *testing.T, c *cluster.Cluster, role string) *cluster.Node {
	t.Helper()
	st := c.Nodes[0].Status()
	for _, n := range c.Nodes {
		leads := st.Leader == uint32(n.Index+1)
		is := map[bool]string{true: "follower", false: "observer"}[nodeOf(t, st, n).Voter]
		if leads {
			is = "leader"
		}
		if is == role {
			return n
		}
	}
	t.Fatalf("no node is %s", role)
	return nil
}
