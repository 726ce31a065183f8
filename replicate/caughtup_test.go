package replicate

import (
	"testing"
	"testing/synctest"

	"github.com/rdmcfs/rdmcfs/meta"
)

// G10: the bytes that catch-up brought to a node are counted, also where they went by multicast.
func TestCaughtUpBytesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		c.node(3).stop()
		c.declareDown(3)
		const size = 3 << 20
		out, err := c.node(1).publish(c.create(1, "f"), meta.ContentID{}, randomBytes(1, size))
		if err != nil {
			t.Fatal(err)
		}
		c.node(3).start()
		c.eventually("it has caught up", func() bool { return c.node(3).heldHere(out.Content) })
		c.eventually("the bytes are counted", func() bool {
			sum := uint64(0)
			for _, n := range c.all() {
				sum += n.replicator().Counters().CaughtUpBytes
			}
			return sum >= size
		})
	})
}
