package integration

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G2, G6: a member dies in mid-transfer and comes back, then the only other one dies: cp succeeds with the one that
// is back, in the same session, and blocks that it held are not sent again.
func TestOneComesBackInMidTransferAndTheOtherDies(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3, Rate: "100mbit"})
	src := filepath.Join(c.Dir, "image")
	bytes := size[int64](96<<20, 256<<20)
	cluster.Random(t, src, bytes, 4)
	writer, back, dies := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	cp := startCopy(t, src, writer.Path("image"))
	awaitMoving(t, c, writer, 0.2)
	back.Kill()
	back.Launch()
	awaitIncarnation(t, c, writer, back, 2)
	had := heldBy(writer, back)
	before := sent(t, writer)
	dies.Kill()
	took, err := cp.wait(t, 2*time.Minute)
	if err != nil {
		t.Fatalf("cp after %v: %v: %s", took, err, cp.stderr.String())
	}
	again := sent(t, writer) - before
	t.Logf("cp took %v; %s had %d MiB when the other died, the writer sent %d MiB from then on", took, back.Name(),
		had>>20, again>>20)
	if limit := (bytes-had)*11/10 + 8<<20; again > limit {
		t.Errorf("the writer sent %d MiB after the second death, want at most %d", again>>20, limit>>20)
	}
	sameEverywhere(t, c, src, "image")
	if owed := nodeOf(t, writer.Status(), dies); owed.OwedCount == 0 || owed.OwedReason == "" {
		t.Errorf("status does not say what %s is owed: %+v", dies.Name(), owed)
	}
	dies.Start()
	c.AwaitNothingOwed(60 * time.Second)
	sameEverywhere(t, c, src, "image")
}

// G2: both members die and come back at once, before the log notices: cp waits for them.
func TestEveryMemberRestartsInMidTransfer(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3, Rate: "100mbit"})
	src := filepath.Join(c.Dir, "image")
	cluster.Random(t, src, 64<<20, 5)
	cp := startCopy(t, src, c.Nodes[0].Path("image"))
	awaitMoving(t, c, c.Nodes[0], 0.2)
	for _, n := range c.Nodes[1:] {
		n.Kill()
		n.Launch()
	}
	took, err := cp.wait(t, 2*time.Minute)
	if err != nil {
		t.Fatalf("cp after %v: %v: %s", took, err, cp.stderr.String())
	}
	t.Logf("cp took %v", took)
	c.AwaitUp(c.Nodes...)
	c.AwaitNothingOwed(60 * time.Second)
	sameEverywhere(t, c, src, "image")
}

// awaitIncarnation waits until the log, as a node knows it, has let another one in for the nth time.
func awaitIncarnation(t *testing.T, c *cluster.Cluster, at, n *cluster.Node, incarnation uint32) {
	t.Helper()
	c.Await(60*time.Second, n.Name()+" is back", func() (bool, string) {
		have := nodeOf(t, at.Status(), n)
		return have.State == "up" && have.Incarnation >= incarnation, have.State
	})
}

// heldBy is what a member of the writer's transfer was last known to have of it.
func heldBy(writer, n *cluster.Node) (held int64) {
	for _, tr := range writer.Status().Transfers {
		for _, m := range tr.Members {
			if m.Name == n.Name() {
				held = max(held, m.Bytes)
			}
		}
	}
	return held
}
