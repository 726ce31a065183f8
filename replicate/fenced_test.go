package replicate

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
)

// fence declares a node down that lives, and lets it in again.
func (c *cluster) fence(id meta.NodeID) {
	c.t.Helper()
	n := c.node(id)
	rec, err := n.db.Node(id)
	if err != nil {
		c.t.Fatal(err)
	}
	c.must(id%2+1, &meta.Down{Node: id, Incarnation: rec.Incarnation, Reason: "test"})
	n.mu.Lock()
	n.seq, n.lease = 0, meta.Lease{Node: id}
	n.mu.Unlock()
	res := c.must(id, &meta.Boot{Node: id, Store: [16]byte{byte(id)}, Addr: "10.0.0.1:1", Nonce: rand.Uint64()})
	n.mu.Lock()
	n.seq, n.lease = 0, meta.Lease{Node: id, Incarnation: res.Incarnation}
	n.mu.Unlock()
}

// A writer that was taken for dead in mid-push, and lives, pushes again under its next incarnation: its members dropped what they had.
func TestFencedPushIsMadeAgain(t *testing.T) {
	for name, size := range map[string]int{"small": 100_000, "large": 10 << 20} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 4, 3)
			ino := c.create(1, "f")
			old, err := c.node(1).publish(ino, meta.ContentID{}, []byte("the version before"))
			if err != nil {
				t.Fatal(err)
			}
			reached, fenced := make(chan struct{}), make(chan struct{})
			var once sync.Once
			wait := func() {
				once.Do(func() { close(reached) })
				<-fenced
			}
			c.hub.setBlock(func(to meta.NodeID, i uint64) error {
				if i >= 60 {
					wait()
				}
				return nil
			})
			c.setCalls(func(from, to meta.NodeID, kind Kind) error {
				if kind == KindPut && from == 1 {
					wait()
				}
				return nil
			})
			type answer struct {
				out Outcome
				err error
			}
			done := make(chan answer)
			b := randomBytes(1, size)
			go func() {
				out, err := c.node(1).publish(ino, old.Content, b)
				done <- answer{out, err}
			}()
			<-reached
			c.fence(1)
			close(fenced)
			a := <-done
			if a.err != nil || a.out.Content.Incarnation != 2 {
				t.Fatalf("published %v: %v", a.out.Content, a.err)
			}
			c.settled()
			for id := meta.NodeID(1); id <= 4; id++ {
				c.node(id).wantBytes(a.out.Content, b)
			}
		})
	}
}
