package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G2, G6: one link has a twentieth of the rate of the others. cp does not wait for it: the node is owed the file,
// status and the log say why, and it gets the file afterwards.
func TestOneSlowLinkDoesNotHoldTheOthers(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 4, Rate: "100mbit"})
	writer, slow := c.Nodes[0], c.Nodes[2]
	c.Net().Shape(slow.Index, "5mbit")
	src := filepath.Join(c.Dir, "image")
	cluster.Random(t, src, 128<<20, 6) // the verdict comes after half a minute, in which the slow link moves 15 MiB
	took, err := startCopy(t, src, writer.Path("image")).wait(t, 3*time.Minute)
	if err != nil {
		t.Fatalf("cp: %v", err)
	}
	t.Logf("cp took %v; at the pace of the slow link it takes 215 s", took)
	owed := nodeOf(t, writer.Status(), slow)
	t.Logf("%s: %d owed: %q", owed.Name, owed.OwedCount, owed.OwedReason)
	if owed.OwedCount != 1 || !strings.Contains(owed.OwedReason, "slow") ||
		!strings.Contains(owed.OwedReason, "a second while the others had") {
		t.Errorf("status does not say what the slow node is owed and why: %+v", owed)
	}
	for _, n := range c.Nodes {
		if have := nodeOf(t, writer.Status(), n); n != slow && have.OwedCount > 0 {
			t.Errorf("%s is owed %d too: %s", n.Name(), have.OwedCount, have.OwedReason)
		}
	}
	if log, err := os.ReadFile(writer.Data + ".log"); err != nil ||
		!strings.Contains(string(log), "a second while the others had") {
		t.Errorf("the writer's log does not say why: %v", err)
	}
	c.Net().Shape(slow.Index, "100mbit")
	c.AwaitNothingOwed(2 * time.Minute)
	sameEverywhere(t, c, src, "image")
}
