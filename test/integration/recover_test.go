package integration

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// Most voters are lost for good. The cluster goes on in a new generation with what the last voter has, although others
// know more: that is lost, and a version that they had deleted is fetched again. The lost nodes do not come back.
func TestRecoverALostMajority(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 5})
	voters := c.Nodes[0].Status().Voters
	var lost, left []*cluster.Node
	var lead *cluster.Node
	for i, n := range c.Nodes {
		cluster.Random(t, n.Path("of "+n.Name()), 2<<20, uint64(i))
		switch {
		case !slices.Contains(voters, n.Status().Node):
			left = append(left, n)
		case lead == nil:
			lead = n
		default:
			lost = append(lost, n)
		}
	}
	c.AwaitNothingOwed(time.Minute)
	want, err := cluster.Digest(lead.Path("of " + lead.Name()))
	must(t, err)
	lead.Stop()
	cluster.Random(t, left[0].Path("late"), 3<<20, 11)
	cluster.Random(t, left[1].Path("of "+lead.Name()), 1<<20, 12)
	nothingOwedTo(c, append(slices.Clone(lost), left...)...)
	for _, n := range lost {
		n.Kill()
	}
	for _, n := range left {
		n.Stop()
	}

	if out := lead.MustCLI("recover"); !strings.Contains(out, "generation 1") || !strings.Contains(out, "--begin") {
		t.Fatal(out)
	}
	generation := begin(t, lead)
	for _, n := range left {
		n.MustCLI("recover", "--follow", lead.Name(), "--generation", generation)
	}
	lead.Start()
	for _, n := range left {
		n.Start()
	}
	all := append(slices.Clone(left), lead)
	nothingOwedTo(c, all...)
	for _, n := range all {
		if got, err := cluster.Digest(n.Path("of " + lead.Name())); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", n.Name(), got, err, want)
		}
		if _, err := os.Stat(n.Path("late")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s shows what the others lost: %v", n.Name(), err)
		}
	}
	cluster.Random(t, left[1].Path("late"), 3<<20, 13)
	want, err = cluster.Digest(left[1].Path("late"))
	must(t, err)
	for _, n := range all {
		if got, err := cluster.Digest(n.Path("late")); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", n.Name(), got, err, want)
		}
	}
	back := lost[0]
	back.Launch()
	c.Await(30*time.Second, "the others refuse it", func() (bool, string) {
		return strings.Contains(back.Log(), "generation"), back.Log()
	})
	back.Kill()
	for _, n := range lost {
		lead.MustCLI("evict", n.Name())
	}
	c.AwaitAgreement(time.Minute)
}

// begin makes a node begin a generation, and returns its number as it was printed.
func begin(t *testing.T, n *cluster.Node) string {
	t.Helper()
	out := n.MustCLI("recover", "--begin")
	found := regexp.MustCompile(`--generation (\d+)\n`).FindStringSubmatch(out)
	if found == nil {
		t.Fatal(out)
	}
	return found[1]
}

// nothingOwedTo waits until each of some nodes has all that it is to have, as it sees that itself.
func nothingOwedTo(c *cluster.Cluster, nodes ...*cluster.Node) {
	c.TB.Helper()
	c.Await(time.Minute, "nothing owed to those that run", func() (bool, string) {
		for _, n := range nodes {
			st := n.Status()
			at := slices.IndexFunc(st.Nodes, func(one admin.Node) bool { return one.ID == st.Node })
			if own := st.Nodes[at]; own.State != "up" || own.OwedCount > 0 {
				return false, fmt.Sprintf("%s is %s, and is owed %d", n.Name(), own.State, own.OwedCount)
			}
		}
		return true, ""
	})
}

// The voters that are left may know less than an observer. The cluster goes on with that one, and nothing is lost. A
// voter that follows, the first of the cluster, has the signing key: machines can join again.
func TestRecoverWithAnObserver(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 4})
	founder := c.Nodes[0]
	voters := founder.Status().Voters
	var lost []*cluster.Node
	var lead *cluster.Node
	for _, n := range c.Nodes[1:] {
		if slices.Contains(voters, n.Status().Node) {
			lost = append(lost, n)
		} else {
			lead = n
		}
	}
	number := lead.Status().Node
	founder.Stop()
	cluster.Random(t, lead.Path("late"), 3<<20, 11)
	want, err := cluster.Digest(lead.Path("late"))
	must(t, err)
	nothingOwedTo(c, append(slices.Clone(lost), lead)...)
	for began := time.Now(); time.Since(began) < 2*time.Second; { // its state is synced once a second, and has more then
		cluster.Random(t, lead.Path("noise"), 1000, 12)
	}
	for _, n := range append(slices.Clone(lost), lead) {
		n.Kill()
	}
	generation := begin(t, lead)
	founder.MustCLI("recover", "--follow", fmt.Sprint(number), "--generation", generation)
	founder.Launch() // it waits for the other one
	lead.Start()
	founder.AwaitMounted(t.Context())
	for _, n := range lost {
		lead.MustCLI("evict", n.Name())
	}
	again := lost[0]
	must(t, os.RemoveAll(again.Data))
	again.MustCLI(joinArgs(again, lead, newToken(t, lead))...)
	again.Start()
	nothingOwedTo(c, lead, founder, again)
	for _, n := range []*cluster.Node{lead, founder, again} {
		if got, err := cluster.Digest(n.Path("late")); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", n.Name(), got, err, want)
		}
	}
	c.AwaitAgreement(time.Minute)
}
