package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// Two nodes, one voter, and the voter's directory is put back to an older copy. It goes on from there, beyond what
// the other node has. Neither follows the other in silence, also after both were started again: status of both, the
// log and the words of mount say so and what to do. What is shown meanwhile is each one's own history, whole. Both
// ways that the words name bring the cluster back.
func TestVoterIsPutBack(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 2})
	voter, other := c.Nodes[0], c.Nodes[1]
	p := &putBack{t: t, c: c, older: voter.Data + ".older", newer: voter.Data + ".newer", sums: map[string]string{}}
	p.write(voter, "first")
	c.AwaitNothingOwed(time.Minute)
	p.stopBoth()
	run(t, "cp", "-a", voter.Data, p.older)
	p.startBoth()
	p.write(other, "lost")
	c.AwaitNothingOwed(time.Minute)
	p.stopBoth()
	p.swap(p.newer, p.older)
	voter.Start()
	for i := range 30 { // more log entries than the other node has
		p.write(voter, fmt.Sprintf("new%d", i))
	}
	p.startAndRefuse()
	p.stopBoth()
	p.startAndRefuse()

	p.stopBoth() // the first way: the newer copy is put back
	p.swap(p.older, p.newer)
	p.startBoth()
	p.shows(voter, "first", "lost")
	p.shows(other, "first", "lost")
	p.write(other, "again")
	p.shows(voter, "again")
	c.AwaitAgreement(time.Minute)

	p.stopBoth() // the second way: the other node begins again
	p.swap(p.newer, p.older)
	p.startAndRefuse()
	run(t, "cp", other.Path("lost"), filepath.Join(c.Dir, "rescued"))
	other.Stop()
	voter.MustCLI("evict", other.Name())
	must(t, os.RemoveAll(other.Data))
	other.MustCLI(joinArgs(other, voter, newToken(t, voter))...)
	other.Start()
	run(t, "cp", filepath.Join(c.Dir, "rescued"), other.Path("lost"))
	c.AwaitNothingOwed(time.Minute)
	c.AwaitAgreement(time.Minute)
	p.shows(voter, "first", "lost", "new0", "new29")
	p.shows(other, "first", "lost", "new0", "new29")
	for _, n := range c.Nodes {
		c.Await(time.Minute, n.Name()+" is silent again", func() (bool, string) {
			text := strings.Join(n.Status().Warnings, "\n")
			return !strings.Contains(text, "older copy"), text
		})
	}
}

type putBack struct {
	t            *testing.T
	c            *cluster.Cluster
	older, newer string            // copies of the voter's directory
	sums         map[string]string // of the files
}

func (p *putBack) write(n *cluster.Node, name string) {
	p.t.Helper()
	cluster.Random(p.t, n.Path(name), 5000, uint64(len(p.sums)))
	sum, err := cluster.Digest(n.Path(name))
	must(p.t, err)
	p.sums[name] = sum
}

func (p *putBack) stopBoth() {
	p.c.Nodes[1].Stop()
	p.c.Nodes[0].Stop()
}

func (p *putBack) startBoth() {
	p.c.Nodes[0].Start()
	p.c.Nodes[1].Start()
	p.c.AwaitUp(p.c.Nodes...)
}

// swap puts the voter's directory away and another one in its place.
func (p *putBack) swap(away, in string) {
	p.t.Helper()
	must(p.t, errors.Join(os.Rename(p.c.Nodes[0].Data, away), os.Rename(in, p.c.Nodes[0].Data)))
}

// startAndRefuse starts what does not run, and waits for the words at both nodes.
func (p *putBack) startAndRefuse() {
	p.t.Helper()
	t, voter, other := p.t, p.c.Nodes[0], p.c.Nodes[1]
	if !voter.Running() {
		voter.Start()
	}
	must(t, os.Truncate(other.Data+".log", 0))
	other.Start()
	for _, n := range p.c.Nodes {
		p.c.Await(time.Minute, "the divergence is told by "+n.Name(), func() (bool, string) {
			text := strings.Join(n.Status().Warnings, "\n")
			return strings.Contains(text, "older copy") && strings.Contains(text, "rdmcfs evict"), text
		})
	}
	p.c.Await(time.Minute, "mount says it too", func() (bool, string) {
		text := other.Log()
		return strings.Contains(text, "histories differ") &&
			strings.Contains(text, "\n! nodes 2 and 1 have different entries"), text
	})
	p.shows(voter, "first", "new0", "new29")
	p.shows(other, "first", "lost")
	for n, name := range map[*cluster.Node]string{voter: "lost", other: "new0"} {
		if _, err := os.Stat(n.Path(name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s shows %s of the other history: %v", n.Name(), name, err)
		}
	}
	if err := os.Mkdir(other.Path("dir"), 0o755); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a change at %s: %v, want EROFS", other.Name(), err)
	}
}

// shows reads files at a node and compares their bytes.
func (p *putBack) shows(n *cluster.Node, names ...string) {
	p.t.Helper()
	for _, name := range names {
		if got, err := cluster.Digest(n.Path(name)); err != nil || got != p.sums[name] {
			p.t.Errorf("%s: %s is %s (%v), want %s", n.Name(), name, got, err, p.sums[name])
		}
	}
}
