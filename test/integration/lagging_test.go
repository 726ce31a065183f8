package integration

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G3: packets of a voter to an observer are lost, all of them or most; the voter, the observer and all others reach
// everybody else. When cp has returned 0, every node shows the file at once: whichever voter the observer had
// followed.
func TestObserverSeesPastALaggingVoter(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 5})
	leader := leaderOf(t, c)
	observer := observerOf(t, c)
	voters := slices.DeleteFunc(slices.Clone(c.Nodes), func(n *cluster.Node) bool {
		return n == leader || !nodeOf(t, leader.Status(), n).Voter
	})
	src := filepath.Join(c.Dir, "src")
	for round, perSec := range []int{0, 20} {
		for _, voter := range voters {
			c.Net().DropTo(voter.Index, observer.Index, perSec)
			for i := range 6 {
				cluster.Random(t, src, int64(3000+i*40_000), uint64(round*100+i))
				want, err := cluster.Digest(src)
				must(t, err)
				name := fmt.Sprintf("%d-%s-%d", round, voter.Name(), i)
				began := time.Now()
				run(t, "cp", src, leader.Path(name))
				took := time.Since(began)
				for _, n := range c.Nodes {
					if got, err := cluster.Digest(n.Path(name)); err != nil || got != want {
						t.Errorf("%s to %s, %d packets a second: cp returned after %v, and %s shows %s (%v), want %s",
							voter.Name(), observer.Name(), perSec, took, n.Name(), got, err, want)
					}
				}
			}
			c.Net().Undrop(voter.Index)
			c.AwaitUp(c.Nodes...)
		}
	}
	c.AwaitNothingOwed(time.Minute)
	c.AwaitAgreement(time.Minute)
}
