package integration

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G2, G10: files of up to 1 MiB are judged by their progress. What a slow link takes long for fails no close, and
// nobody is owed anything.
func TestSmallFilesOnSlowLinks(t *testing.T) {
	for _, tc := range []struct {
		rate         string
		nodes, files int
		size         int64
	}{
		{"10mbit", 7, 8, 1 << 20},  // by groups, as far as they are made in time: 8 to 21 s
		{"1mbit", 3, 6, 256 << 10}, // 3 MiB: 25 s
	} {
		t.Run(tc.rate, func(t *testing.T) {
			t.Parallel()
			c := start(t, cluster.Options{Nodes: tc.nodes, Rate: tc.rate})
			writer := c.Nodes[0]
			var copies []*copying
			began := time.Now()
			for i := range tc.files {
				name := fmt.Sprintf("file%d", i)
				src := filepath.Join(c.Dir, name)
				cluster.Random(t, src, tc.size, uint64(i))
				copies = append(copies, startCopy(t, src, writer.Path(name)))
			}
			for i, cp := range copies {
				if _, err := cp.wait(t, 5*time.Minute); err != nil {
					t.Errorf("cp %d: %v", i, err)
				}
			}
			t.Logf("%d files of %d bytes at %s on %d nodes: %v", tc.files, tc.size, tc.rate, tc.nodes, time.Since(began))
			for _, n := range writer.Status().Nodes {
				if n.OwedCount > 0 {
					t.Errorf("%s is owed %d: %s", n.Name, n.OwedCount, n.OwedReason)
				}
			}
			for i := range tc.files {
				name := fmt.Sprintf("file%d", i)
				sameEverywhere(t, c, filepath.Join(c.Dir, name), name)
			}
		})
	}
}

// G6: as long as no pace is known, that of a group may be the pace of its links: a first transfer of more than 10 s
// stays together, and nobody is left out.
func TestFirstTransferOnSlowLinksStaysTogether(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 4, Rate: "40mbit"})
	writer := c.Nodes[0]
	src := filepath.Join(c.Dir, "image")
	cluster.Random(t, src, 64<<20, 7) // 13.4 s at the rate of the links
	cp := startCopy(t, src, writer.Path("image"))
	epoch, chosen := uint32(0), ""
	for running := true; running; {
		select {
		case err := <-cp.done:
			if running = false; err != nil {
				t.Fatalf("cp: %v", err)
			}
		case <-time.After(100 * time.Millisecond):
		}
		for _, tr := range writer.Status().Transfers {
			epoch = max(epoch, tr.Epoch)
			if tr.Choice != nil {
				chosen = tr.Choice.Algorithm
			}
		}
	}
	t.Logf("cp took %v", time.Since(cp.start))
	if chosen != "binomial-pipeline" {
		t.Errorf("status shows the algorithm %q", chosen)
	}
	if epoch != 0 {
		t.Errorf("the members were regrouped %d times", epoch)
	}
	for _, n := range writer.Status().Nodes {
		if n.OwedCount > 0 {
			t.Errorf("%s is owed %d: %s", n.Name, n.OwedCount, n.OwedReason)
		}
	}
	sameEverywhere(t, c, src, "image")
}
