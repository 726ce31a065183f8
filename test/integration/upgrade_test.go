package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// upgradePause is the most that a change may wait while the nodes of a cluster are replaced one after the other.
const upgradePause = 5 * time.Second

// upgradeWriter makes files on one node until it is stopped, and remembers those whose close returned.
type upgradeWriter struct {
	node  *cluster.Node
	files map[string]int // bytes of each, all of them of one value
	slow  time.Duration  // the longest change
	err   error

	stop chan struct{}
	done sync.WaitGroup
}

func (w *upgradeWriter) start() {
	w.stop = make(chan struct{})
	w.done.Go(func() {
		for {
			select {
			case <-w.stop:
				return
			default:
				w.err = errors.Join(w.err, w.write())
			}
		}
	})
}

func (w *upgradeWriter) halt() {
	close(w.stop)
	w.done.Wait()
}

// write makes a file: most are in the log, some are sent by calls, and some by the multicast.
func (w *upgradeWriter) write() error {
	name, bytes := fmt.Sprintf("%s-%d", w.node.Name(), len(w.files)), 100
	switch len(w.files) % 20 {
	case 5, 15:
		bytes = 100 << 10
	case 10:
		bytes = 2 << 20
	}
	watch := startWatch()
	err := os.WriteFile(w.node.Path(name), upgradeBytes(name, bytes), 0o644)
	if w.slow = max(w.slow, watch.took()); err == nil {
		w.files[name] = bytes
	}
	return err
}

func upgradeBytes(name string, n int) []byte {
	return bytes.Repeat([]byte(name), n/len(name)+1)[:n]
}

// upgrade is a cluster whose programs are replaced while each node writes.
type upgrade struct {
	t       *testing.T
	c       *cluster.Cluster
	writers []*upgradeWriter
	next    string
}

// replace runs another program on a node, whose writer waits for that.
func (u *upgrade) replace(i int, program string) {
	u.t.Helper()
	w := u.writers[i]
	w.halt()
	w.node.Stop()
	w.node.Program = program
	w.node.Start()
	u.c.AwaitUp(u.c.Nodes[:3]...)
	w.start()
}

// says checks what a command prints on a node.
func (u *upgrade) says(n *cluster.Node, want string, args ...string) {
	u.t.Helper()
	if out := n.MustCLI(args...); !strings.Contains(out, want) {
		u.t.Errorf("%s: rdmcfs %s does not say %q:\n%s", n.Name(), strings.Join(args, " "), want, out)
	}
}

// dies starts a program on a node that is stopped, which has to refuse.
func (u *upgrade) dies(n *cluster.Node, program, says string) {
	u.t.Helper()
	n.Program = program
	n.Launch()
	diesSaying(u.t, n, time.Minute, exitcode.Denied, says)
}

// A cluster is upgraded and goes back, node by node, while all nodes write. When all nodes know the next format, and an
// operator says so, it is used: then no older program is let in. Nothing that a close acknowledged is lost, and no
// change waits for more than 5 s.
func TestRollingUpgrade(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 4, Manual: true})
	u := &upgrade{t: t, c: c, next: c.BuildNext()}
	nodes, late := c.Nodes[:3], c.Nodes[3]
	for i, n := range nodes {
		if i == 0 {
			n.Init()
		} else {
			n.Join()
		}
		n.Start()
	}
	c.AwaitUp(nodes...)
	for _, n := range nodes {
		w := &upgradeWriter{node: n, files: map[string]int{}}
		u.writers = append(u.writers, w)
		w.start()
	}
	u.forthAndBack()
	u.finish()
	token := newToken(t, nodes[0])
	refused(t, late, exitcode.Denied, "format 2 is in use", joinArgs(late, nodes[0], token)...)
	late.Program = u.next
	late.MustCLI(joinArgs(late, nodes[0], token)...)
	late.Start()
	u.dies(nodes[2], "", "node.json: format 2 is in use, and this version knows format 1: install")
	nodes[2].Program = u.next
	nodes[2].Start()
	c.AwaitUp(c.Nodes...)
	u.check()
}

// forthAndBack replaces each program, then goes back on each node, then replaces them again.
func (u *upgrade) forthAndBack() {
	u.t.Helper()
	nodes := u.c.Nodes
	u.says(nodes[0], "the newest that its nodes know", "upgrade", "--finish")
	u.replace(2, u.next)
	u.replace(1, u.next)
	refused(u.t, nodes[1], exitcode.Failure, "the version on node1 does not know it: install", "upgrade", "--finish")
	u.says(nodes[0], "install the newer version on node1", "upgrade")
	u.says(nodes[0], "version next (format 1 to 2): node2 node3", "status")
	u.replace(0, u.next) // the leader
	u.says(nodes[0], "'rdmcfs upgrade --finish' begins to use it", "upgrade")
	u.says(nodes[0], "all nodes know 2", "status")
	for i := range u.writers {
		u.replace(i, "")
	}
	u.says(nodes[0], "the newest that its nodes know", "upgrade")
	for i := range u.writers {
		u.replace(i, u.next)
	}
}

// finish makes the cluster use the next format while a node is down, on which then the older program is started.
func (u *upgrade) finish() {
	u.t.Helper()
	nodes, away := u.c.Nodes, u.writers[2]
	away.halt()
	away.node.Stop()
	u.says(nodes[0], "The cluster uses format 2", "upgrade", "--finish")
	u.says(nodes[1], "The cluster uses format 2, the newest that its nodes know", "upgrade", "--finish") // again
	u.dies(away.node, "", "format 2 is in use, and this version knows format 1: install")
	away.node.Program = u.next
	away.node.Start()
	u.c.AwaitUp(away.node)
	for _, n := range nodes[:3] {
		if got := n.Status().Format; got != 2 {
			u.t.Errorf("%s uses format %d", n.Name(), got)
		}
	}
	away.start()
	u.writers[1].node.MustCLI("wait", "--timeout", "60s")
	away.halt()
	away.node.Stop()
}

// check ends the writers and looks for what they made on all nodes.
func (u *upgrade) check() {
	u.t.Helper()
	for _, w := range u.writers[:2] {
		w.halt()
	}
	u.c.AwaitNothingOwed(2 * time.Minute)
	u.c.AwaitAgreement(time.Minute)
	for _, w := range u.writers {
		if w.err != nil {
			u.t.Errorf("writes on %s: %v", w.node.Name(), w.err)
		}
		u.t.Logf("%s: %d files, the longest change took %v", w.node.Name(), len(w.files), w.slow.Round(time.Millisecond))
		if w.slow > upgradePause || len(w.files) < 100 {
			u.t.Errorf("%s: %d files, the longest change took %v", w.node.Name(), len(w.files), w.slow)
		}
		for name, size := range w.files {
			for _, n := range u.c.Nodes {
				if got, err := os.ReadFile(n.Path(name)); err != nil || !bytes.Equal(got, upgradeBytes(name, size)) {
					u.t.Errorf("%s on %s: %d bytes, %v", name, n.Name(), len(got), err)
				}
			}
		}
	}
}
