package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// movingCluster is a cluster on slow links, and what is copied in while its members change.
type movingCluster struct {
	*cluster.Cluster
	src  string
	sum  string
	want map[string]string
}

func startMoving(t *testing.T) *movingCluster {
	t.Helper()
	c := start(t, cluster.Options{Nodes: 4, Rate: "200mbit", Manual: true})
	for i, n := range c.Nodes[:3] {
		if i == 0 {
			n.Init()
		} else {
			n.Join()
		}
		n.Start()
	}
	c.AwaitUp(c.Nodes[:3]...)
	m := &movingCluster{Cluster: c, src: filepath.Join(c.Dir, "src"), want: map[string]string{}}
	cluster.Random(t, m.src, size[int64](24<<20, 128<<20), 1)
	sum, err := cluster.Digest(m.src)
	if err != nil {
		t.Fatal(err)
	}
	m.sum = sum
	return m
}

// during copies in a file, lets something happen in mid-transfer, and returns how cp ended.
func (m *movingCluster) during(t *testing.T, writer *cluster.Node, name string, happens func()) error {
	t.Helper()
	t.Log(name)
	cp := startCopy(t, m.src, writer.Path(name))
	awaitMoving(t, m.Cluster, writer, 0.1)
	happens()
	_, err := cp.wait(t, 60*time.Second)
	if err == nil {
		m.want[name] = m.sum
	}
	return err
}

// settled fails the test unless everything is the same everywhere and nothing is owed.
func (m *movingCluster) settled(t *testing.T) {
	t.Helper()
	m.AwaitNothingOwed(60 * time.Second)
	m.AwaitAgreement(60 * time.Second)
	for name := range m.want {
		sameEverywhere(t, m.Cluster, m.src, name)
		for _, n := range m.running() {
			holdersOf(t, n, name)
		}
	}
}

func (m *movingCluster) running() (out []*cluster.Node) {
	for _, n := range m.Nodes {
		if n.Running() {
			out = append(out, n)
		}
	}
	return out
}

// Partition, join, same-name replacement and eviction in mid-transfer.
func TestMembersChangeInMidTransfer(t *testing.T) {
	t.Parallel()
	m := startMoving(t)
	writer, member, newcomer := m.Nodes[0], m.Nodes[2], m.Nodes[3]

	if err := m.during(t, writer, "member cut off", func() { m.Net().Cut(member.Index, true) }); err != nil {
		t.Errorf("cp with a member cut off: %v", err)
	}
	m.Net().Cut(member.Index, false)
	m.AwaitUp(m.Nodes[:3]...)
	m.settled(t)

	cut := m.Nodes[1]
	err := m.during(t, cut, "writer cut off", func() { m.Net().Cut(cut.Index, true) })
	m.Net().Cut(cut.Index, false)
	m.AwaitUp(m.Nodes[:3]...)
	m.settled(t)
	may := versionsOf(t, map[string]string{"old": "", "new": m.src})
	if seen := oneVersion(t, m.Cluster, "writer cut off", may); err == nil && seen != "new" {
		t.Errorf("cp reports success, the nodes show the %s version", seen)
	}

	if err := m.during(t, writer, "join", func() { newcomer.Join(); newcomer.Start() }); err != nil {
		t.Errorf("cp with a join: %v", err)
	}
	m.AwaitUp(m.Nodes...)
	m.settled(t)

	if err := m.during(t, writer, "replacement", func() {
		member.Kill()
		rejoin(t, m.Cluster, writer,
			member)
	}); err != nil {
		t.Errorf("cp with a replacement: %v", err)
	}
	m.settled(t)
	heldByEach(t, m.Cluster, m.want)

	if err := m.during(t, writer, "eviction", func() { writer.MustCLI("evict", newcomer.Name()) }); err != nil {
		t.Errorf("cp with an eviction: %v", err)
	}
	diesSaying(t, newcomer, 60*time.Second, exitcode.Denied, "evicted")
	m.settled(t)
	newcomer.Launch() // it can't come back as it was
	diesSaying(t, newcomer, 60*time.Second, exitcode.Denied, "evicted")
	if err := os.RemoveAll(newcomer.Data); err != nil {
		t.Fatal(err)
	}
	newcomer.MustCLI(joinArgs(newcomer, writer, newToken(t, writer))...)
	newcomer.Start()
	m.AwaitUp(m.Nodes...)
	m.settled(t)
}

// Every new voter has the signing key at once: if the first node is lost now, the others can still take in a machine in
// its place.
func TestSigningKeyIsWithEachVoter(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	has := func() (n int) {
		for _, node := range c.Nodes {
			if _, err := os.Stat(filepath.Join(node.Data, "tls", "ca.key")); err == nil {
				n++
			}
		}
		return n
	}
	c.Await(30*time.Second, "three voters", func() (bool, string) {
		voters := c.Nodes[0].Status().Voters
		return len(voters) == len(c.Nodes), fmt.Sprint(voters)
	})
	const soon = 700 * time.Millisecond // well below the 2 s after which a voter would ask again
	c.Await(soon, "all voters have the signing key", func() (bool, string) {
		return has() == len(c.Nodes), fmt.Sprintf("%d have it", has())
	})
}
