package integration

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// Nodes that return one after the other share what is still to be sent.
func TestNodesThatReturnApartShareWhatTheyAreOwed(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 5, Rate: "200mbit"})
	holders, back := c.Nodes[:3], c.Nodes[3:]
	for _, n := range back {
		n.Kill()
	}
	const files, bytes = 40, 4 << 20
	for i := range files {
		src := filepath.Join(c.Dir, fmt.Sprintf("f%d", i))
		cluster.Random(t, src, bytes, uint64(i))
		if _, err := startCopy(t, src, holders[0].Path(filepath.Base(src))).wait(t, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	sum := func() (total int64) {
		for _, n := range holders {
			total += sent(t, n)
		}
		return total
	}
	before := sum()
	back[0].Start()
	owed := func() int64 { return nodeOf(t, holders[0].Status(), back[0]).OwedBytes }
	c.Await(60*time.Second, "a part has come", func() (bool, string) {
		left := owed()
		return left < files*bytes*9/10, fmt.Sprintf("%d bytes are owed", left)
	})
	back[1].Start()
	alone := 1 - float64(owed())/(files*bytes)
	c.AwaitNothingOwed(60 * time.Second)
	share := float64(sum()-before) / (files * bytes)
	t.Logf("the holders sent %.2f times the files, of which one node had got %.2f alone", share, alone)
	if share > 1.4+alone {
		t.Error("the rest was not shared")
	}
}
