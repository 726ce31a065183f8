package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G10: what status and watch say is so.
func TestG10Told(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3, Rate: "80mbit"})
	t.Run("ends", func(t *testing.T) { endsAreTold(t, c) })
	t.Run("damage", func(t *testing.T) { damageIsTold(t, c) })
	t.Run("stopped", func(t *testing.T) { stopIsTold(t, c) })
}

// watching is a 'rdmcfs watch --json' that runs.
type watching struct {
	t   *testing.T
	cmd *exec.Cmd
	out string // file that it prints to
}

func watchJSON(t *testing.T, c *cluster.Cluster, n *cluster.Node, name string) *watching {
	t.Helper()
	w := &watching{t: t, out: filepath.Join(c.Dir, name)}
	f, err := os.Create(w.out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w.cmd = n.Command(cluster.Binary(t), "watch", "--json", "--interval", "100ms", "--data", n.Data)
	w.cmd.Stdout, w.cmd.Stderr = f, f
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.cmd.Process.Signal(syscall.SIGINT)
		w.cmd.Wait()
	})
	return w
}

// states are what it has printed of the transfers of a file, in order.
func (w *watching) states(file string) (out []admin.Event) {
	w.t.Helper()
	raw, err := os.ReadFile(w.out)
	if err != nil {
		w.t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(raw[:bytes.LastIndexByte(raw, '\n')+1])); lines.Scan(); {
		var ev admin.Event
		if err := json.Unmarshal(lines.Bytes(), &ev); err != nil {
			w.t.Fatalf("watch printed %q: %v", lines.Text(), err)
		}
		if ev.Transfer != nil && filepath.Base(ev.Transfer.Path) == file {
			out = append(out, ev)
		}
	}
	return out
}

func (w *watching) ended(file string) bool {
	return slices.ContainsFunc(w.states(file), func(ev admin.Event) bool { return ev.Kind == "transfer-end" })
}

// wantEnd checks that the last state of a file that was copied is its true end, reported once, and that progress never
// fell.
func (w *watching) wantEnd(c *cluster.Cluster, file string, bytes int64) {
	w.t.Helper()
	c.Await(30*time.Second, "the end of "+file+" is told", func() (bool, string) { return w.ended(file), "" })
	states := w.states(file)
	most := map[uint32]int64{}
	for i, ev := range states {
		for _, m := range ev.Transfer.Members {
			if m.Bytes < most[m.Node] {
				w.t.Errorf("%s: node %d falls from %d to %d bytes", file, m.Node, most[m.Node], m.Bytes)
			}
			most[m.Node] = m.Bytes
		}
		if (ev.Kind == "transfer-end") != (i == len(states)-1) {
			w.t.Errorf("%s: state %d of %d is a %s", file, i+1, len(states), ev.Kind)
		}
	}
	last := states[len(states)-1].Transfer
	if last.Outcome != "published" || last.Ended.IsZero() || len(last.Members) != len(c.Nodes)-1 {
		w.t.Errorf("%s: the last state is %+v", file, last)
	}
	for _, m := range last.Members {
		if m.State != "stored" || m.Bytes != bytes {
			w.t.Errorf("%s: the last state of node %d is %+v", file, m.Node, m)
		}
	}
}

// endsAreTold copies files of all ways of publishing. A watch from before and one that begins in mid-transfer both get
// their ends.
func endsAreTold(t *testing.T, c *cluster.Cluster) {
	n := c.Nodes[0]
	first := watchJSON(t, c, n, "watch1")
	for i := 0; len(first.states("probe")) == 0; i++ { // until it follows
		if i == 100 {
			t.Fatal("the watch is told nothing")
		}
		if err := os.WriteFile(n.Path("probe"), []byte(fmt.Sprint(i)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for file, bytes := range map[string]int64{"inline": 100, "small": 300_000, "large": 3<<20 + 5} {
		src := filepath.Join(c.Dir, file)
		cluster.Random(t, src, bytes, 1)
		run(t, "cp", src, n.Path(file))
		first.wantEnd(c, file, bytes)
	}
	const bytes = 20 << 20
	src := filepath.Join(c.Dir, "image")
	cluster.Random(t, src, bytes, 1)
	for i := range 5 { // until the second watch begins before the end
		file := fmt.Sprintf("image%d", i)
		cp := startCopy(t, src, n.Path(file))
		awaitMoving(t, c, n, 0.05)
		second := watchJSON(t, c, n, "watch-"+file)
		if _, err := cp.wait(t, 2*time.Minute); err != nil {
			t.Fatalf("cp: %v: %s", err, cp.stderr.String())
		}
		first.wantEnd(c, file, bytes)
		if len(second.states(file)) > 0 {
			second.wantEnd(c, file, bytes)
			return
		}
	}
	t.Error("no watch began in mid-transfer")
}

// damageIsTold damages a file at all its holders: the read fails, and status says on each node what is damaged where.
func damageIsTold(t *testing.T, c *cluster.Cluster) {
	const name = "rotten"
	src := filepath.Join(c.Dir, name)
	cluster.Random(t, src, 2<<20, 1)
	before := map[string]bool{}
	held := func(n *cluster.Node) []string {
		return filesUnder(t, filepath.Join(n.Data, "content", "held"), ".data")
	}
	for _, n := range c.Nodes {
		for _, path := range held(n) {
			before[path] = true
		}
	}
	run(t, "cp", src, c.Nodes[0].Path(name))
	c.AwaitNothingOwed(60 * time.Second)
	for _, n := range c.Nodes {
		n.Stop()
		for _, path := range held(n) {
			if !before[path] {
				flip(t, path, 5000)
			}
		}
	}
	for _, n := range c.Nodes {
		n.Launch()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, n := range c.Nodes {
		n.AwaitMounted(ctx)
	}
	c.AwaitUp(c.Nodes...)
	if _, err := os.ReadFile(c.Nodes[0].Path(name)); err == nil {
		t.Fatal("a file that is damaged everywhere can be read")
	}
	for _, seer := range c.Nodes {
		c.Await(60*time.Second, "the damage on node1 is told by "+seer.Name(), func() (bool, string) {
			st := seer.Status()
			for _, d := range st.Damaged {
				if d.Name == c.Nodes[0].Name() && d.Count == 1 && slices.Equal(d.Names, []string{"/" + name}) {
					return strings.Contains(strings.Join(st.Warnings, "\n"), name), "no warning"
				}
			}
			return false, fmt.Sprintf("damaged: %+v", st.Damaged)
		})
	}
}

// stopIsTold stops one node as planned and kills it another time: the others say which it was.
func stopIsTold(t *testing.T, c *cluster.Cluster) {
	seer, gone := c.Nodes[0], c.Nodes[2]
	for _, how := range []struct {
		end  func()
		says string
	}{
		{gone.Stop, "stopped"},
		{gone.Kill, "silent"},
	} {
		how.end()
		c.Await(30*time.Second, "the end of "+gone.Name()+" is told", func() (bool, string) {
			n := nodeOf(t, seer.Status(), gone)
			return n.State == "down", fmt.Sprintf("%s: %s", n.State, n.Reason)
		})
		if got := nodeOf(t, seer.Status(), gone).Reason; !strings.HasPrefix(got, how.says) {
			t.Errorf("%s is down (%s), want %q", gone.Name(), got, how.says)
		}
		for syscall.Unmount(gone.Mount, syscall.MNT_DETACH) == nil {
		}
		gone.Start()
		c.AwaitUp(c.Nodes...)
	}
}
