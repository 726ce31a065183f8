package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// crashByFile lets a test say at any time at which point a node is to die.
const crashByFile = "RDMCFS_CRASH_AT=file"

// armCrash makes the node kill itself when it passes a labelled point, NAME or NAME:COUNT, from now on.
func armCrash(t *testing.T, n *cluster.Node, point string) {
	t.Helper()
	if err := os.WriteFile(crashFile(n), []byte(point), 0o600); err != nil {
		t.Fatal(err)
	}
}

func disarmCrash(n *cluster.Node) { os.Remove(crashFile(n)) }

func crashFile(n *cluster.Node) string { return filepath.Join(n.Data, "crash-at") }

// awaitDeath waits until an armed node has died.
func awaitDeath(t *testing.T, n *cluster.Node, limit time.Duration) {
	t.Helper()
	select {
	case <-n.Exited():
	case <-time.After(limit):
		t.Fatalf("%s has not passed its crash point after %v", n.Name(), limit)
	}
}

// versions are what a file may hold: digests by a word that says which; "absent" is no file.
type versions map[string]string

func versionsOf(t *testing.T, sources map[string]string) versions {
	t.Helper()
	out := versions{}
	for word, path := range sources {
		if path == "" {
			out["absent"] = word
			continue
		}
		sum, err := cluster.Digest(path)
		if err != nil {
			t.Fatal(err)
		}
		out[sum] = word
	}
	return out
}

// shown is which of the versions a node shows under a name.
func shown(n *cluster.Node, name string, may versions) (string, error) {
	sum, err := cluster.Digest(n.Path(name))
	if errors.Is(err, os.ErrNotExist) {
		sum, err = "absent", nil
	}
	if err != nil {
		return "", err
	}
	word, ok := may[sum]
	if !ok {
		return "", fmt.Errorf("%s shows under %s what nobody wrote: %s", n.Name(), name, sum)
	}
	return word, nil
}

// oneVersion fails the test unless all running nodes show the same one of the versions; it returns which.
func oneVersion(t *testing.T, c *cluster.Cluster, name string, may versions) string {
	t.Helper()
	seen := ""
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		word, err := shown(n, name, may)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if seen != "" && word != seen {
			t.Errorf("%s shows the %s version of %s, another node the %s one", n.Name(), word, name, seen)
		}
		seen = word
	}
	return seen
}

// noFalseHolders fails the test if a node says that one lacks the current version of a file when nothing is owed.
func noFalseHolders(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	for _, n := range c.Nodes {
		holdersOf(t, n, name)
	}
}

// holdersOf asks one node who holds a file, and fails the test unless all do.
func holdersOf(t *testing.T, n *cluster.Node, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w, err := n.Admin().Where(ctx, admin.WhereRequest{Path: "/" + name})
	if err != nil {
		t.Errorf("%s: where %s: %v", n.Name(), name, err)
	}
	for _, h := range w.Holders {
		if !h.Holds {
			t.Errorf("%s says that %s lacks %s (%s) although nothing is owed", n.Name(), h.Name, name, h.Reason)
		}
	}
}

// heldByEach fails the test unless each node alone, with its link cut and its caches new, reads the bytes of every
// file: so nobody is believed to hold what it lacks.
func heldByEach(t *testing.T, c *cluster.Cluster, want map[string]string) {
	t.Helper()
	for _, n := range c.Nodes {
		n.Restart()
		c.AwaitUp(c.Nodes...)
	}
	for i, n := range c.Nodes {
		c.Net().Cut(i, true)
		for name, sum := range want {
			if got, err := cluster.Digest(n.Path(name)); err != nil || got != sum {
				t.Errorf("%s alone reads %s as %s (%v), want %s", n.Name(), name, got, err, sum)
			}
		}
		c.Net().Cut(i, false)
	}
	c.AwaitUp(c.Nodes...)
}

// crashRole is who dies: the writer or a member of the transfer, leading the cluster or not.
type crashRole struct {
	name          string
	writes, leads bool
	points        []string
}

