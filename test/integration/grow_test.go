package integration

import (
	"bufio"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G6: what a node wrote while it was the only one is brought to those who join later, and what one of two wrote while
// the other was away: by the leader, which nobody else can do.
func TestAClusterGrowsFromOne(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3, Manual: true})
	one, two, three := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	one.Init()
	one.Start()
	src := c.Dir + "/src"
	cluster.Random(t, src, 3<<20, 1)
	run(t, "cp", src, one.Path("large"))
	run(t, "cp", "/etc/passwd", one.Path("small"))

	two.Join()
	two.Start()
	c.AwaitUp(one, two)
	c.AwaitNothingOwed(30 * time.Second)
	two.Stop()
	c.AwaitState(30*time.Second, one, two, "down")
	run(t, "cp", src, one.Path("while away"))
	two.Start()
	c.AwaitUp(one, two)
	c.AwaitNothingOwed(30 * time.Second)

	three.Join()
	three.Start()
	c.AwaitUp(c.Nodes...)
	c.AwaitNothingOwed(30 * time.Second)
	one.Kill() // the others have it all
	for name, from := range map[string]string{"large": src, "small": "/etc/passwd", "while away": src} {
		sameEverywhere(t, c, from, name)
	}
}

// G4: nodes can be evicted one after the other without a pause, down to the last, no matter which nodes vote.
func TestAClusterShrinksToOne(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{2, 4} {
		t.Run(strconv.Itoa(nodes), func(t *testing.T) {
			c := start(t, cluster.Options{Nodes: nodes})
			last := c.Nodes[nodes-1] // the first one was the only voter
			src := c.Dir + "/src"
			cluster.Random(t, src, 3<<20, 1)
			run(t, "cp", src, c.Nodes[0].Path("before"))
			for _, n := range c.Nodes[:nodes-1] {
				last.MustCLI("evict", n.Name())
			}
			for _, n := range c.Nodes[:nodes-1] {
				diesSaying(t, n, 60*time.Second, exitcode.Denied, "evicted")
			}
			run(t, "cp", src, last.Path("after"))
			for _, name := range []string{"before", "after"} {
				sameEverywhere(t, c, src, name)
			}
		})
	}
}

// A file that a program closes a moment later is waited for: the kernel says so only some time after close.
func TestEvictWaitsForACloseThatIsOnItsWay(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	leaves, stays := c.Nodes[2], c.Nodes[0]
	const script = `exec 3>"$1/closing" && echo text >&3 && echo open && read -r go && sleep 0.5`
	program := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", leaves.Mount)
	in, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("%q: %v", line, err)
	}
	refused(t, stays, exitcode.Needed, "it is open for writing", "evict", leaves.Name())
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	stays.MustCLI("evict", leaves.Name())
	if err := program.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*cluster.Node{stays, c.Nodes[1]} {
		if text := run(t, "cat", n.Path("closing")); text != "text\n" {
			t.Errorf("%s shows %q", n.Name(), text)
		}
	}
}
