package replicate

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// A reader that opened a file before catch-up has brought it reads from other holders until then, and here afterwards.
// What it reads here is checked: a damaged block comes from another holder.
func TestReaderOfWhatCatchUpBrings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.setLeaderless()
		c.node(3).stop()
		c.declareDown(3)
		const blocks = 4
		want := randomBytes(1, blocks<<20)
		out, err := c.node(1).publish(c.create(1, "f"), meta.ContentID{}, want)
		if err != nil {
			t.Fatal(err)
		}
		n := c.node(3)
		n.start()
		r, err := n.rep.OpenContent(t.Context(), out.Content)
		if err != nil {
			t.Fatal(err)
		}
		fetched := func(block int) uint64 {
			t.Helper()
			before := n.rep.Counters().RemoteReads
			got := make([]byte, content.BlockBytes)
			if _, err := r.ReadAt(got, int64(block)<<20); err != nil && err != io.EOF {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want[block<<20:][:len(got)]) {
				t.Errorf("block %d differs", block)
			}
			if r.Fd() != -1 || r.Size() != int64(len(want)) {
				t.Errorf("descriptor %d, %d bytes", r.Fd(), r.Size())
			}
			return n.rep.Counters().RemoteReads - before
		}
		if got := fetched(0); got != 1 {
			t.Errorf("%d blocks were fetched before it is here", got)
		}
		c.setLeader()
		c.eventually("it has caught up", func() bool { return n.heldHere(out.Content) })
		for block := range blocks {
			if got := fetched(block); got != 0 {
				t.Errorf("%d blocks were fetched after it is here", got)
			}
		}
		damage(t, n.dir, out.Content)
		if fetched(1) == 0 {
			t.Error("a damaged block was read here")
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}