var crashRoles = []crashRole{
	{"writer", true, false, []string{"propose", "apply:1", "apply:2", "commit", "visible", "reply"}},
	{"leading writer", true, true, []string{"propose", "apply:1", "apply:2", "commit", "visible", "reply"}},
	{"member", false, false, []string{"vote", "apply:1", "apply:2"}},
	{"leading member", false, true, []string{"vote", "apply:1", "apply:2"}},
}

// cast picks the writer and the node that dies.
func (r crashRole) cast(t *testing.T, c *cluster.Cluster) (writer, victim *cluster.Node) {
	t.Helper()
	leader := leaderOf(t, c)
	follower, other := c.Nodes[(leader.Index+1)%3], c.Nodes[(leader.Index+2)%3]
	switch {
	case r.writes && r.leads:
		return leader, leader
	case r.writes:
		return follower, follower
	case r.leads:
		return follower, leader
	}
	return follower, other
}

// A node is killed at each labelled point of a write, as its writer, as a member and as the leader.
// Names are new or have a version already. Reduced, every fifth of the combinations.
func TestKilledAtEachPoint(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3, Env: []string{crashByFile}})
	kinds := []string{"tiny", "small", "large"} // each travels in its own way
	source := func(word string) string { return filepath.Join(c.Dir, word) }
	for i, bytes := range []int64{3000, 70_000, 3<<20 + 5} {
		cluster.Random(t, source("old "+kinds[i]), bytes+1000, 1)
		cluster.Random(t, source("new "+kinds[i]), bytes, 2)
	}
	want := map[string]string{}
	turn := 0
	for _, role := range crashRoles {
		for _, point := range role.points {
			for k, kind := range kinds {
				for _, over := range []bool{false, true} {
					if turn++; !*long && turn%5 != 0 {
						continue
					}
					if point == "vote" && k == 0 || point == "apply:2" && over {
						continue // the bytes are in the log; there is one entry only
					}
					name := fmt.Sprintf("%s at %s, %s, over %t", role.name, point, kind, over)
					s := crashScenario{c: c, name: name, role: role, point: point, over: over, old: source("old " + kind),
						new: source("new " + kind)}
					if sum := s.run(t); sum != "" {
						want[name] = sum
					}
				}
			}
		}
	}
	heldByEach(t, c, want)
}

// crashScenario is one death.
type crashScenario struct {
	c        *cluster.Cluster
	name     string
	role     crashRole
	point    string
	over     bool
	old, new string
}

// run returns the digest of what the file holds in the end, "" if there is none.
func (s crashScenario) run(t *testing.T) string {
	t.Helper()
	t.Log(s.name)
	c := s.c
	writer, victim := s.role.cast(t, c)
	before := map[string]string{"old": ""}
	if s.over {
		run(t, "cp", s.old, writer.Path(s.name))
		before["old"] = s.old
	}
	may := versionsOf(t, map[string]string{"old": before["old"], "new": s.new})
	armCrash(t, victim, s.point)
	cp := startCopy(t, s.new, writer.Path(s.name))
	_, failed := cp.wait(t, 60*time.Second)
	awaitDeath(t, victim, 60*time.Second)
	disarmCrash(victim)
	alive := c.Nodes[(victim.Index+1)%len(c.Nodes)]
	run(t, "cp", s.new, alive.Path("after "+s.name)) // what the dead leader had in the log is decided before this
	c.AwaitAgreement(60 * time.Second)
	seen := oneVersion(t, c, s.name, may)
	if failed == nil && seen != "new" {
		t.Errorf("cp reports success, and the nodes show the %s version", seen)
	}
	if failed != nil && victim != writer {
		t.Errorf("a member's death made cp fail: %v: %s", failed, cp.stderr.String())
	}
	victim.Start()
	c.AwaitUp(c.Nodes...)
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
	if again := oneVersion(t, c, s.name, may); again != seen {
		t.Errorf("the nodes showed the %s version, with the dead one back they show the %s one", seen, again)
	}
	for sum, word := range may {
		if word == seen && sum != "absent" {
			noFalseHolders(t, c, s.name)
			return sum
		}
	}
	return ""
}
