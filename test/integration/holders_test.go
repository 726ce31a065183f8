package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// lackingFiles are the sizes of files that a node loses: in the sidecar, in a file of its own, and sent by multicast.
var lackingFiles = []int64{9_000, 300_000, 3<<20 + 17}

// G2, G10: a node that lacks what the log believes it holds discovers that at its start. As soon as it is up, where and
// wait report the truth; then it has the bytes itself. The content store was emptied; an observer's directory was put
// back to an older copy; all nodes were restarted, and one has hollow files.
func TestNodeThatLacksWhatItIsBelievedToHold(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 4})
	want := map[string]string{}
	add := func(round string) {
		for i, bytes := range lackingFiles {
			name := fmt.Sprintf("%s%d", round, i)
			src := filepath.Join(c.Dir, name)
			cluster.Random(t, src, bytes, uint64(i))
			run(t, "cp", src, c.Nodes[0].Path(name))
			sum, err := cluster.Digest(src)
			if err != nil {
				t.Fatal(err)
			}
			want[name] = sum
		}
	}
	add("first")
	emptied := c.Nodes[1]
	c.AwaitNothingOwed(time.Minute)
	emptied.Stop()
	if err := os.RemoveAll(filepath.Join(emptied.Data, "content")); err != nil {
		t.Fatal(err)
	}
	emptied.Start()
	holdsItself(t, c, emptied, want)

	observer := observerOf(t, c)
	observer.Stop()
	run(t, "cp", "-a", observer.Data, observer.Data+".old")
	observer.Start()
	c.AwaitUp(c.Nodes...)
	add("second")
	c.AwaitNothingOwed(time.Minute)
	observer.Stop()
	run(t, "rm", "-rf", observer.Data)
	run(t, "mv", observer.Data+".old", observer.Data)
	observer.Start()
	holdsItself(t, c, observer, want)

	for _, n := range c.Nodes {
		n.Stop()
	}
	hollow := c.Nodes[2]
	for _, path := range filesUnder(t, filepath.Join(hollow.Data, "content", "held"), ".data") {
		if err := os.Truncate(path, 4096); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes {
		n.Launch()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, n := range c.Nodes {
		n.AwaitMounted(ctx)
	}
	holdsItself(t, c, hollow, want)
}

// observerOf is a node that does not vote.
func observerOf(t *testing.T, c *cluster.Cluster) *cluster.Node {
	t.Helper()
	for _, n := range c.Nodes {
		if !nodeOf(t, c.Nodes[0].Status(), n).Voter {
			return n
		}
	}
	t.Fatal("every node votes")
	return nil
}

// holdsItself waits as an operator would, with wait at the node, and then reads each file there with the link cut.
func holdsItself(t *testing.T, c *cluster.Cluster, n *cluster.Node, want map[string]string) {
	t.Helper()
	began := time.Now()
	n.MustCLI("wait", "--timeout", "50s")
	t.Logf("%s: wait returned after %v", n.Name(), time.Since(began))
	c.AwaitUp(c.Nodes...)
	c.Net().Cut(n.Index, true)
	for name, sum := range want {
		if got, err := cluster.Digest(n.Path(name)); err != nil || got != sum {
			t.Errorf("%s alone reads %s as %s (%v), want %s", n.Name(), name, got, err, sum)
		}
	}
	c.Net().Cut(n.Index, false)
	c.AwaitUp(c.Nodes...)
	c.AwaitNothingOwed(time.Minute)
}
