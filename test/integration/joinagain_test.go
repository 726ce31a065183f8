package integration

import (
	"os"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G9: a machine joined and lost its data directory before its first start. Its next join says what to do, which works.
func TestDirectoryLostBeforeTheFirstStart(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 2, Manual: true})
	one, two := c.Nodes[0], c.Nodes[1]
	one.Init()
	one.Start()
	two.Join()
	if err := os.RemoveAll(two.Data); err != nil {
		t.Fatal(err)
	}
	args := joinArgs(two, one, newToken(t, one))
	_, printed, err := two.CLI(args...)
	checkRefusal(t, "join again", printed, err, exitcode.Exists, "'rdmcfs token --replace "+two.Name()+"' on a member")
	rejoin(t, c, one, two)
	run(t, "cp", "/etc/passwd", one.Path("file"))
	if _, err := os.Stat(two.Path("file")); err != nil {
		t.Error(err)
	}
}
