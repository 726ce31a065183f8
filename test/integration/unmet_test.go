package integration

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G10: when a node drains and goes, and the others are too few for the copies that a policy says, all commands that
// have to do with it say so; and they say nothing of the kind before, or when the drain is over.
func TestPolicyThatCanNoLongerBeMet(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	stays, leaves := c.Nodes[0], c.Nodes[2]
	dir := stays.Path("three")
	stays.MustCLI("policy", stays.Path(""), "--copies", "3")
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, 100_000, 1)
	run(t, "cp", src, dir)
	c.AwaitNothingOwed(time.Minute)
	const few = "3 copies: 2 nodes take new files"
	says := func(want bool, when string, args ...string) {
		t.Helper()
		out, errs, err := stays.CLI(args...)
		if err != nil || strings.Contains(out+errs, few) != want {
			t.Errorf("%s: %v: %v, wanted that it names the policy: %t\n%s%s", when, args, err, want, out, errs)
		}
	}
	says(false, "all are there", "status")
	says(false, "all are there", "policy", stays.Path(""))
	says(true, "it drains", "drain", leaves.Name())
	says(true, "it drains", "status")
	says(true, "it drains", "policy", stays.Path(""))
	says(true, "it drains", "where", dir)
	says(false, "it drains no more", "drain", "--undo", leaves.Name())
	says(false, "it drains no more", "status")
	says(true, "it goes", "evict", leaves.Name())
	says(true, "it has gone", "status")
}
