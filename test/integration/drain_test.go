package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G4: files of one copy. A node that has the only one of some is not evicted. A drain moves them, whatever is
// interrupted and whichever node leads; then the node is evicted and nothing is lost. With --lose a node goes with what
// it has, and both sides say what that is.
func TestDrainAndEvict(t *testing.T) {
	t.Parallel()
	d := startDrain(t)
	stays, leaves, lost := d.Nodes[0], d.Nodes[1], d.Nodes[2]
	d.write(t, stays, "f", leaves, lost)
	mine := d.on(t, stays, leaves)

	refused(t, stays, exitcode.Needed, mine[0], "evict", leaves.Name())
	d.readable(t, stays, lost)
	d.isNoted(lost, stays, "evict "+leaves.Name(), false)

	leaves.Kill() // so that the drain can't end yet
	d.AwaitState(60*time.Second, stays, leaves, "down")
	refused(t, stays, exitcode.Needed, "could not be asked for unpublished files", "evict", leaves.Name())
	d.interrupted(t, stays, leaves)
	leader := leaderOf(t, d.Cluster)
	leader.Restart()
	d.AwaitUp(stays, lost)
	if n := nodeOf(t, stays.Status(), leaves); !n.Draining || n.NeededCount != len(mine) {
		t.Errorf("after a leader's change: draining %v, %d file versions depend on it, want %d", n.Draining, n.NeededCount,
			len(mine))
	}
	if out := stays.MustCLI("status"); !strings.Contains(out, "draining: ") {
		t.Errorf("status does not say who drains:\n%s", out)
	}

	leaves.Start()
	d.AwaitUp(stays, leaves, lost)
	stays.MustCLI("drain", leaves.Name())
	d.write(t, leaves, "g", lost, stays)
	for _, name := range d.on(t, stays, leaves) {
		if strings.HasPrefix(name, "one/g") {
			t.Errorf("%s is on the node that was drained before", name)
		}
	}
	stays.MustCLI("evict", leaves.Name())
	diesSaying(t, leaves, 60*time.Second, exitcode.Denied, "evicted")
	d.readable(t, stays, lost)

	d.giveUp(t, stays, lost)
	d.isNoted(stays, stays, "evict "+leaves.Name(), true)
}

// isNoted waits until the audit trail, read on a node, has a command that was typed on another, and how it ended.
func (d *drainage) isNoted(reader, typed *cluster.Node, words string, done bool) {
	d.Await(10*time.Second, "the audit trail has "+words, func() (bool, string) {
		out := reader.MustCLI("audit", "--json")
		var rows []admin.AuditRow
		err := json.Unmarshal([]byte(out), &rows)
		return err == nil && slices.ContainsFunc(rows, func(r admin.AuditRow) bool {
			return r.NodeName == typed.Name() && strings.HasPrefix(r.Command, "rdmcfs ") &&
				strings.Contains(r.Command, words) && r.UID != nil && *r.UID == 0 && r.Ended && (r.Error == "") == done
		}), out
	})
}

// drainage is a cluster with a directory whose files have one copy, and what was written there.
type drainage struct {
	*cluster.Cluster
	src   string
	names []string
}

func startDrain(t *testing.T) *drainage {
	t.Helper()
	c := start(t, cluster.Options{Nodes: 3, Patience: 3})
	d := &drainage{Cluster: c, src: filepath.Join(c.Dir, "src")}
	cluster.Random(t, d.src, 300<<10, 1)
	must(t, os.Mkdir(c.Nodes[0].Path("one"), 0o755))
	c.Nodes[0].MustCLI("policy", c.Nodes[0].Path("one"), "--copies", "1")
	return d
}

// write adds files until each of some nodes has one.
func (d *drainage) write(t *testing.T, w *cluster.Node, prefix string, on ...*cluster.Node) {
	t.Helper()
	for i := range 60 {
		name := fmt.Sprintf("one/%s%d", prefix, i)
		run(t, "cp", d.src, w.Path(name))
		d.names = append(d.names, name)
		all := i >= 4
		for _, n := range on {
			all = all && len(d.on(t, w, n)) > 0
		}
		if all {
			return
		}
	}
	t.Fatalf("60 files, and not one on each of %d nodes", len(on))
}

// on lists the files that a node holds, as another one sees it.
func (d *drainage) on(t *testing.T, seer, n *cluster.Node) (names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, name := range d.names {
		w, err := seer.Admin().Where(ctx, admin.WhereRequest{Path: "/" + name})
		must(t, err)
		for _, h := range w.Holders {
			if h.Name == n.Name() && h.Holds {
				names = append(names, name)
			}
		}
	}
	return names
}

// readable fails the test unless nodes read all files.
func (d *drainage) readable(t *testing.T, nodes ...*cluster.Node) {
	t.Helper()
	want, err := cluster.Digest(d.src)
	must(t, err)
	for _, n := range nodes {
		for _, name := range d.names {
			if got, err := cluster.Digest(n.Path(name)); err != nil || got != want {
				t.Errorf("%s on %s: %v, right bytes: %v", name, n.Name(), err, got == want)
			}
		}
	}
}

// interrupted begins a drain that can't end and kills the command.
func (d *drainage) interrupted(t *testing.T, at, n *cluster.Node) {
	t.Helper()
	cmd := at.Command(cluster.Binary(t), "drain", n.Name(), "--data", at.Data)
	var said strings.Builder
	cmd.Stderr = &said
	must(t, cmd.Start())
	d.Await(60*time.Second, "the drain is in the log", func() (bool, string) {
		st := nodeOf(t, at.Status(), n)
		return st.Draining && st.NeededCount > 0, fmt.Sprintf("draining %v, needed %d", st.Draining, st.NeededCount)
	})
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if err := cmd.Wait(); err == nil {
		t.Errorf("the drain ended although the node is down: %s", said.String())
	}
}

// giveUp evicts a node with the only copies of files and an unpublished one.
func (d *drainage) giveUp(t *testing.T, stays, lost *cluster.Node) {
	t.Helper()
	f, err := os.Create(lost.Path("odd\nname"))
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("not closed")
	must(t, err)
	mine := d.on(t, stays, lost)
	if len(mine) == 0 {
		t.Fatal("the node has no file of its own")
	}
	refused(t, stays, exitcode.Needed, mine[0], "evict", lost.Name())
	refused(t, stays, exitcode.Needed, `odd\nname`, "evict", lost.Name())
	out, errs, err := stays.CLI("evict", lost.Name(), "--lose")
	if err != nil || !strings.Contains(errs, mine[0]) || !strings.Contains(errs, `odd\nname`) {
		t.Errorf("evict --lose: %v, says not what is lost:\n%s%s", err, out, errs)
	}
	diesSaying(t, lost, 60*time.Second, exitcode.Denied, "it may have the last copies of files")
	if log := lost.Log(); !strings.Contains(log, mine[0]) || strings.Contains(log, "odd\nname") {
		t.Errorf("the evicted node does not name what it has:\n%s", log)
	}
}
