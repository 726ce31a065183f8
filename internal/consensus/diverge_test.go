package consensus

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Two nodes, one voter, and the voter's directory is put back to an older copy: the observer, which has more, does not follow it,
// whether it comes before or after the voter has made other entries at its index. Both say so.
func TestVoterPutBackIsNotFollowed(t *testing.T) {
	for _, more := range []int{0, 40} {
		c := newCluster(t, 2, nil)
		voter := c.waitVoters(1)
		observer := ID(3) - voter
		c.propose(voter, "a")
		c.converge()
		c.stop(voter)
		disk, sm := c.nodes[voter].disk.PowerLoss(func(int) int { return 0 }), c.nodes[voter].sm.crash()
		c.start(voter)
		for i := range 20 {
			c.propose(voter, fmt.Sprint("lost", i))
		}
		c.converge()
		c.stop(observer)
		c.stop(voter)
		c.nodes[voter].disk, c.nodes[voter].sm = disk, sm
		c.start(voter)
		for i := range more {
			c.propose(voter, fmt.Sprint("other", i))
		}
		had := c.nodes[observer].sm.Applied()
		c.start(observer)
		for _, id := range []ID{voter, observer} {
			eventually(t, 20*time.Second, "the divergence is told", func() bool {
				return strings.Contains(c.nodes[id].node.Status().Diverged, "older copy")
			})
		}
		if got := c.nodes[observer].sm.state(); got.Index != had || got.Results["other0"] != 0 {
			t.Fatalf("the observer took entries of another history: at %d, was at %d", got.Index, had)
		}
		c.propose(voter, "goes on")
	}
}
